"""Debian's Postgres as an unprivileged process: set up once, run for the length of a block."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.servers.services import HOST, ServerProcess, keep_running
from infra.local.stack_config import USER, StackConfig
from throughline.shared.errors import ServiceFailed

DATABASES = ("prefect", "mlflow", "mlflow_auth")
_UNPRIVILEGED = "postgres"  # a user of Debian's package; Postgres refuses to run as root


@contextmanager
def postgres(home: StackConfig) -> Iterator[Callable[[], None]]:
    """Run Postgres with its databases; yield a function that restarts it if it has ended.

    Raises ServiceFailed if it is not installed, cannot be set up, or does not start.
    """
    folder = home.folder / "postgres"
    if not folder.exists():
        _initdb(home, folder)
    where = ["-D", str(folder), "-h", HOST, "-p", str(home.settings.postgres_port), "-k", ""]
    server = ServerProcess(
        name="postgres",
        command=[*_as_unprivileged(), _tool("postgres"), *where],
        healthy=lambda: _run(home, "pg_isready", "-q").returncode == 0,
        environment={},
    )
    with keep_running(server, logs=home.logs) as look_after:
        listing = ("-d", "postgres", "-Atc", "SELECT datname FROM pg_database")
        present = _run_checked(home, "psql", *listing).split()
        for name in DATABASES:
            if name not in present:
                _run_checked(home, "createdb", name)
        yield look_after


def _initdb(home: StackConfig, folder: Path) -> None:
    """Make the database cluster in another folder, and rename that when it is complete."""
    initdb = _tool("initdb")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    user = _UNPRIVILEGED if os.geteuid() == 0 else None
    with tempfile.NamedTemporaryFile("w") as password:
        password.write(home.settings.postgres_password)
        password.flush()
        if user:
            shutil.chown(partial, user, user)
            shutil.chown(password.name, user, user)
        options = [f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={password.name}"]
        options += ["--encoding=UTF8", "--no-locale"]
        command = [*_as_unprivileged(), initdb, "-D", str(partial), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        shutil.rmtree(partial)
        by_root = f"Postgres, run by root as {user}, which needs +x on every folder of the path,"
        raise ServiceFailed(
            f"{by_root if user else 'Postgres'} cannot keep its data in {folder}; choose another"
            f" folder with --home:\n{done.stderr.strip()}"
        )
    partial.rename(folder)


def _as_unprivileged() -> list[str]:
    names = f"--reuid={_UNPRIVILEGED}", f"--regid={_UNPRIVILEGED}"
    return ["setpriv", *names, "--clear-groups"] if os.geteuid() == 0 else []


def installed() -> bool:
    return _found("postgres") is not None


def _found(name: str) -> str | None:
    """Find a Postgres program; Debian keeps servers in folders by version, outside of PATH."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3])
    )
    return str(versions[-1]) if versions else shutil.which(name)


def _tool(name: str) -> str:
    if found := _found(name):
        return found
    raise ServiceFailed(
        f"Postgres is not installed ({name} is missing): apt-get install postgresql"
    )


def _run(home: StackConfig, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, variables = [_tool(tool), *arguments], {**os.environ, **home.databases}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def _run_checked(home: StackConfig, tool: str, *arguments: str) -> str:
    done = _run(home, tool, *arguments)
    if done.returncode != 0:
        raise ServiceFailed(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout
