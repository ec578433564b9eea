"""The local stack's secrets and databases, killed and damaged at any moment."""

import json
import os
import resource
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from flows.servers.services import reserved_port
from infra.local import postgres
from infra.local.stack_config import SETTINGS_FILE, load_stack
from tests.support.skips import need
from throughline.shared.errors import ServiceFailed

pytestmark = pytest.mark.integration

FAILED = 3


def test_settings_are_written_only_when_they_change(tmp_path):
    file = load_stack(tmp_path / "stack").folder / SETTINGS_FILE
    before = file.stat()
    assert stat.S_IMODE(before.st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) & 0o066 == 0
    load_stack(tmp_path / "stack")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    load_stack(tmp_path / "stack", s3_port=9000)
    assert json.loads(file.read_text())["s3_port"] == 9000


def test_a_disk_that_takes_nothing_leaves_the_secrets_as_they_were(tmp_path):
    before = (load_stack(tmp_path / "stack").folder / SETTINGS_FILE).read_text()
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            load_stack(tmp_path / "stack", s3_port=9000)
        except OSError:
            os._exit(FAILED)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == FAILED
    assert (tmp_path / "stack" / SETTINGS_FILE).read_text() == before
    assert load_stack(tmp_path / "stack").settings.s3_port == 8333
    assert {path.name for path in (tmp_path / "stack").iterdir()} == {SETTINGS_FILE}


@pytest.mark.parametrize("content", ["{", '{"unknown": 1}'])
def test_settings_that_cannot_be_read_are_never_replaced(tmp_path, content):
    (tmp_path / SETTINGS_FILE).write_text(content)
    with pytest.raises(ServiceFailed, match="put it back from a backup"):
        load_stack(tmp_path)
    assert (tmp_path / SETTINGS_FILE).read_text() == content


@pytest.mark.slow
def test_a_first_start_that_was_killed_is_made_good_by_the_next():
    need("postgres")
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        Path(folder).chmod(0o755)
        opened = load_stack(Path(folder) / "stack", postgres_port=port)
        (opened.folder / "postgres.partial" / "base").mkdir(parents=True)
        (opened.folder / "postgres.partial" / "PG_VERSION").write_text("15\n")
        with postgres.postgres(opened):
            asked = ("psql", "-d", "postgres", "-Atc", "SELECT datname FROM pg_database")
            names = postgres._run_checked(opened, *asked).split()
        assert set(names) == {*postgres.DATABASES, "postgres", "template0", "template1"}
