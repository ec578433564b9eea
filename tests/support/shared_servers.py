"""Servers that tests share, one of each per process of the tests: of libraries, which stages would
import, and of Prefect, which every flow would start. A test that is about them starts its own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from flows.run.dvc_calls import dvc_environment
from flows.run.processes import supervised
from throughline.shared.fork_client import STAGE_SERVER

ROOT = Path(__file__).parents[2]


class PrefectTemplate:
    """An empty database of Prefect, made once per run of the tests: its migrations take seconds."""

    folder: Path | None = None  # where it is kept; without one every home makes its own

    def copy(self, home: Path, environment: dict[str, str]) -> None:
        if self.folder is None:
            return
        template = self.folder / "prefect"
        with FileLock(self.folder / "prefect.lock"):
            if not template.exists():
                made = {**environment, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
                made |= {"PREFECT_HOME": str(self.folder / "prefect.partial")}
                command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
                subprocess.run(command, env=made, check=True, capture_output=True)
                (self.folder / "prefect.partial").rename(template)
        shutil.copytree(template, home)


prefect_template = PrefectTemplate()


class _Shared:
    """A server that this process starts when a command first needs it."""

    folder: Path | None = None  # where its files are; without one each command starts its own

    def __init__(self) -> None:
        self._running = ExitStack()

    def close(self) -> None:
        """End it, if this process has started it."""
        self._running.close()


class SharedLibraries(_Shared):
    """A server of stages that has their libraries; a stage has the program of its own project."""

    MODULES = (
        *("keras", "matplotlib.figure", "mlflow.store.tracking.sqlalchemy_store"),
        *("mlflow.tensorflow", "pandas", "pyarrow.parquet", "tensorflow"),
    )

    def environment(self) -> dict[str, str]:
        """The variable by which commands find it."""
        return {} if self.folder is None else {STAGE_SERVER: self._address}

    @cached_property
    def _address(self) -> str:
        """Of the server, which starts when it is first asked for."""
        address = str(self.folder / "libraries")
        command = [sys.executable, "-m", "flows.run.fork_server", address, *self.MODULES]
        where = {"folder": ROOT, "environment": dvc_environment({}), "output": subprocess.DEVNULL}
        self._running.enter_context(supervised(command, **where))
        return address


shared_libraries = SharedLibraries()


class SharedPrefect(_Shared):
    """A server of Prefect for flows that tests run as commands, each with a home of its own."""

    def environment(self, command: Sequence[str]) -> dict[str, str]:
        """The variables by which a command that runs a flow finds it."""
        runs_flow = any("flows." in part for part in command)
        return {} if self.folder is None or not runs_flow else self._access

    @cached_property
    def _access(self) -> dict[str, str]:
        # Prefect takes seconds to import, and most tests need none.
        from prefect.settings import PREFECT_HOME, temporary_settings

        from flows.servers.credentials import USER, random_secret
        from flows.servers.services import HOST, reserved_port
        from flows.servers.temporary_server import start_server

        port = self._running.enter_context(reserved_port())
        password = f"{USER}:{random_secret()}"
        prefect_template.copy(self.folder / "home", dict(os.environ))
        with temporary_settings(updates={PREFECT_HOME: self.folder / "home"}):
            self._running.enter_context(start_server(port, password))
        return {"PREFECT_API_URL": f"http://{HOST}:{port}/api", "PREFECT_API_AUTH_STRING": password}


shared_prefect = SharedPrefect()
