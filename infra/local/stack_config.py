"""The local stack's folder, ports and secrets, which are generated once, for the owner only."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flows.servers.credentials import USER, hold_alone, log_in, random_secret, write_private
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
        return log_in(prefect=own.prefect_password, mlflow=own.mlflow_password) | self.objects


@contextmanager
def hold_stack(folder: Path) -> Iterator[None]:
    """Lock a stack's folder during the block; ServiceFailed if another process holds the lock."""
    folder = folder.resolve()
    _make_folder(folder)
    running = f"the stack in {folder} is running; stop it first (Ctrl-C where it was started)"
    with hold_alone(folder, running):
        yield


def load_stack(folder: Path, **ports: int | None) -> StackConfig:
    """Open a stack's folder, or make it with new secrets; given ports replace the earlier ones.

    Raises ServiceFailed if the settings in the folder cannot be read.
    """
    folder = folder.resolve()
    _make_folder(folder)
    file = folder / SETTINGS_FILE
    try:
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        given = {name: port for name, port in ports.items() if port is not None}
        settings = StackSettings(**{**known, **given})
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
    absent = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for missing in reversed(absent):
        missing.mkdir(exist_ok=True)
        missing.chmod(mode)
    folder.chmod(mode)
