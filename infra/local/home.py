"""Where the local stack keeps everything: its folder, ports, and secrets that are drawn once and readable by their owner alone."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flows.services import HOST
from tasks.errors import ServiceFailed

USER = "throughline"
SETTINGS = "settings.json"


def _drawn() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Ports and secrets of one stack. Secrets never stand on a command line; they travel in environments."""

    postgres_port: int = 5433
    s3_port: int = 8333
    input_port: int = 5050
    postgres_password: str = field(default_factory=_drawn)
    prefect_password: str = field(default_factory=_drawn)
    mlflow_password: str = field(default_factory=_drawn)
    mlflow_secret: str = field(default_factory=_drawn)
    s3_secret: str = field(default_factory=_drawn)


@dataclass(frozen=True, kw_only=True)
class Home:
    """The folder of a stack and what is in it."""

    folder: Path
    settings: Settings

    @property
    def logs(self) -> Path:
        """Where the services of the stack write."""
        return self.folder / "logs"

    @property
    def databases(self) -> dict[str, str]:
        """What libpq and asyncpg need to find and enter the databases."""
        own = self.settings
        return {"PGHOST": HOST, "PGPORT": str(own.postgres_port), "PGUSER": USER, "PGPASSWORD": own.postgres_password}

    @property
    def objects(self) -> dict[str, str]:
        """What S3 clients need to reach the store."""
        address = f"http://{HOST}:{self.settings.s3_port}"
        return {
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": self.settings.s3_secret,
            "AWS_ENDPOINT_URL": address,
            "MLFLOW_S3_ENDPOINT_URL": address,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def clients(self) -> dict[str, str]:
        """What those who talk to Prefect, MLflow and the store need."""
        own = self.settings
        return {
            "PREFECT_API_AUTH_STRING": f"{USER}:{own.prefect_password}",
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": own.mlflow_password,
            **self.objects,
        }

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep everybody else from running this stack for as long as the block.

        Raises:
          ServiceFailed: it is in use.
        """
        try:
            with FileLock(self.folder / "in-use.lock", timeout=0):
                yield
        except Timeout:
            raise ServiceFailed(f"the stack in {self.folder} is running; stop it first (Ctrl-C where it was started)") from None


def write_private(file: Path, text: str) -> None:
    """Write a file that its owner alone may read, from the first byte on."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)


def open_home(folder: Path, **ports: int | None) -> Home:
    """Open a stack's folder, or lay it out with new secrets; ports that are given replace those of last time."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SETTINGS
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    known |= {name: port for name, port in ports.items() if port is not None}
    settings = Settings(**known)
    write_private(file, json.dumps(asdict(settings), indent=2))
    return Home(folder=folder, settings=settings)
