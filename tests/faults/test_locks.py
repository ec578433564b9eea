"""Locks are the kernel's: whoever is gone holds nothing, and what it left keeps nobody out."""

import contextlib
import fcntl
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.run.dvc_calls import (
    find_site_problem,
    repair_locks,
    set_damaged_lock_aside,
    stale_stages,
)
from flows.run.locks import hold_machine_and_folder
from tests.support.project import ROOT
from tests.support.skips import need
from tests.support.worktrees import cheap_project
from throughline.shared import machine_lock
from throughline.shared.errors import ServiceFailed, StageFailed, WorkspaceProblem
from throughline.shared.file_lock import describe_holder, hold
from throughline.shared.machine_lock import hold_machine

pytestmark = pytest.mark.integration

# Holds the machine's lock until its input ends. No Prefect, no TensorFlow: it is there in a tenth
# of a second.
HOLD = """
import os, sys
root, address, user = sys.argv[1:]
sys.path.insert(0, root)
from throughline.shared import machine_lock
machine_lock.MACHINE_ADDRESS = address.replace("@", chr(0))
os.setuid(int(user))
with machine_lock.hold_machine(lambda who: print("waits:", who, flush=True)):
    print("held", flush=True)
    sys.stdin.read()
"""
NOBODY = 65534


@contextlib.contextmanager
def other_user(first: str = "held\n", **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process of another user that waits for the lock and holds it, once it has said `first`."""
    need("root")
    address = machine_lock.MACHINE_ADDRESS.replace("\0", "@")
    command = [sys.executable, "-c", HOLD, str(ROOT), address, str(NOBODY)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | variables}
    with subprocess.Popen(command, text=True, **streams) as process:
        try:
            assert process.stdout.readline().startswith(first)
            yield process
        finally:
            process.kill()


@pytest.fixture
def machine(monkeypatch):
    """The machine's lock at an address of this test's own, for this process and its children."""
    monkeypatch.setattr(machine_lock, "MACHINE_ADDRESS", f"\0throughline-test-{os.getpid()}")


def test_a_lock_is_held_as_long_as_anything_has_inherited_it(tmp_path):
    path, said = tmp_path / "locks" / "x.lock", []
    with hold(path, "run me", print) as descriptor:
        assert json.loads(path.read_text())["owner"] == "run me"
        child = subprocess.Popen(["sleep", "infinity"], pass_fds=(descriptor,))
        inode = path.stat().st_ino
    with hold(path, "run next", lambda who: (said.append(who), child.kill())):
        assert said[0].startswith(f"run me (process {os.getpid()}, since 2")
        assert path.stat().st_ino == inode
    child.wait()
    assert list(path.parent.iterdir()) == []


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


@pytest.mark.parametrize("content", ["{", "[]", '{"owner": "x"}'])
def test_whatever_a_lock_file_holds_it_can_be_locked(tmp_path, content):
    path = tmp_path / "x.lock"
    path.write_text(content)
    assert describe_holder(path) == "another run"
    with hold(path, "run me", print):
        pass


def test_the_machines_lock_is_shared_with_other_users_whatever_their_temporary_directory(
    machine, tmp_path
):
    waits, said = f"waits: process {os.getpid()} of user root", []
    with hold_machine(print), other_user(first=waits):
        pass
    with other_user(TMPDIR=str(tmp_path)) as other:
        with hold_machine(lambda who: (said.append(who), other.kill())):
            pass
        assert said[0].startswith(f"process {other.pid} of user ")
    assert list(tmp_path.iterdir()) == [], "there is no file that could be somebody else's, or stay"


@pytest.fixture
def rwlock(tmp_path) -> Path:
    folder = tmp_path / ".dvc" / "tmp"
    folder.mkdir(parents=True)
    return folder / "rwlock"


def test_a_damaged_lock_file_of_dvc_is_emptied_unless_a_dvc_process_of_the_project_lives(
    rwlock, tmp_path
):
    def repaired(content: str) -> str:
        rwlock.write_text(content)
        repair_locks(tmp_path)
        return rwlock.read_text()

    (tmp_path / "dvc").write_text("import signal; print(flush=True); signal.pause()")
    with subprocess.Popen([sys.executable, "dvc"], cwd=tmp_path, stdout=subprocess.PIPE) as dvc:
        dvc.stdout.readline()
        meanwhile = repaired("")
        dvc.kill()
    assert meanwhile == ""
    damaged = ("", "{", "null", '{"write": []}', '{"read": {"a": [1]}}')
    assert {repaired(content) for content in damaged} == {"{}"}


def test_entries_of_processes_that_are_gone_or_have_become_others_are_removed(rwlock, tmp_path):
    with subprocess.Popen(["sleep", "infinity"]) as living, subprocess.Popen(["true"]) as dead:
        dead.wait()
        ours = {"pid": living.pid, "cmd": "/bin/sleep infinity"}
        gone = {"pid": dead.pid, "cmd": "dvc repro"}
        reused = {"pid": living.pid, "cmd": "dvc repro --single-item shard"}
        read = {"d": [ours, gone], "e": [reused]}
        rwlock.write_text(json.dumps({"write": {"a": ours, "b": gone, "c": reused}, "read": read}))
        repair_locks(tmp_path)
        living.kill()
    assert json.loads(rwlock.read_text()) == {"write": {"a": ours}, "read": {"d": [ours]}}


def test_who_waits_for_a_folder_keeps_nobody_from_measuring_elsewhere(machine, tmp_path):
    path, waits = tmp_path / "x.lock", queue.Queue()

    def wait() -> int:
        with hold_machine_and_folder(path, "run x", waits.put) as descriptors:
            return len(descriptors)

    with ThreadPoolExecutor(1) as pool:
        with hold(path, "run other", pytest.fail):
            held = pool.submit(wait)
            assert "run other" in waits.get(timeout=240)
            with hold_machine(pytest.fail):
                assert not held.done()
        assert held.result(timeout=240) == 2


def test_a_machine_that_refuses_the_lock_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_lock, "MACHINE_ADDRESS", str(tmp_path / "absent" / "socket"))
    with pytest.raises(ServiceFailed, match="allows no abstract socket"), hold_machine(pytest.fail):
        pass


CUT = b"schema: '2.0'\nsta"


@pytest.mark.parametrize("damaged", [b"", CUT, CUT + b"ges:\n  report:\n    cmd: 'echo", b"\xff\0"])
def test_a_damaged_dvc_lock_is_set_aside(tmp_path, damaged):
    (tmp_path / "dvc.lock").write_bytes(damaged)
    assert set_damaged_lock_aside(tmp_path)
    assert (tmp_path / "dvc.lock.damaged").read_bytes() == damaged
    assert not (tmp_path / "dvc.lock").exists()


@pytest.mark.slow
def test_databases_that_dvc_may_not_write_are_named_with_the_command_that_helps(tmp_path):
    project, site = cheap_project(tmp_path / "project"), tmp_path / "taken"
    site.touch()  # no user may make a folder below it
    taken = {"DVC_SITE_CACHE_DIR": str(site)}
    with pytest.raises(WorkspaceProblem, match=r"`export DVC_SITE_CACHE_DIR=.*site`"):
        stale_stages(project, taken, print)
    configure = ("dvc", "config", "--local", "core.site_cache_dir")
    subprocess.run([*configure, str(site)], cwd=project, check=True)
    with pytest.raises(WorkspaceProblem, match=r"may not write .*taken") as failed:
        stale_stages(project, {}, print)
    command = str(failed.value).split("`")[1]
    subprocess.run(command.split(), cwd=project, check=True)
    assert stale_stages(project, {}, print) == {"report"}
    assert (project / ".dvc" / "tmp" / "site").is_dir()


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("ERROR: unexpected error - [Errno 13] Permission denied: '/site/repo/1'", True),
        ("ERROR: unexpected error - attempt to write a readonly database", True),
        ("ERROR: unexpected error - [Errno 13] Permission denied: '/mnt/cache/files'", False),
        ("PermissionError: [Errno 13] Permission denied: '/site/own'", False),
    ],
)
def test_only_what_dvc_says_of_its_databases_is_taken_for_it(tmp_path, said, named):
    found = find_site_problem(tmp_path, said, {"DVC_SITE_CACHE_DIR": "/site"})
    assert bool(found) is named


@pytest.mark.slow
def test_stages_of_a_damaged_dvc_lock_run_again_and_a_merge_conflict_is_left_alone(tmp_path):
    project, said = cheap_project(tmp_path / "project"), []
    lock = project / "dvc.lock"
    lock.write_bytes(CUT)
    assert stale_stages(project, {}, said.append) == {"report"}
    assert "git checkout dvc.lock" in said[0]
    lock.write_text("<<<<<<< HEAD\nschema: '2.0'\n")
    with pytest.raises(StageFailed, match=r"dvc\.lock") as failed:
        stale_stages(project, {}, print)
    assert "Traceback" not in str(failed.value) and lock.exists()
