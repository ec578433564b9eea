"""Locks are the kernel's: whoever is gone holds nothing, and nobody is kept out by what another has
left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.run.dvc_calls import repair_locks
from flows.run.locks import hold_machine_and_folder
from throughline.shared import machine_lock
from throughline.shared.errors import ServiceFailed
from throughline.shared.file_lock import describe_holder, hold
from throughline.shared.machine_lock import hold_machine

ROOT = Path(__file__).parents[2]
# No Prefect, no TensorFlow: a child is there in a tenth of a second.
HOLD = """
import os, sys, time
root, path, seconds, address, user = sys.argv[1:]
sys.path.insert(0, root)
from pathlib import Path
from throughline.shared import file_lock, machine_lock
machine_lock.MACHINE_ADDRESS = address.replace("@", chr(0))
os.setuid(int(user))
waits = lambda who: print("waits:", who, flush=True)
with file_lock.hold(Path(path), "run other", waits) if path else machine_lock.hold_machine(waits):
    print("held", flush=True)
    time.sleep(float(seconds))
"""


def holder(
    path: Path | str, seconds: float = 60, *, user: int | None = None, **options
) -> subprocess.Popen:
    """A process that waits for a lock, and then holds it."""
    address = machine_lock.MACHINE_ADDRESS.replace("\0", "@")
    arguments = [
        str(ROOT),
        str(path),
        str(seconds),
        address,
        str(os.getuid() if user is None else user),
    ]
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, *arguments], stdout=subprocess.PIPE, text=True, **options
    )


@contextlib.contextmanager
def another_holder(path: Path | str, seconds: float = 60, **options):
    """Another process that holds a lock."""
    process = holder(path, seconds, **options)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def machine(monkeypatch):
    """The machine's lock at an address of this test's own, for this process and its children."""
    monkeypatch.setattr(machine_lock, "MACHINE_ADDRESS", f"\0throughline-test-{os.getpid()}")


def test_a_lock_names_its_holder_and_is_free_when_that_is_killed(tmp_path):
    said = []
    path = tmp_path / "locks" / "x.lock"
    with another_holder(path) as process:

        def on_wait(who: str) -> None:
            said.append(who)
            process.kill()

        with hold(path, "run me", on_wait):
            assert json.loads(path.read_text())["owner"] == "run me"
        assert said[0].startswith(f"run other (process {process.pid}, since 2")
    assert list(path.parent.iterdir()) == []


def test_a_lock_is_held_as_long_as_anything_has_inherited_it(tmp_path):
    path = tmp_path / "x.lock"
    with hold(path, "run me", print) as descriptor:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
        inode = path.stat().st_ino
    said = []

    def on_wait(who: str) -> None:
        said.append(who)
        child.kill()
        child.wait()

    with hold(path, "run next", on_wait):
        assert said and path.stat().st_ino == inode
    assert not path.exists()


def test_a_file_that_was_removed_by_its_holder_is_not_taken_for_the_lock(tmp_path):
    path = tmp_path / "x.lock"
    with (
        another_holder(path, 0.5),
        hold(path, "run me", lambda who: None),
        holder(path, 0) as third,
    ):
        assert third.stdout.readline().startswith("waits: run me (process")
        third.kill()


def test_a_file_that_is_removed_between_its_opening_and_its_locking_is_not_the_lock(
    tmp_path, monkeypatch
):
    path = tmp_path / "x.lock"

    def remove_first(descriptor, operation, *, real=fcntl.flock):
        monkeypatch.undo()
        path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with hold(path, "run me", print) as descriptor:
        assert os.path.samestat(os.fstat(descriptor), path.stat())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"owner": "x"}'])
def test_whatever_a_lock_file_holds_it_can_be_locked(tmp_path, content):
    path = tmp_path / "x.lock"
    path.write_bytes(content)
    assert describe_holder(path) == "another run"
    with hold(path, "run me", print):
        pass


@pytest.mark.usefixtures("machine")
def test_the_machines_lock_names_process_and_user_whatever_the_temporary_directory(tmp_path):
    said = []
    with another_holder("", env={**os.environ, "TMPDIR": str(tmp_path)}) as process:

        def on_wait(who: str) -> None:
            said.append(who)
            process.kill()

        with hold_machine(on_wait):
            pass
        assert f"process {process.pid} of user" in said[0]
    assert list(tmp_path.iterdir()) == [], "there is no file that could be somebody else's, or stay"


@pytest.mark.usefixtures("machine")
def test_the_machines_lock_is_shared_with_other_users():
    if os.getuid() != 0:
        pytest.skip("cannot become another user here: needs root")
    with hold_machine(print), holder("", 0, user=65534) as other:
        assert other.stdout.readline().startswith(f"waits: process {os.getpid()} of user root")
        other.kill()
    with another_holder("", user=65534) as other, hold_machine(lambda who: other.kill()):
        pass


DAMAGED = [
    "",
    "{",
    '{"write": {"a": {"pid": 1',
    "[]",
    "null",
    '{"write": []}',
    '{"write": {"a": {}}}',
    '{"read": {"a": [1]}}',
    '{"write": {"a": {"pid": "x", "cmd": ""}}}',
]


@pytest.fixture
def rwlock(tmp_path) -> Path:
    folder = tmp_path / ".dvc" / "tmp"
    folder.mkdir(parents=True)
    return folder / "rwlock"


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_lock_file_of_dvc_is_emptied(rwlock, tmp_path, content):
    rwlock.write_text(content)
    repair_locks(tmp_path)
    assert json.loads(rwlock.read_text()) == {}


def test_a_damaged_lock_file_stays_while_a_dvc_process_of_the_project_lives(rwlock, tmp_path):
    rwlock.write_text("")
    (tmp_path / "dvc").write_text("import time; print(flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, "dvc"], cwd=tmp_path, stdout=subprocess.PIPE) as dvc:
        dvc.stdout.readline()
        repair_locks(tmp_path)
        assert rwlock.read_text() == ""
        dvc.kill()
        dvc.wait()
        repair_locks(tmp_path)
        assert rwlock.read_text() == "{}"


def test_entries_of_processes_that_are_gone_or_have_become_others_are_removed(rwlock, tmp_path):
    with subprocess.Popen(["sleep", "60"]) as living, subprocess.Popen(["true"]) as dead:
        dead.wait()
        ours, gone = (
            {"pid": living.pid, "cmd": "/bin/sleep 60"},
            {"pid": dead.pid, "cmd": "dvc repro"},
        )
        reused = {"pid": living.pid, "cmd": "dvc repro --single-item shard"}
        entries = {
            "write": {"a": ours, "b": gone, "c": reused},
            "read": {"d": [ours, gone], "e": [reused]},
        }
        rwlock.write_text(json.dumps(entries))
        repair_locks(tmp_path)
        living.kill()
    assert json.loads(rwlock.read_text()) == {"write": {"a": ours}, "read": {"d": [ours]}}


def test_who_waits_for_a_folder_keeps_nobody_from_measuring_elsewhere(tmp_path):
    path, waits, has_both = tmp_path / "x.lock", [], threading.Event()

    def wait() -> None:
        with hold_machine_and_folder(path, "run x", waits.append) as descriptors:
            if len(descriptors) == 2:
                has_both.set()

    waiting = threading.Thread(target=wait)
    with hold(path, "run other", pytest.fail):
        waiting.start()
        deadline = time.monotonic() + 10
        while not waits and time.monotonic() < deadline:
            time.sleep(0.01)
        with hold_machine(pytest.fail):
            assert not has_both.is_set()
    waiting.join(timeout=10)
    assert has_both.is_set() and "run other" in waits[0]


def test_a_machine_that_refuses_the_lock_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_lock, "MACHINE_ADDRESS", str(tmp_path / "absent" / "socket"))
    refused = pytest.raises(ServiceFailed, match="allows no abstract socket")
    with refused, hold_machine(pytest.fail):
        pass
