"""Debian's Postgres as a process of one's own: laid out once, run for as long as a block, dumped and restored."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.services import HOST, Service, serving
from infra.local.home import USER, Home
from tasks.errors import ServiceFailed

DATABASES = ("prefect", "mlflow", "mlflow_auth")
_UNPRIVILEGED = "postgres"  # Postgres refuses to run as root; root runs it as this user of Debian's package


@contextmanager
def postgres(home: Home) -> Iterator[None]:
    """Run the stack's Postgres, with its databases made if they are not there.

    Raises:
      ServiceFailed: it is not installed, cannot be laid out, or does not start.
    """
    folder = home.folder / "postgres"
    if not (folder / "PG_VERSION").exists():
        _lay_out(home, folder)
    where = ["-D", str(folder), "-h", HOST, "-p", str(home.settings.postgres_port), "-k", ""]
    service = Service(
        name="postgres",
        command=[*_as_unprivileged(), _tool("postgres"), *where],
        healthy=lambda: _ask(home, "pg_isready", "-q").returncode == 0,
        environment={},
    )
    with serving(service, logs=home.logs):
        for name in DATABASES:
            if not _do(home, "psql", "-d", "postgres", "-Atc", f"SELECT 1 FROM pg_database WHERE datname = '{name}'").strip():
                _do(home, "createdb", name)
        yield


def dump(home: Home, folder: Path) -> None:
    """Write each database to NAME.dump in a folder, consistent in itself, while it is used."""
    for name in DATABASES:
        _do(home, "pg_dump", "--format=custom", f"--file={folder / f'{name}.dump'}", name)


def restore(home: Home, folder: Path) -> None:
    """Put each database back as it was dumped. What is there now goes only when all have been read into databases beside it.

    Raises:
      ServiceFailed: a dump is missing or cannot be read; then everything is as it was.
    """
    for name in DATABASES:
        _do(home, "dropdb", "--force", "--if-exists", f"{name}_restored")
        _do(home, "createdb", f"{name}_restored")
        _do(home, "pg_restore", "--exit-on-error", "--no-owner", f"--dbname={name}_restored", str(folder / f"{name}.dump"))
    for name in DATABASES:
        _do(home, "dropdb", "--force", "--if-exists", name)
        _do(home, "psql", "-d", "postgres", "-qc", f"ALTER DATABASE {name}_restored RENAME TO {name}")


def _lay_out(home: Home, folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    user = _UNPRIVILEGED if os.geteuid() == 0 else None
    with tempfile.NamedTemporaryFile("w") as password:
        password.write(home.settings.postgres_password)
        password.flush()
        if user:
            shutil.chown(folder, user, user)
            shutil.chown(password.name, user, user)
        options = [f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={password.name}", "--encoding=UTF8", "--no-locale"]
        command = [*_as_unprivileged(), _tool("initdb"), "-D", str(folder), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        shutil.rmtree(folder)
        reached = f" (run by root, Postgres is {user}, who must be able to enter every folder of that path)" if user else ""
        raise ServiceFailed(f"Postgres cannot keep its data in {folder}{reached}; choose another folder with --home:\n{done.stderr.strip()}")


def _as_unprivileged() -> list[str]:
    names = f"--reuid={_UNPRIVILEGED}", f"--regid={_UNPRIVILEGED}"
    return ["setpriv", *names, "--clear-groups"] if os.geteuid() == 0 else []


def installed() -> bool:
    """Whether Postgres' server is there."""
    return _found("postgres") is not None


def _found(name: str) -> str | None:
    """Path of one of Postgres' programs; Debian keeps the servers' out of PATH, below their version."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(versions[-1]) if versions else shutil.which(name)


def _tool(name: str) -> str:
    found = _found(name)
    if found is None:
        raise ServiceFailed(f"Postgres is not installed ({name} is not there): apt-get install postgresql")
    return found


def _ask(home: Home, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **home.databases}
    return subprocess.run([_tool(tool), *arguments], env=environment, capture_output=True, text=True, check=False)


def _do(home: Home, tool: str, *arguments: str) -> str:
    done = _ask(home, tool, *arguments)
    if done.returncode != 0:
        raise ServiceFailed(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout
