"""Who may use the servers of `make ui`: a password that is drawn at the first start and stays with
this project, for its owner alone.

While they run, everything that a process needs to talk to them is in .throughline/ui/environment:
flows started by the same user in the same project find it there, and a terminal sources it.
"""

from __future__ import annotations

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
    """A new secret of 128 bits."""
    return secrets.token_hex(16)


def write_private(file: Path, text: str) -> None:
    """Write a file that its owner alone may read, from the first byte on: completely, or not at
    all.
    """
    with (
        atomic_file(file) as temporary,
        os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w"
        ) as out,
    ):
        out.write(text)


def private_folder(folder: Path) -> Path:
    """Make a folder that its owner alone may enter, or take that from others where it is there;
    returns it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Secrets of `make ui`: the password of both UIs, and what MLflow signs its sessions with."""

    password: str = field(default_factory=random_secret)
    mlflow_secret: str = field(default_factory=random_secret)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The private folder of `make ui` in a project, and the secrets in it."""

    folder: Path
    keys: Secrets

    @property
    def server(self) -> dict[str, str]:
        """What the Prefect server needs to ask for the password."""
        return {"PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{self.keys.password}"}

    @property
    def tracking(self) -> dict[str, str]:
        """What MLflow needs to ask for the password."""
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / _MLFLOW_CONFIG),
            "MLFLOW_AUTH_ADMIN_USERNAME": USER,
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.keys.password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.keys.mlflow_secret,
        }

    @property
    def clients(self) -> dict[str, str]:
        """What those who talk to both need."""
        return {
            "PREFECT_API_AUTH_STRING": f"{USER}:{self.keys.password}",
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": self.keys.password,
        }


def load_credentials(project: Path) -> Credentials:
    """Open the private folder of `make ui` in a project, with last time's secrets or new ones."""
    folder = private_folder(project / STATE_DIR / "ui").resolve()
    file = folder / _SECRETS
    try:
        keys = Secrets(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        # The first start, or damaged: MLflow then makes its users again, too.
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
    """Keep every other start of servers out of this project for as long as the block.

    Raises:
      ServiceFailed: its servers run already.
    """
    folder = private_folder(project / STATE_DIR / "ui")
    try:
        with FileLock(folder / _LOCK, timeout=0):
            (folder / ENVIRONMENT).unlink(missing_ok=True)  # of a start that was killed
            yield
    except Timeout:
        raise ServiceFailed(
            "the servers of this project run already; what a terminal needs to use them: source"
            f" {folder / ENVIRONMENT}"
        ) from None


@contextmanager
def published_environment(project: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Have what clients need in a file for its owner alone, for as long as the block, which is
    within `exclusive`; yields the file.
    """
    file = project / STATE_DIR / "ui" / ENVIRONMENT
    write_private(file, exports(environment))
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def exports(environment: Mapping[str, str]) -> str:
    """What a shell sources to have an environment, its search path excepted."""
    return "".join(
        f"export {key}={shlex.quote(value)}\n"
        for key, value in environment.items()
        if key != "PATH"
    )


def find_running(project: Path) -> dict[str, str]:
    """Return what clients of the running `make ui` of a project need; nothing where it does not
    run, or is another user's.
    """
    folder = project / STATE_DIR / "ui"
    try:
        if (folder / ENVIRONMENT).stat().st_uid != os.geteuid():
            return {}
        lines = (folder / ENVIRONMENT).read_text().splitlines()
    except OSError:
        return {}
    try:
        with FileLock(folder / _LOCK, timeout=0):
            return {}  # nobody holds the lock: the file was left by a start that was killed
    except Timeout:
        return dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)


@contextmanager
def use_running_servers(project: Path) -> Iterator[Mapping[str, str]]:
    """Let flows of the block, and their stages, use the running `make ui` of this project; yields
    what its clients need, nothing where none runs. A server that the user has named, of Prefect or
    of MLflow, is used instead of its own.
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
