"""Checkpoints after power failures, damage, and changes of what they belong to."""

import errno
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from throughline.training import checkpoint_store
from throughline.training.checkpoint_store import MAX_OTHERS, STATE, CheckpointStore

pytestmark = pytest.mark.integration

WORK = {"data": "d", "code": "c"}
POSITIONS = [(0, 1), (1, 0), (1, 3)]


def values(position):
    """What the variables are at a position."""
    return [np.full((50, 40), 100 * position[0] + position[1], np.float32), np.int64(position[1])]


def variables(position=(9, 9)):
    return [tf.Variable(value) for value in values(position)]


def write(store, *positions):
    for position in positions:
        state = {"position": list(position), "run_id": "r"}
        store.write(variables(position), state, {"callbacks.pickle": b"state"}, position=position)


def restored(folder, work=WORK):
    """The position that a new process goes on from, with its own values; None: the beginning."""
    loaded = variables()
    saved = CheckpointStore(folder, work).restore(loaded)
    position = None if saved is None else tuple(saved.state["position"])
    for variable, value in zip(loaded, values(position or (9, 9)), strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    return position


@dataclass
class Disk:
    """The trace of what happens below a folder: before each call into the system, all files and
    folders as they are.

    What has reached the disk: of a file its content when it was last flushed, of a folder its
    entries when it was last flushed.
    """

    root: Path
    moments: list[tuple[dict, dict, dict]] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)  # of files, by inode
    entries: dict[int, dict[str, int]] = field(default_factory=dict)  # of folders, by inode

    def note(self):
        """One instant, as programs see it and on the disk: entries by folder, contents by file."""
        folders, files = {}, {}
        for path in [self.root, *self.root.rglob("*")]:
            if path.is_dir():
                folders[path.stat().st_ino] = {it.name: it.stat().st_ino for it in path.iterdir()}
            else:
                files[path.stat().st_ino] = path.read_bytes()
        entries = {inode: dict(names) for inode, names in self.entries.items()}
        self.moments.append((folders, files, {"contents": dict(self.contents), "entries": entries}))

    def flushed(self, descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        inode = os.fstat(descriptor).st_ino
        if path.is_dir():
            self.entries[inode] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        else:
            self.contents[inode] = path.read_bytes()


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A folder whose every change is traced; inodes are not used again while a link keeps them."""
    traced = Disk(tmp_path / "run")
    traced.root.mkdir()
    traced.entries[traced.root.stat().st_ino] = {}
    (keep := tmp_path / "inodes").mkdir()

    def before(function):
        def call(*arguments, **named):
            for path in traced.root.rglob("*"):
                if path.is_file() and not (keep / str(path.stat().st_ino)).exists():
                    os.link(path, keep / str(path.stat().st_ino))
            traced.note()
            return function(*arguments, **named)

        return call

    def fsync(descriptor, *, real=os.fsync):
        traced.note()
        real(descriptor)
        traced.flushed(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace", "mkdir", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, before(getattr(os, name)))
    yield traced
    monkeypatch.undo()


def laid_out(moment, into, root, *, entries, torn):
    """Lay out what a power failure at a moment leaves.

    entries: "seen": all names as programs saw them (the file system wrote them early) · "flushed":
    only what was flushed. torn: of data that were not flushed half is there, else nothing.
    """
    folders, files, flushed = moment
    empty: dict = {inode: {} for inode in folders}
    names = folders if entries == "seen" else {**empty, **flushed["entries"]}

    def lay(inode, path):
        path.mkdir()
        for name, child in names.get(inode, {}).items():
            if child in files or child in flushed["contents"]:
                lost = files.get(child, b"")
                half = lost[: len(lost) // 2] if torn else b""
                (path / name).write_bytes(flushed["contents"].get(child, half))
            else:
                lay(child, path / name)

    lay(root, into)


@pytest.mark.parametrize(
    ("entries", "torn"), slow_but_first([("flushed", False), ("seen", True), ("seen", False)])
)
def test_a_power_failure_at_any_instant_leaves_the_old_or_the_new_checkpoint(
    disk, tmp_path, entries, torn, monkeypatch, capsys
):
    store, root = CheckpointStore(disk.root / ".checkpoint", WORK), disk.root.stat().st_ino
    written = []  # how many moments had passed when a checkpoint was complete
    for position in POSITIONS:
        write(store, position)
        written.append(len(disk.moments))
    monkeypatch.undo()
    assert len(disk.moments) > 30
    for number, moment in enumerate(disk.moments):
        folder = tmp_path / "after"
        shutil.rmtree(folder, ignore_errors=True)
        laid_out(moment, folder, root, entries=entries, torn=torn)
        complete = sum(number >= count for count in written)
        allowed = {POSITIONS[complete - 1] if complete else None, POSITIONS[complete]}
        assert restored(folder / ".checkpoint") in allowed, f"moment {number}"
        following = CheckpointStore(folder / ".checkpoint", WORK)
        assert following.restore(variables()) is None or following.run_id == "r"
        write(following, (2, 0))
        assert restored(folder / ".checkpoint") == (2, 0), "what a failure left is in nobody's way"


def test_where_a_folder_cannot_be_flushed_checkpoints_are_kept_all_the_same(tmp_path, monkeypatch):
    def fsync(descriptor, *, real=os.fsync):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(CheckpointStore(tmp_path, WORK), (1, 0))
    assert restored(tmp_path) == (1, 0)


DAMAGES = {
    "data truncated": lambda path: next(path.glob("*.data-*")).write_bytes(b"x" * 100),
    "index missing": lambda path: (path / "variables.index").unlink(),
    "state truncated": lambda path: (path / STATE).write_text((path / STATE).read_text()[:40]),
    "state missing": lambda path: (path / STATE).unlink(),
    "state of another form": lambda path: (path / STATE).write_text("[1]"),
    "state changed": lambda path: (path / STATE).write_text(
        (path / STATE).read_text().replace('"run_id": "r"', '"run_id": "s"')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_checkpoint_the_one_before_is_used(tmp_path, damage, capsys):
    write(CheckpointStore(tmp_path, WORK), *POSITIONS)
    (work,) = tmp_path.iterdir()
    assert len([*work.iterdir()]) == 2, "the newest are kept"
    DAMAGES[damage](work / "at-000001-0000000003")
    assert restored(tmp_path) == (1, 0)
    assert "at-000001-0000000003 is damaged" in capsys.readouterr().out
    assert (work / "aside-at-000001-0000000003").is_dir()
    DAMAGES[damage](work / "at-000001-0000000000")
    assert restored(tmp_path) is None
    write(CheckpointStore(tmp_path, WORK), (1, 1))
    assert restored(tmp_path) == (1, 1)


@pytest.mark.parametrize(
    "more", [[np.ones(3, np.float32)], [np.int64(1), np.float32(2)]], ids=["other", "one more"]
)
def test_a_checkpoint_that_does_not_fit_is_reported_and_changes_nothing(tmp_path, capsys, more):
    write(CheckpointStore(tmp_path, WORK), (1, 3))
    unfitting = [np.ones((50, 40), np.float32), *more]
    other = [tf.Variable(value) for value in unfitting]
    assert CheckpointStore(tmp_path, WORK).restore(other) is None
    for variable, value in zip(other, unfitting, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert "cannot be loaded" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("*/*")] == ["aside-at-000001-0000000003"]


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (checkpoint_store, "digest_file", OSError(errno.EIO, "input/output error")),
        (tf.train.Checkpoint, "read", tf.errors.ResourceExhaustedError(None, None, "no room")),
    ],
    ids=["reading", "loading"],
)
def test_an_error_that_proves_no_damage_leaves_the_checkpoints(
    tmp_path, monkeypatch, owner, name, error
):
    write(CheckpointStore(tmp_path, WORK), *POSITIONS)

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises(type(error)):
            restored(tmp_path)
    assert restored(tmp_path) == POSITIONS[-1]


@pytest.mark.parametrize("part", WORK)
def test_a_checkpoint_of_other_work_stays_and_what_differs_is_named(tmp_path, part, capsys):
    """A start with a mistyped parameter costs nothing: with the right one it goes on."""
    write(CheckpointStore(tmp_path, WORK), *POSITIONS)
    other = {**WORK, part: "other"}
    assert restored(tmp_path, other) is None
    assert f"not continued, because its {part} differs" in capsys.readouterr().out
    write(CheckpointStore(tmp_path, other), (0, 1))
    assert (restored(tmp_path), restored(tmp_path, other)) == (POSITIONS[-1], (0, 1))


def test_only_a_few_other_works_are_kept(tmp_path):
    for number in range(6):
        store = CheckpointStore(tmp_path, {**WORK, "code": str(number)})
        store.restore(variables())
        write(store, (0, 1))
    assert len(list(tmp_path.glob("work-*"))) == MAX_OTHERS + 1
    assert restored(tmp_path, {**WORK, "code": "5"}) == (0, 1)


def test_a_checkpoint_of_a_training_whose_loss_is_no_number_is_used(tmp_path, capsys):
    state = {"rows": [{"epoch": 0, "val_loss": float("nan")}], "metrics": [[float("inf"), 2.0]]}
    CheckpointStore(tmp_path, WORK).write(variables(), state, {}, position=(1, 0))
    saved = CheckpointStore(tmp_path, WORK).restore(variables())
    assert saved.state["rows"] == [{"epoch": 0, "val_loss": "NaN"}]
    assert [float(value) for value in saved.state["metrics"][0]] == [float("inf"), 2]
    assert "damaged" not in capsys.readouterr().out


def test_a_checkpoint_whose_callbacks_cannot_be_read_is_set_aside(tmp_path, capsys):
    write(CheckpointStore(tmp_path, WORK), *POSITIONS)

    def check(saved):
        if saved.state["position"] == list(POSITIONS[-1]):
            raise ValueError("no such class")

    saved = CheckpointStore(tmp_path, WORK).restore(variables(), check=check)
    assert tuple(saved.state["position"]) == POSITIONS[-2]
    assert "cannot be loaded (ValueError: no such class)" in capsys.readouterr().out
