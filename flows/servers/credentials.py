"""The password for the servers of `make ui`: random, made at the first start, for the owner only.

While the servers run, .throughline/ui/environment has all variables that clients need: flows of the
same user read it, and a terminal can source it.
"""

import json
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from flows.run.locks import STATE_DIR
from throughline.shared.errors import ServiceFailed
from throughline.shared.files import atomic_file

USER = "throughline"
ENVIRONMENT = "environment"
_SECRETS, _LOCK = "secrets.json", "in-use.lock"
_MLFLOW_USERS, _MLFLOW_CONFIG = "mlflow-users.db", "mlflow-auth.ini"


def random_secret() -> str:
    return secrets.token_hex(16)


def write_private(file: Path, text: str) -> None:
    """Write a file atomically; from its first byte on, only its owner can read it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with atomic_file(file) as temporary, os.fdopen(os.open(temporary, flags, 0o600), "w") as out:
        out.write(text)


def private_folder(folder: Path) -> Path:
    """Make a folder, unless it exists, let only its owner enter it, and return it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Secrets of `make ui`: the password of both UIs, and the key that signs MLflow's sessions."""

    password: str = field(default_factory=random_secret)
    mlflow_secret: str = field(default_factory=random_secret)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The private folder of `make ui` in a project, and the secrets in it."""

    folder: Path
    keys: Secrets

    @property
    def server(self) -> dict[str, str]:
        """Variables that make the Prefect server ask for the password."""
        return {"PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{self.keys.password}"}

    @property
    def tracking(self) -> dict[str, str]:
        """Variables that make MLflow ask for the password."""
        own = self.keys
        return ask_for_password(self.folder / _MLFLOW_CONFIG, own.password, own.mlflow_secret)

    @property
    def clients(self) -> dict[str, str]:
        """Variables with which clients log in to the Prefect server and MLflow."""
        return log_in(prefect=self.keys.password, mlflow=self.keys.password)


def ask_for_password(config: Path, password: str, secret: str) -> dict[str, str]:
    """Return variables that make MLflow ask for a password; `secret` signs its sessions."""
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_AUTH_ADMIN_USERNAME": USER,
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secret,
    }


def log_in(*, prefect: str, mlflow: str) -> dict[str, str]:
    """Return variables with which clients log in with these passwords."""
    return {
        "PREFECT_API_AUTH_STRING": f"{USER}:{prefect}",
        "MLFLOW_TRACKING_USERNAME": USER,
        "MLFLOW_TRACKING_PASSWORD": mlflow,
    }


def load_credentials(project: Path) -> Credentials:
    """Open a project's private folder of `make ui`; make new secrets if they cannot be read."""
    folder = private_folder(project / STATE_DIR / "ui").resolve()
    file = folder / _SECRETS
    try:
        keys = Secrets(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        # The first start, or a damaged file; MLflow then has to create its users again.
        keys = Secrets()
        (folder / _MLFLOW_USERS).unlink(missing_ok=True)
        write_private(file, json.dumps(asdict(keys)))
    users = f"sqlite:///{folder / _MLFLOW_USERS}".replace("%", "%%")
    config = f"default_permission = READ\ndatabase_uri = {users}\nauth_cache_ttl_seconds = 60\n"
    write_private(folder / _MLFLOW_CONFIG, f"[mlflow]\n{config}")
    return Credentials(folder=folder, keys=keys)


@contextmanager
def hold_alone(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder of servers during the block; ServiceFailed says `refusal` if it is in use."""
    try:
        with FileLock(folder / _LOCK, timeout=0):
            yield
    except Timeout:
        raise ServiceFailed(refusal) from None


@contextmanager
def exclusive(project: Path) -> Iterator[None]:
    """Prevent a second start of the project's servers during the block; else ServiceFailed."""
    folder = private_folder(project / STATE_DIR / "ui")
    source = f"to use them in a terminal: source {folder / ENVIRONMENT}"
    with hold_alone(folder, f"the servers of this project run already; {source}"):
        (folder / ENVIRONMENT).unlink(missing_ok=True)  # left by a start that was killed
        yield


@contextmanager
def published_environment(project: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Keep clients' variables in a private file during the block; yield it. Needs `exclusive`."""
    file = project / STATE_DIR / "ui" / ENVIRONMENT
    write_private(file, exports(environment))
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def exports(environment: Mapping[str, str]) -> str:
    """Return shell commands that export an environment, without PATH."""
    variables = {key: value for key, value in environment.items() if key != "PATH"}
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())


def find_running(project: Path) -> dict[str, str]:
    """Return clients' variables for the project's `make ui`; empty unless this user runs it."""
    folder = project / STATE_DIR / "ui"
    try:
        if (folder / ENVIRONMENT).stat().st_uid != os.geteuid():
            return {}
        lines = (folder / ENVIRONMENT).read_text().splitlines()
    except OSError:
        return {}
    try:
        with FileLock(folder / _LOCK, timeout=0):
            return {}  # nobody holds the lock: a killed start left the file
    except Timeout:
        return dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)


@contextmanager
def use_running_servers(project: Path) -> Iterator[Mapping[str, str]]:
    """Let flows in the block, and their stages, use the project's running `make ui`.

    Yields clients' variables; empty if it does not run. Servers that the user has set stay in use.
    """
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_UI_URL,
        temporary_settings,
    )

    named = {"PREFECT": PREFECT_API_URL.value(), "MLFLOW": os.environ.get("MLFLOW_TRACKING_URI")}
    running = find_running(project)
    used = {name: value for name, value in running.items() if not named.get(name.partition("_")[0])}
    if not used:
        yield running
        return
    os.environ.update(used)
    settings = (PREFECT_API_URL, PREFECT_API_AUTH_STRING, PREFECT_UI_URL)
    with temporary_settings({one: used[one.name] for one in settings if one.name in used}):
        yield running
