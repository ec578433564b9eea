"""The local stack's secrets and databases, killed and damaged at any moment."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from skips import need

from flows.servers.services import find_free_port
from infra.local import postgres
from infra.local.stack_config import SETTINGS_FILE, StackConfig, load_stack
from throughline.shared.errors import ServiceFailed

ROOT = Path(__file__).parents[2]
KILLED_AFTER_S = [0.05, 0.3, 0.6, 0.9, 1.2, 1.5, 1.9, 2.4, 3.0]


def test_settings_are_written_only_when_they_change(tmp_path):
    file = load_stack(tmp_path / "stack").folder / SETTINGS_FILE
    before = file.stat()
    assert (
        stat.S_IMODE(before.st_mode) == 0o600
        and stat.S_IMODE(file.parent.stat().st_mode) & 0o066 == 0
    )
    load_stack(tmp_path / "stack")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    load_stack(tmp_path / "stack", s3_port=9000)
    assert json.loads(file.read_text())["s3_port"] == 9000


def test_a_disk_that_takes_nothing_leaves_the_secrets_as_they_were(tmp_path):
    before = (load_stack(tmp_path / "stack").folder / SETTINGS_FILE).read_text()

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    code = (
        "import pathlib, sys; from infra.local.stack_config import load_stack;"
        " load_stack(pathlib.Path(sys.argv[1]), s3_port=9000)"
    )
    done = subprocess.run(
        [sys.executable, "-Bc", code, tmp_path / "stack"],
        cwd=ROOT,
        preexec_fn=full,
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert (tmp_path / "stack" / SETTINGS_FILE).read_text() == before
    assert load_stack(tmp_path / "stack").settings.s3_port == 8333
    assert {path.name for path in (tmp_path / "stack").iterdir()} == {SETTINGS_FILE}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unknown": 1}'])
def test_settings_that_cannot_be_read_are_never_replaced(tmp_path, content):
    (tmp_path / SETTINGS_FILE).write_text(content)
    with pytest.raises(ServiceFailed, match="put it back from a backup"):
        load_stack(tmp_path)
    assert (tmp_path / SETTINGS_FILE).read_text() == content


def test_a_new_home_takes_the_passwords_of_a_backup_and_another_one_keeps_its_own(tmp_path):
    first = load_stack(tmp_path / "first")
    assert (
        load_stack(tmp_path / "new", adopted=first.folder / SETTINGS_FILE).settings
        == first.settings
    )
    other = load_stack(tmp_path / "other")
    assert (
        load_stack(tmp_path / "other", adopted=first.folder / SETTINGS_FILE).settings
        == other.settings
    )


@pytest.fixture(scope="module")
def home() -> Iterator[StackConfig]:
    """A home whose first start was killed while Postgres was made; its Postgres runs."""
    need("postgres")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        opened = load_stack(Path(folder) / "stack", postgres_port=find_free_port())
        (opened.folder / "postgres.partial" / "base").mkdir(parents=True)
        (opened.folder / "postgres.partial" / "PG_VERSION").write_text("15\n")
        with postgres.postgres(opened):
            yield opened


def generations(home: StackConfig) -> set[str]:
    return {
        postgres._run_checked(
            home, "psql", "-d", name, "-Atc", "SELECT generation FROM mark"
        ).strip()
        for name in postgres.DATABASES
    }


@pytest.mark.slow
def test_a_restore_that_is_killed_leaves_all_databases_old_or_all_new(home, tmp_path):
    for generation in ("new", "old"):
        for name in postgres.DATABASES:
            said = (
                f"DROP TABLE IF EXISTS mark; CREATE TABLE mark AS SELECT '{generation}' AS"
                " generation;"
            )
            postgres._run_checked(home, "psql", "-q", "-d", name, "-c", said)
        if generation == "new":
            postgres.dump(home, tmp_path)
    assert generations(home) == {"old"}
    code = (
        "import sys; from pathlib import Path; from infra.local import postgres, stack_config;"
        " folder, dumps = map(Path, sys.argv[1:]); "
    )
    code += "postgres.restore(stack_config.load_stack(folder), dumps)"
    outcomes = []
    for seconds in KILLED_AFTER_S:
        restoring = subprocess.Popen(
            [sys.executable, "-c", code, home.folder, tmp_path], cwd=ROOT, start_new_session=True
        )
        time.sleep(seconds)
        os.killpg(restoring.pid, signal.SIGKILL)
        restoring.wait()
        found = generations(home)
        assert len(found) == 1, f"after {seconds} s"
        outcomes += found
    assert "old" in outcomes, "some were killed early enough"
    subprocess.run([sys.executable, "-c", code, home.folder, tmp_path], cwd=ROOT, check=True)
    assert generations(home) == {"new"}, "and one that is not killed succeeds"
    names = postgres._run_checked(
        home, "psql", "-d", "postgres", "-Atc", "SELECT datname FROM pg_database"
    ).split()
    assert set(names) == {*postgres.DATABASES, "postgres", "template0", "template1"}, (
        "nothing is left"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflows_administrator_gets_in_by_the_password_of_the_home_whatever_was_restored(
    home, monkeypatch
):
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    for key, value in home.databases.items():
        monkeypatch.setenv(key, value)
    postgres.let_administrator_in(home)  # nothing is there yet
    store = SqlAlchemyStore()
    store.init_db("postgresql+psycopg2:///mlflow_auth")
    store.create_user("throughline", "the-password-of-another-home", is_admin=True)
    for _ in range(2):
        postgres.let_administrator_in(home)
        assert store.authenticate_user("throughline", home.settings.mlflow_password)
    assert not store.authenticate_user("throughline", "the-password-of-another-home")
