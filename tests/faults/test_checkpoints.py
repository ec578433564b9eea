"""Checkpoints after power failures, damage, and changes of what they belong to."""

import errno
import os
import shutil
import stat

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from throughline.training import checkpoint_store
from throughline.training.checkpoint_store import MAX_OTHERS, STATE, CheckpointStore

pytestmark = pytest.mark.integration

WORK = {"data": "d", "code": "c"}
POSITIONS = [(0, 1), (1, 0), (1, 3)]
NEWEST = "at-000001-0000000003"


def values(position):
    """What the variables are at a position."""
    return [np.full((50, 40), 100 * position[0] + position[1], np.float32), np.int64(position[1])]


def variables(position=(9, 9)):
    return [tf.Variable(value) for value in values(position)]


def write(folder, *positions, work=WORK):
    for position in positions:
        state = {"position": list(position), "run_id": "r", "loss": float("nan")}
        callbacks = {"callbacks.pickle": b"state"}
        CheckpointStore(folder, work).write(
            variables(position), state, callbacks, position=position
        )


def restored(folder, work=WORK, **options):
    """The position that a new process goes on from, with its own values; None: the beginning."""
    loaded, store = variables(), CheckpointStore(folder, work)
    saved = store.restore(loaded, **options)
    assert saved is None or (saved.state["loss"], store.run["run_id"]) == ("NaN", "r")
    position = None if saved is None else tuple(saved.state["position"])
    for variable, value in zip(loaded, values(position or (9, 9)), strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    return position


class Disk:
    """The trace of what happens below a folder: before each call into the system, all entries of
    folders and contents of files, by inode, as programs see them, and what has reached the disk:
    what they were when they were last flushed.
    """

    def __init__(self, root):
        self.root, self.moments = root, []
        self.contents, self.entries = {}, {root.stat().st_ino: {}}

    def note(self):
        folders, files = {}, {}
        for path in [self.root, *self.root.rglob("*")]:
            if path.is_dir():
                folders[path.stat().st_ino] = {it.name: it.stat().st_ino for it in path.iterdir()}
            else:
                files[path.stat().st_ino] = path.read_bytes()
        self.moments.append((folders, files, self.entries.copy(), self.contents.copy()))
        return folders, files

    def flushed(self, inode):
        folders, files = self.note()
        if inode in folders:
            self.entries[inode] = folders[inode]
        else:
            self.contents[inode] = files[inode]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A folder whose every change is traced; inodes are not used again while a link keeps them."""
    for name in ("run", "inodes"):
        (tmp_path / name).mkdir()
    traced = Disk(tmp_path / "run")

    def before(function):
        def call(*arguments, **named):
            for path in traced.root.rglob("*"):
                kept = tmp_path / "inodes" / str(path.stat().st_ino)
                if path.is_file() and not kept.exists():
                    os.link(path, kept)
            traced.note()
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(os, "fsync", lambda file: traced.flushed(os.fstat(file).st_ino))
    for name in ("rename", "replace", "mkdir", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, before(getattr(os, name)))
    return traced


def lay_out(moment, into, inode, *, early, torn):
    """Lay out what a power failure at a moment leaves.

    early: whether the file system has written all names, or only those that were flushed. torn:
    whether of data that were not flushed half is there, or nothing.
    """
    folders, files, entries, contents = moment
    into.mkdir()
    for name, child in (folders if early else entries).get(inode, {}).items():
        if child in files or child in contents:
            lost = files.get(child, b"")
            half = lost[: len(lost) // 2] if torn else b""
            (into / name).write_bytes(contents.get(child, half))
        else:
            lay_out(moment, into / name, child, early=early, torn=torn)


@pytest.mark.parametrize(
    ("early", "torn"), slow_but_first([(False, False), (True, True), (True, False)])
)
def test_a_power_failure_at_any_instant_leaves_the_old_or_the_new_checkpoint(
    disk, tmp_path, early, torn, monkeypatch
):
    written = []  # how many moments had passed when a checkpoint was complete
    for position in POSITIONS:
        write(disk.root / "kept", position)
        written.append(len(disk.moments))
    monkeypatch.undo()
    assert len(disk.moments) > 30
    for number, moment in enumerate(disk.moments):
        folder = tmp_path / "after"
        shutil.rmtree(folder, ignore_errors=True)
        lay_out(moment, folder, disk.root.stat().st_ino, early=early, torn=torn)
        complete = sum(number >= count for count in written)
        allowed = {POSITIONS[complete - 1] if complete else None, POSITIONS[complete]}
        assert restored(folder / "kept") in allowed, f"moment {number}"
        write(folder / "kept", (2, 0))
        assert restored(folder / "kept") == (2, 0), "what a failure left is in nobody's way"


def test_where_a_folder_cannot_be_flushed_checkpoints_are_kept_all_the_same(tmp_path, monkeypatch):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path, (1, 0))
    assert restored(tmp_path) == (1, 0)


def edit(path, change):
    path.write_text(change(path.read_text()))


DAMAGES = {
    "data truncated": lambda path: next(path.glob("*.data-*")).write_bytes(b"x" * 100),
    "index missing": lambda path: (path / "variables.index").unlink(),
    "state truncated": lambda path: edit(path / STATE, lambda text: text[:40]),
    "state of another form": lambda path: edit(path / STATE, lambda text: "[1]"),
    "state changed": lambda path: edit(path / STATE, lambda text: text.replace('"r"', '"s"')),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_checkpoint_the_one_before_is_used(tmp_path, damage, capsys):
    write(tmp_path, *POSITIONS)
    (before, newest) = sorted(tmp_path.glob("work-*/*"))
    DAMAGES[damage](newest)
    assert restored(tmp_path) == POSITIONS[-2]
    assert f"{NEWEST} is damaged" in capsys.readouterr().out
    DAMAGES[damage](before)
    assert restored(tmp_path) is None


@pytest.mark.parametrize(
    "more", [[np.ones(3, np.float32)], [np.int64(1), np.float32(2)]], ids=["other", "one more"]
)
def test_a_checkpoint_that_does_not_fit_is_reported_and_changes_nothing(tmp_path, capsys, more):
    write(tmp_path, POSITIONS[-1])
    unfitting = [np.ones((50, 40), np.float32), *more]
    other = [tf.Variable(value) for value in unfitting]
    assert CheckpointStore(tmp_path, WORK).restore(other) is None
    for variable, value in zip(other, unfitting, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert "cannot be loaded" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("*/*")] == [f"aside-{NEWEST}"]


def test_a_checkpoint_whose_callbacks_cannot_be_read_is_set_aside(tmp_path, capsys):
    def check(saved):
        if saved.state["position"] == list(POSITIONS[-1]):
            raise ValueError("no such class")

    write(tmp_path, *POSITIONS)
    assert restored(tmp_path, check=check) == POSITIONS[-2]
    assert "cannot be loaded (ValueError: no such class)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (checkpoint_store, "digest_file", OSError(errno.EIO, "input/output error")),
        (tf.train.Checkpoint, "read", tf.errors.ResourceExhaustedError(None, None, "no room")),
    ],
)
def test_an_error_that_proves_no_damage_leaves_the_checkpoints(
    tmp_path, monkeypatch, owner, name, error
):
    def fail(*_, **__):
        raise error

    write(tmp_path, *POSITIONS)
    with monkeypatch.context() as patched, pytest.raises(type(error)):
        patched.setattr(owner, name, fail)
        restored(tmp_path)
    assert restored(tmp_path) == POSITIONS[-1]


def test_checkpoints_of_a_few_other_works_stay_and_what_differs_is_named(tmp_path, capsys):
    """A start with a mistyped parameter costs nothing: with the right one it goes on."""
    works = [{**WORK, "code": str(number)} for number in range(6)]
    for work in works:
        assert restored(tmp_path, work) is None
        write(tmp_path, (0, 1), work=work)
    assert "not continued, because its code differs" in capsys.readouterr().out
    assert len([*tmp_path.glob("work-*")]) == MAX_OTHERS + 1
    assert [restored(tmp_path, work) for work in works[-2:]] == [(0, 1), (0, 1)]
