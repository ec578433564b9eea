"""Debian's Postgres as a process of one's own: laid out once, run for as long as a block, dumped
and restored.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# As MLflow keeps passwords.
from werkzeug.security import check_password_hash, generate_password_hash

from flows.servers.services import HOST, ServerProcess, run_servers
from infra.local.stack_config import USER, StackConfig
from throughline.shared.errors import ServiceFailed

DATABASES = ("prefect", "mlflow", "mlflow_auth")
_UNPRIVILEGED = (  # Postgres refuses to run as root; root runs it as this user of Debian's package
    "postgres"
)


@contextmanager
def postgres(home: StackConfig) -> Iterator[None]:
    """Run the stack's Postgres, with its databases made if they are not there.

    Raises:
      ServiceFailed: it is not installed, cannot be laid out, or does not start.
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
    with run_servers(server, logs=home.logs):
        for name in DATABASES:
            if not _run_checked(
                home,
                "psql",
                "-d",
                "postgres",
                "-Atc",
                f"SELECT 1 FROM pg_database WHERE datname = '{name}'",
            ).strip():
                _run_checked(home, "createdb", name)
        yield


def dump(home: StackConfig, folder: Path) -> None:
    """Write each database to NAME.dump in a folder, consistent in itself, while it is used."""
    for name in DATABASES:
        _run_checked(home, "pg_dump", "--format=custom", f"--file={folder / f'{name}.dump'}", name)


def restore(home: StackConfig, folder: Path) -> None:
    """Put each database back as it was dumped: all are read under other names first, and then
    change places in one transaction.

    Killed at any moment, either all databases are as they were or all are as in the dumps.

    Raises:
      ServiceFailed: a dump is missing or cannot be read; then everything is as it was.
    """
    for name in DATABASES:
        for earlier in (f"{name}_restored", f"{name}_replaced"):
            _run_checked(home, "dropdb", "--force", "--if-exists", earlier)
        _run_checked(home, "createdb", f"{name}_restored")
        _run_checked(
            home,
            "pg_restore",
            "--exit-on-error",
            "--no-owner",
            f"--dbname={name}_restored",
            str(folder / f"{name}.dump"),
        )
    swaps = [
        f"ALTER DATABASE {name} RENAME TO {name}_replaced; ALTER DATABASE {name}_restored RENAME TO"
        f" {name};"
        for name in DATABASES
    ]
    _run_checked(
        home,
        "psql",
        "-d",
        "postgres",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "--single-transaction",
        said="\n".join(swaps),
    )
    for name in DATABASES:
        _run_checked(home, "dropdb", "--force", f"{name}_replaced")


def let_administrator_in(home: StackConfig) -> None:
    """Make MLflow's administrator have the password of this home, whatever password the database
    was backed up with.

    MLflow takes the password from its environment only when it makes its first user.
    """
    table = _run_checked(
        home, "psql", "-d", "mlflow_auth", "-Atc", "SELECT to_regclass('users')"
    ).strip()
    if not table:
        return
    known = _run_checked(
        home,
        "psql",
        "-d",
        "mlflow_auth",
        "-At",
        said=f"SELECT password_hash FROM users WHERE username = '{USER}';",
    ).strip()
    if known and not check_password_hash(known, home.settings.mlflow_password):
        changed = generate_password_hash(home.settings.mlflow_password)
        _run_checked(
            home,
            "psql",
            "-d",
            "mlflow_auth",
            "-q",
            said=f"UPDATE users SET password_hash = '{changed}' WHERE username = '{USER}';",
        )


def _initdb(home: StackConfig, folder: Path) -> None:
    """Make the cluster under another name and rename it when it is complete, so that a kill leaves
    none.
    """
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
        options = [
            f"--username={USER}",
            "--auth=scram-sha-256",
            f"--pwfile={password.name}",
            "--encoding=UTF8",
            "--no-locale",
        ]
        command = [*_as_unprivileged(), _tool("initdb"), "-D", str(partial), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        shutil.rmtree(partial)
        reached = (
            f" (started by root, Postgres runs as user {user}, which needs +x on every folder of"
            " that path)"
            if user
            else ""
        )
        raise ServiceFailed(
            f"Postgres cannot keep its data in {folder}{reached}; choose another folder with"
            f" --home:\n{done.stderr.strip()}"
        )
    partial.rename(folder)


def _as_unprivileged() -> list[str]:
    names = f"--reuid={_UNPRIVILEGED}", f"--regid={_UNPRIVILEGED}"
    return ["setpriv", *names, "--clear-groups"] if os.geteuid() == 0 else []


def installed() -> bool:
    """Whether Postgres' server is there."""
    return _found("postgres") is not None


def _found(name: str) -> str | None:
    """Path of one of Postgres' programs; Debian keeps the servers' out of PATH, below their
    version.
    """
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3])
    )
    return str(versions[-1]) if versions else shutil.which(name)


def _tool(name: str) -> str:
    found = _found(name)
    if found is None:
        raise ServiceFailed(
            f"Postgres is not installed ({name} is not there): apt-get install postgresql"
        )
    return found


def _run(
    home: StackConfig, tool: str, *arguments: str, said: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **home.databases}
    return subprocess.run(
        [_tool(tool), *arguments],
        env=environment,
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )


def _run_checked(home: StackConfig, tool: str, *arguments: str, said: str | None = None) -> str:
    """Run one of Postgres' programs, with `said` as its input, which no other user of the machine
    sees, unlike arguments.
    """
    done = _run(home, tool, *arguments, said=said)
    if done.returncode != 0:
        raise ServiceFailed(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout
