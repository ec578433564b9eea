"""The local stack's folder, ports and secrets, which are generated once, for the owner only."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flows.servers.credentials import USER, random_secret, write_private
from flows.servers.services import HOST
from throughline.shared.errors import ServiceFailed

SETTINGS_FILE = "settings.json"


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """Ports and secrets of one stack; secrets are passed in environments, not on command lines."""

    postgres_port: int = 5433
    s3_port: int = 8333
    input_port: int = 5050
    dask_port: int = 8786
    postgres_password: str = field(default_factory=random_secret)
    prefect_password: str = field(default_factory=random_secret)
    mlflow_password: str = field(default_factory=random_secret)
    mlflow_secret: str = field(default_factory=random_secret)
    s3_secret: str = field(default_factory=random_secret)


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    folder: Path
    settings: StackSettings

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def databases(self) -> dict[str, str]:
        """Variables with which libpq and asyncpg connect to the databases."""
        own = self.settings
        return {
            "PGHOST": HOST,
            "PGPORT": str(own.postgres_port),
            "PGUSER": USER,
            "PGPASSWORD": own.postgres_password,
        }

    @property
    def objects(self) -> dict[str, str]:
        """Variables with which S3 clients reach the store."""
        address = f"http://{HOST}:{self.settings.s3_port}"
        return {
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": self.settings.s3_secret,
            "AWS_ENDPOINT_URL": address,
            "MLFLOW_S3_ENDPOINT_URL": address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def clients(self) -> dict[str, str]:
        """Variables for clients of Prefect, MLflow and the store."""
        own = self.settings
        return {
            "PREFECT_API_AUTH_STRING": f"{USER}:{own.prefect_password}",
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": own.mlflow_password,
            **self.objects,
        }


@contextmanager
def hold_stack(folder: Path) -> Iterator[None]:
    """Lock the stack of a folder during the block: nobody else can run it or change its settings.

    Raises:
      ServiceFailed: it is in use.
    """
    folder = folder.resolve()
    _make_folder(folder)
    try:
        with FileLock(folder / "in-use.lock", timeout=0):
            yield
    except Timeout:
        raise ServiceFailed(
            f"the stack in {folder} is running; stop it first (Ctrl-C where it was started)"
        ) from None


def load_stack(folder: Path, **ports: int | None) -> StackConfig:
    """Open a stack's folder, or make it with new secrets; given ports replace the earlier ones.

    Raises:
      ServiceFailed: the settings in the folder cannot be read.
    """
    folder = folder.resolve()
    _make_folder(folder)
    file = folder / SETTINGS_FILE
    try:
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        settings = StackSettings(
            **{**known, **{name: port for name, port in ports.items() if port is not None}}
        )
    except (ValueError, TypeError) as error:
        raise ServiceFailed(
            f"{file} cannot be read ({error}); put it back from a backup of the stack's folder"
        ) from error
    if not file.exists() or asdict(settings) != known:
        write_private(file, json.dumps(asdict(settings), indent=2))
    file.chmod(0o600)
    return StackConfig(folder=folder, settings=settings)


def _make_folder(folder: Path) -> None:
    """Make a private folder; if root makes it, Postgres' user may enter it, but not list it."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    for missing in reversed(
        [parent for parent in (folder, *folder.parents) if not parent.exists()]
    ):
        missing.mkdir(exist_ok=True)
        missing.chmod(mode)
    folder.chmod(mode)
