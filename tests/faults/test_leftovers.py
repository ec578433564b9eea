"""A kill before any of a process's file operations leaves one complete output, and nothing after
the next start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.project import run_python
from throughline.config.cli import clear_after_kills
from throughline.models.model_files import save_model
from throughline.shared import files
from throughline.shared.errors import AlreadyRunning
from throughline.shared.file_lock import hold
from throughline.shared.files import atomic_file, clear_leftovers, resumable_folder, write_json
from throughline.shared.host_mark import host_mark
from throughline.shared.layout import Layout
from throughline.shared.output_lock import hold_outputs
from throughline.shared.scratch import SCRATCH, Scratch, clear_scratch

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
KILLED = 9
DESCRIPTORS = Path("/proc/self/fd")
ANOTHER_HOST, GONE = "0badcafe", 99_999_999  # no process has this number


def killed_at(operation: int, work) -> bool:
    """Do `work` in a forked child that is killed before its file operation of this number; returns
    whether it got there.

    Python announces each of them to audit hooks.
    """
    process = os.fork()
    if process == 0:
        left = operation

        def hook(event: str, arguments: tuple) -> None:
            nonlocal left
            # Opening for reading changes nothing.
            changes = event.startswith(("os.", "shutil.")) or (
                event == "open" and arguments[1] != "r"
            )
            if changes:
                left -= 1
                if left < 0:
                    os._exit(KILLED)  # at once, as a kill

        sys.addaudithook(hook)
        work()
        os._exit(0)
    _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED)
    return code == KILLED


def write(path: Path, version: str) -> None:
    with resumable_folder(path, key=version) as folder:
        for name in ("one", "two"):
            (folder / name).write_text(version)
        write_json(folder / "index.json", version)


def version_of(path: Path) -> str:
    names = {file.name for file in path.iterdir()}
    assert names == {"one", "two", "index.json"}
    (version,) = {(path / name).read_text().strip().strip('"') for name in names}
    return version


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_folder_is_replaced_as_a_whole_whenever_that_is_killed(tmp_path, monkeypatch, exchange):
    if not exchange:  # as file systems that cannot
        monkeypatch.setattr(files, "RENAME_EXCHANGE", 1 << 30)
    operation, versions, between = 0, set(), 0
    while True:
        path = tmp_path / str(operation) / "shards"
        path.parent.mkdir()
        write(path, "old")
        if not killed_at(operation, lambda path=path: write(path, "new")):
            break
        between += not path.exists()
        with pytest.raises(InterruptedError), resumable_folder(path, key="new"):
            raise InterruptedError
        versions.add(version_of(path))  # the old one is back, at the latest now
        write(path, "new")
        assert version_of(path) == "new"
        assert [one.name for one in path.parent.iterdir()] == ["shards"]
        operation += 1
    assert versions == {"old", "new"} and operation > 10
    assert bool(between) is not exchange, "a kill between two renames leaves none"


def test_leftovers_of_versions_that_named_them_by_process_are_removed(tmp_path):
    path = tmp_path / "shards"
    write(path, "old")
    path.rename(tmp_path / ".shards.4711.old")
    with pytest.raises(InterruptedError), resumable_folder(path, key="new"):
        raise InterruptedError
    assert version_of(path) == "old" and not list(tmp_path.glob("*.old"))


def test_temporary_files_go_when_their_process_is_gone(tmp_path):
    def work() -> None:
        with atomic_file(tmp_path / "runs" / "naive" / "input.json") as temporary:
            temporary.write_text("{}")
            os._exit(KILLED)  # at once, as a kill

    assert killed_at(1000, work)
    folder = tmp_path / "runs" / "naive"
    assert len(list(folder.iterdir())) == 1
    with atomic_file(folder / "train.json") as temporary:
        temporary.write_text("{}")
        clear_after_kills(Layout(tmp_path))
        assert temporary.exists(), "its process is alive"
    assert [path.name for path in folder.iterdir()] == ["train.json"]
    clear_leftovers(tmp_path / "not there")


def test_a_model_that_was_being_saved_leaves_nothing(tmp_path):
    import keras

    class Killed(keras.Model):
        def save(self, path):
            path.write_bytes(b"half a model")
            os._exit(KILLED)

    model = Killed()
    assert killed_at(1000, lambda: save_model(model, tmp_path / "model.keras"))
    assert len(list(tmp_path.iterdir())) == 1
    clear_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_within_an_interrupted_folder_are_cleared_before_it_goes_on(tmp_path):
    def work() -> None:
        with (
            resumable_folder(tmp_path / "data", key="k") as folder,
            atomic_file(folder / "converted" / "x.png") as temporary,
        ):
            temporary.write_text("half")
            os._exit(KILLED)  # at once, as a kill

    assert killed_at(1000, work)
    with resumable_folder(tmp_path / "data", key="k") as folder:
        assert list((folder / "converted").iterdir()) == []


SCRATCHING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from throughline.shared.scratch import Scratch
scratch = Scratch()
print(scratch.new_folder(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("end", [subprocess.Popen.kill, subprocess.Popen.terminate])
def test_scratch_folders_of_ended_processes_are_cleared_by_the_next(tmp_path, end):
    with subprocess.Popen(
        [sys.executable, "-c", SCRATCHING, str(ROOT)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            folder = Path(process.stdout.readline().strip())
            assert folder.is_relative_to(tmp_path / SCRATCH)
            clear_scratch(tmp_path)
            assert folder.exists(), "its process is alive"
            end(process)
        finally:
            process.kill()  # a failure does not wait for its end
    assert folder.exists()
    own = Scratch(tmp_path)
    new = own.folder
    assert [one for one in (tmp_path / SCRATCH).iterdir() if one.is_dir()] == [new]
    del own
    assert not list((tmp_path / SCRATCH).iterdir())


def test_processes_of_a_host_name_it_alike(tmp_path):
    said = run_python("from throughline.shared.host_mark import host_mark\nprint(host_mark())")
    assert said.stdout.strip() == host_mark()
    with atomic_file(tmp_path / "x") as temporary:
        assert temporary.name.startswith(f".x.{host_mark()}-{os.getpid()}-")
        temporary.write_text("x")


def age(path: Path) -> None:
    """Let a file or folder be two days old."""
    then = time.time() - 2 * 86_400
    os.utime(path, (then, then))


def test_scratch_folders_of_another_host_are_cleared_when_a_day_old(tmp_path):
    other = tmp_path / SCRATCH / f"{ANOTHER_HOST}-{GONE}-0123abcd"
    other.mkdir(parents=True)
    clear_scratch(tmp_path)
    assert other.exists(), "whose process nobody can ask here"
    age(other)
    with hold(other.with_name(f"{other.name}.lock"), "its process", print):
        clear_scratch(tmp_path)
        assert other.exists(), "on a file system that shares locks"
    clear_scratch(tmp_path)
    assert not list((tmp_path / SCRATCH).iterdir())


@pytest.mark.parametrize("host", [f"{ANOTHER_HOST}-", ""], ids=["another host", "not known"])
def test_temporary_files_of_another_host_go_when_a_day_old(tmp_path, host):
    left = tmp_path / f".input.json.{host}{GONE}-{'0' * 16}.tmp"
    left.write_text("half")
    clear_leftovers(tmp_path)
    assert left.exists(), "its process may be alive"
    age(left)
    clear_leftovers(tmp_path)
    assert not left.exists()


def is_of(descriptor: Path, file: Path) -> bool:
    """Whether a descriptor is of this file; the one that lists them is gone by then."""
    with suppress(OSError):
        return descriptor.readlink() == file
    return False


def test_a_folder_is_locked_by_a_file_that_is_open_for_writing(tmp_path):
    """As NFS needs it to tell other machines."""
    out = tmp_path / "runs" / "naive"
    with hold_outputs(out, "training naive"):
        (lock,) = out.iterdir()
        (number,) = (each.name for each in DESCRIPTORS.iterdir() if is_of(each, lock))
        opened = (DESCRIPTORS.parent / "fdinfo" / number).read_text()
        assert "FLOCK" in opened
        assert int(opened.split("flags:")[1].split()[0], 8) & os.O_ACCMODE == os.O_RDWR
        with (
            pytest.raises(AlreadyRunning, match="another process is training naive"),
            hold_outputs(out, "training naive"),
        ):
            raise AssertionError
    assert not list(out.iterdir())


def test_a_pipeline_that_caches_nothing_makes_no_scratch_folder(tmp_path):
    Scratch(tmp_path)
    assert not list(tmp_path.iterdir())


AUTOGRAPH = """
import time
from pathlib import Path

import tensorflow as tf

from throughline.shared.scratch import temporary_files_in_scratch

with temporary_files_in_scratch(Path.cwd()):
    @tf.function
    def count(limit):
        if limit > 2:
            limit += 1
        return limit
    count(tf.constant(3))
    print("traced", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_what_tensorflow_writes_for_itself_is_cleared_after_a_kill(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "traces.py").write_text(AUTOGRAPH)
    variables = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "traces.py"],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "traced\n"
        process.kill()
    assert not list((tmp_path / "tmp").iterdir())
    assert list((tmp_path / SCRATCH).glob("*/__autograph_generated_file*")), "it has written one"
    clear_scratch(tmp_path)
    assert not list((tmp_path / SCRATCH).iterdir())
