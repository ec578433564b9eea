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
_SECRETS, _MLFLOW_USERS, _MLFLOW_CONFIG, _LOCK = (
    "secrets.json",
    "mlflow-users.db",
    "mlflow-auth.ini",
    "in-use.lock",
)


def random_secret() -> str:
    return secrets.token_hex(16)


def write_private(file: Path, text: str) -> None:
    """Write a file atomically; from its first byte on, only its owner can read it."""
    with (
        atomic_file(file) as temporary,
        os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w"
        ) as out,
    ):
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
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / _MLFLOW_CONFIG),
            "MLFLOW_AUTH_ADMIN_USERNAME": USER,
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.keys.password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.keys.mlflow_secret,
        }

    @property
    def clients(self) -> dict[str, str]:
        """Variables with which clients log in to the Prefect server and MLflow."""
        return {
            "PREFECT_API_AUTH_STRING": f"{USER}:{self.keys.password}",
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": self.keys.password,
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
    known = {"default_permission": "READ", "database_uri": users, "auth_cache_ttl_seconds": "60"}
    write_private(
        folder / _MLFLOW_CONFIG,
        "[mlflow]\n" + "".join(f"{key} = {value}\n" for key, value in known.items()),
    )
    return Credentials(folder=folder, keys=keys)


@contextmanager
def exclusive(project: Path) -> Iterator[None]:
    """Prevent a second start of the project's servers during the block.

    Raises:
      ServiceFailed: its servers run already.
    """
    folder = private_folder(project / STATE_DIR / "ui")
    try:
        with FileLock(folder / _LOCK, timeout=0):
            (folder / ENVIRONMENT).unlink(missing_ok=True)  # left by a start that was killed
            yield
    except Timeout:
        raise ServiceFailed(
            "the servers of this project run already; to use them in a terminal: source"
            f" {folder / ENVIRONMENT}"
        ) from None


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
    return "".join(
        f"export {key}={shlex.quote(value)}\n"
        for key, value in environment.items()
        if key != "PATH"
    )


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
    with temporary_settings(
        {setting: used[setting.name] for setting in settings if setting.name in used}
    ):
        yield running
