"""A kill before any file operation leaves one complete output, and nothing after the next start."""

import contextlib
import itertools
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support.kills import kills_at_each_operation
from tests.support.small_data import data_settings, picture, read_files, write_files
from tests.support.worktrees import age
from throughline.config.cli import clear_after_kills
from throughline.data import file_inspection, inspection_cache
from throughline.data.ingest import ingest
from throughline.models.model_files import save_model
from throughline.shared import files
from throughline.shared.file_lock import hold
from throughline.shared.files import atomic_file, clear_leftovers, resumable_folder, write_json
from throughline.shared.layout import Layout
from throughline.shared.scratch import SCRATCH, Scratch, clear_scratch

pytestmark = pytest.mark.integration

TWO_DAYS_S = 2 * 86_400
ANOTHER_HOST, GONE = "0badcafe", 99_999_999  # no process has this number


def write(path: Path, version: str) -> None:
    with resumable_folder(path, key=version) as folder:
        write_files(folder, {"one": version, "within/two": version})


def interrupt(path: Path, version: str) -> dict[str, bytes]:
    """Begin such work, and leave it whole but for its end; returns what it went on from."""
    with contextlib.suppress(InterruptedError), resumable_folder(path, key=version) as folder:
        found = read_files(folder)
        write_files(folder, {"one": version, "within/two": version})
        raise InterruptedError
    return found


def version_of(found: dict[str, bytes]) -> str:
    """The version of which all parts are there, and no other; "" if there is nothing."""
    versions = {content.decode() for content in found.values()} or {""}
    assert {*found} in ({"one", "within/two"}, set()) and len(versions) == 1
    return versions.pop()


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_as_a_whole_whenever_that_is_killed(tmp_path, monkeypatch, exchange):
    if not exchange:  # as file systems that cannot
        monkeypatch.setattr(files, "RENAME_EXCHANGE", 1 << 30)
    path, versions, between = tmp_path / "shards", [], 0
    write(path, "old")
    for _ in kills_at_each_operation(lambda: write(path, "new")):
        between += not path.exists()
        begun = interrupt(path, "new")
        assert {*begun.values()} <= {b"new"}, "the old folder never passes for unfinished work"
        versions.append(version_of(read_files(path)))  # the old one is back, at the latest now
        write(path, "new")
        assert version_of(read_files(path)) == "new"
        assert [one.name for one in tmp_path.iterdir()] == ["shards"]
        write(path, "old")
    assert {*versions} == {"old", "new"} and len(versions) > 10
    assert bool(between) is not exchange, "a kill between two renames leaves none"


def test_work_that_other_work_throws_away_is_gone_on_with_as_a_whole_whenever_that_is_killed(
    tmp_path,
):
    path, found = tmp_path / "shards", []
    interrupt(path, "one")
    for _ in kills_at_each_operation(lambda: write(path, "other")):
        found.append(version_of(interrupt(path, "one")))
    assert {*found} == {"one", ""} and len(found) > 10


class Saved:
    """A model, as far as `save_model` asks for one."""

    def save(self, path: Path) -> None:
        zipfile.ZipFile(path, "w").close()

    def _flatten_layers(self, **_: object) -> list[object]:
        return []


@pytest.mark.parametrize(
    "write_to",
    [
        lambda folder: write_json(folder / "x.json", {}),
        lambda folder: save_model(Saved(), folder / "x.keras"),
    ],
    ids=["a file", "a model"],
)
def test_what_a_killed_writer_leaves_is_cleared(tmp_path, write_to):
    folder, left = tmp_path / "runs" / "naive", 0
    for _ in kills_at_each_operation(lambda: write_to(folder)):
        left += any(folder.glob(".*"))
        clear_after_kills(Layout(tmp_path))
        assert not [*folder.glob(".*")]
    assert left > 0


def test_scratch_folders_of_killed_processes_are_cleared_by_the_next(tmp_path):
    process = os.fork()
    if process == 0:
        own = Scratch(tmp_path)
        os._exit(not own.new_folder().is_relative_to(tmp_path / SCRATCH))
    assert os.waitpid(process, 0)[1] == 0
    (left,) = (tmp_path / SCRATCH).glob("*[!k]")
    own = Scratch(tmp_path)
    new = own.folder
    assert [*(tmp_path / SCRATCH).glob("*[!k]")] == [new] != [left]
    clear_scratch(tmp_path)
    assert new.exists(), "its process is alive"
    del own
    assert not list((tmp_path / SCRATCH).iterdir())


def test_scratch_folders_of_another_host_are_cleared_when_a_day_old(tmp_path):
    other = tmp_path / SCRATCH / f"{ANOTHER_HOST}-{GONE}-0123abcd"
    other.mkdir(parents=True)
    clear_scratch(tmp_path)
    assert other.exists(), "whose process nobody can ask here"
    age(other, TWO_DAYS_S)
    with hold(other.with_name(f"{other.name}.lock"), "its process", print):
        clear_scratch(tmp_path)
        assert other.exists(), "on a file system that shares locks"
    clear_scratch(tmp_path)
    assert not list((tmp_path / SCRATCH).iterdir())


def test_temporary_files_of_another_host_go_when_a_day_old(tmp_path):
    left = [tmp_path / f".x.{host}{GONE}-{'0' * 16}.tmp" for host in (f"{ANOTHER_HOST}-", "")]
    with atomic_file(tmp_path / "train.json") as temporary:
        for path in (temporary, *left):
            path.write_text("half")
        clear_leftovers(tmp_path)
        assert all(path.exists() for path in left), "their processes may be alive"
        for path in (temporary, *left):
            age(path, TWO_DAYS_S)
        clear_leftovers(tmp_path)
        assert [*tmp_path.iterdir()] == [temporary], "its process is this one"
    clear_leftovers(tmp_path / "not there")


@pytest.mark.slow
def test_whenever_an_ingest_is_killed_the_next_ingest_writes_what_a_fresh_one_does(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(inspection_cache, "SETTLED_NS", -(10**18))  # what has just changed, too
    monkeypatch.setattr(file_inspection, "FILES_AT_ONCE", 4)  # kept more often than it is killed
    root, out, kept = tmp_path / "in", tmp_path / "manifest", tmp_path / "kept"
    settings, versions = data_settings(root), itertools.count(1)

    def put_photo(number: int) -> None:
        """A new photo, or another one in place of an earlier one; some have to be converted."""
        version, (suffix, mode) = next(versions), ("jpg", "RGB") if number % 4 else ("png", "RGBA")
        path = root / "ab"[number % 2] / f"{number:04d}x.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(20 * version + number, mode=mode).save(path)
        os.utime(path, (version, version))  # whatever the granularity of the times is

    for number in range(20):
        put_photo(number)
    ingest(settings, out)
    not_lost = 0
    for operation in kills_at_each_operation(lambda: ingest(settings, out, inspections=kept)):
        for number in (operation, operation + 3):
            put_photo(number % 20)
        capfd.readouterr()
        ingest(settings, out, inspections=kept)
        not_lost += "not read again" in capfd.readouterr().out
        incremental = read_files(out)
        ingest(settings, out)
        assert read_files(out) == incremental, operation
        assert not [*tmp_path.glob("manifest.*.partial")]
        shutil.rmtree(kept)  # the next kill finds nothing but what it has found itself
    assert not_lost > 5
