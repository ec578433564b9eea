"""What was found in a file is used again where file and program are the same."""

import dataclasses
import os
import shutil
import sqlite3
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from tasks import ingest as stage
from tests.support.project import SMALL, write_params
from tests.support.small_data import data_settings, picture, read_files, save_photos
from throughline.data import file_inspection, inspection_cache
from throughline.data.encodings.base import FileInfo, Root, StoredFile
from throughline.data.file_inspection import FileInspection
from throughline.data.found import ExampleFile, Rejected
from throughline.data.ingest import ingest
from throughline.data.inspection_cache import InspectionCache, open_inspection_cache, read_stamp
from throughline.data.manifest import Manifest
from throughline.shared.engine import use_engine
from throughline.shared.errors import EngineFailed, TooManyRejects
from throughline.shared.files import digest_blake2b

SECOND = 1_000_000_000
FOUND = {"bytes": 4, "digest": digest_blake2b(b"1234"), "shape": (1, 2, 3)}


class Opened:
    """A cache of a folder with the file `a/x.jpg`, and a clock so many seconds ahead."""

    def __init__(self, folder: Path) -> None:
        self.root, self.kept, self.ahead = folder / "in", folder / "kept", 10
        self.path = self.root / "a" / "x.jpg"
        self.path.parent.mkdir(parents=True)
        self.path.write_bytes(b"1234")
        self.file = ExampleFile(id="a/x.jpg", path=self.path, label="a")
        self.stack = ExitStack()
        self.cache = self.open("one")

    def clock(self) -> int:
        return time.time_ns() + self.ahead * SECOND

    def open(self, key: str) -> InspectionCache:
        """A cache that is closed with the test."""
        root = Root(self.root)
        cache = self.stack.enter_context(open_inspection_cache(self.kept, root=root, key=key))
        cache.now = self.clock
        return cache

    def find_by_key(self, key: str) -> FileInfo | None:
        """What a cache of its own finds, which is closed then."""
        with open_inspection_cache(self.kept, root=Root(self.root), key=key) as cache:
            cache.now = self.clock
            (info,) = cache.find([self.file])
            return info

    def keep(self, **found: object) -> None:
        info = FileInfo(**{"path": self.path, **FOUND, **found})
        self.cache.keep([(self.file, read_stamp(self.file, now_ns=self.clock()), info)])

    def find(self) -> FileInfo | None:
        (info,) = self.cache.find([self.file])
        return info


@pytest.fixture
def opened(tmp_path):
    one = Opened(tmp_path)
    with one.stack:
        yield one


def let_file_times_pass(path: Path) -> None:
    """Touch another file until its times, whose granularity is coarse, are later than a file's."""
    other = path.with_name("touched")
    other.touch()
    while other.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        other.touch()
    other.unlink()


def keep_times(path: Path, change) -> None:
    """Change a file, and give it back the time of its last change."""
    status = path.stat()
    change()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path, data: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(data)
    other.replace(path)


CHANGES = {
    "longer": lambda path: path.write_bytes(b"12345"),
    "rewritten with the old time": lambda path: keep_times(path, lambda: path.write_bytes(b"abcd")),
    "replaced with the old time": lambda path: keep_times(path, lambda: replace(path, b"abcd")),
    "gone": lambda path: path.unlink(),
    "a link": lambda path: (path.rename(path.with_name("y")), path.symlink_to(path.with_name("y"))),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_found_in_a_file_is_found_again_until_it_changes(opened, change):
    assert opened.find() is None
    opened.keep(note="content is PNG")
    assert opened.find() == FileInfo(path=opened.path, **FOUND, note="content is PNG")
    assert opened.open("one").find([opened.file]) == [opened.find()]
    let_file_times_pass(opened.path)
    change(opened.path)
    assert opened.find() is None


@pytest.mark.parametrize("ahead", [0, 3600], ids=["just changed", "a clock that was ahead"])
def test_what_was_kept_at_another_time_is_not_believed(opened, ahead):
    """The next change of a file that has just changed might leave the same times."""
    opened.ahead = ahead
    opened.keep()
    opened.ahead = 10
    assert opened.find() is None
    opened.keep()
    assert opened.find()


def test_a_file_that_leads_outside_now_is_read_again(opened, tmp_path):
    opened.keep()
    outside = tmp_path / "outside"
    opened.path.parent.rename(outside)
    opened.path.parent.symlink_to(outside)
    cache = opened.open("one")
    assert read_stamp(opened.file, now_ns=opened.clock()), "the file itself is the same"
    assert cache.find([opened.file]) == [None]


def find_by(inspect, opened: Opened, cache: InspectionCache) -> FileInfo | Rejected:
    """What this function finds in the file."""
    root = Root(opened.root)
    inspection = FileInspection(inspect=inspect, cache=cache, root=root, converted=opened.root)
    (finding,) = inspection.inspect_all([opened.file], verify=False)
    return finding


def test_a_file_that_changes_while_it_is_inspected_is_read_again(opened):
    def inspect(stored: StoredFile, converted: Path) -> FileInfo:
        opened.path.write_bytes(b"abcd")
        return FileInfo(path=stored.path, **FOUND)

    let_file_times_pass(opened.path)
    assert find_by(inspect, opened, opened.cache) == FileInfo(path=opened.path, **FOUND)
    assert opened.find() is None


def test_what_another_program_has_found_is_not_used_and_forgotten_after_a_few(opened):
    opened.keep()
    assert opened.find_by_key("two") is None
    assert opened.find_by_key("one"), "such as by a run with changes"
    for number in range(inspection_cache.OTHERS_KEPT + 1):
        opened.find_by_key(f"other{number}")
        assert opened.find_by_key("one"), "it was used between them"
    for number in range(inspection_cache.OTHERS_KEPT + 1):
        opened.find_by_key(f"more{number}")
    assert opened.find_by_key("one") is None


@pytest.mark.parametrize("change", ["found = replace(found, '4', '5')", "inspected_ns = X'FF'"])
def test_what_the_disk_has_changed_is_not_believed(opened, change):
    opened.keep()
    (path,) = opened.kept.glob("*-one.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE inspections SET {change}")
    assert opened.find() is None


def test_a_damaged_database_is_replaced(tmp_path):
    for _ in range(2):
        with open_inspection_cache(tmp_path / "kept", root=Root(tmp_path), key="one") as cache:
            assert not cache.damaged
        (path,) = (tmp_path / "kept").iterdir()
        path.write_bytes(b"no database at all" * 100)


def test_where_nothing_can_be_kept_all_files_are_read(photos, tmp_path, capsys):
    (tmp_path / "kept").write_text("a file in place of the folder")
    first = photos.ingest()
    again = ingest(photos.settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert again.digest == first.digest
    assert " cannot be opened, so all files are read: " in capsys.readouterr().out


class Photos:
    """Class folders of photos, a cache, and a manifest that is written again and again."""

    def __init__(self, folder: Path) -> None:
        self.root, self.out, self.kept = folder / "in", folder / "manifest", folder / "kept"
        self.settings = data_settings(self.root, layout="class")
        save_photos(self.root, 16, "a", "b")

    def add(self, name: str, seed: int) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        picture(seed).save(path)

    def ingest(self, *, verify: bool = False, **changes: object) -> Manifest:
        settings = self.settings.model_copy(update=changes)
        return ingest(settings, self.out, inspections=self.kept, verify=verify)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Photos whose changes count as settled at once."""
    monkeypatch.setattr(inspection_cache, "SETTLED_NS", -SECOND)
    return Photos(tmp_path)


def unread(capsys) -> str:
    """Of which files ingest said that they were not read again."""
    said = [line for line in capsys.readouterr().out.splitlines() if "not read again" in line]
    return said[0].rpartition(": ")[2] if said else "none"


def test_only_what_is_new_or_changed_is_read(photos, capsys):
    photos.ingest()
    assert unread(capsys) == "none"
    photos.ingest()
    assert unread(capsys) == "16 of 16 files"
    photos.add("a/new.jpg", 100)
    photos.add("a/00.jpg", 101)
    (photos.root / "b" / "01.jpg").unlink()
    photos.ingest()
    assert unread(capsys) == "14 of 16 files"
    photos.ingest(split=photos.settings.split.model_copy(update={"seed": 7}))
    assert unread(capsys) == "16 of 16 files", "splits do not decide what is found in a file"
    photos.ingest(max_pixels=1_000_000)
    assert unread(capsys) == "none"


@pytest.mark.integration
def test_the_manifest_is_that_of_reading_everything_byte_for_byte(photos, capsys):
    """After each of many changes: new, other, fewer files, of all kinds, good and bad."""

    def spoil() -> None:
        photos.add("c/x.webp", 202)  # converted
        (photos.root / "b" / "cut.jpg").write_bytes(b"\xff\xd8 cut")  # rejected
        shutil.copy(photos.root / "a" / "00.jpg", photos.root / "b" / "copy.jpg")

    def repair() -> None:
        photos.add("c/x.webp", 203)
        photos.add("b/cut.jpg", 204)
        (photos.root / "a" / "02.jpg").rename(photos.root / "b" / "02.jpg")

    changes = [
        lambda: None,
        spoil,
        repair,
        lambda: (photos.root / "b").rename(photos.root / "d"),
        lambda: (photos.root / "d" / "link.jpg").symlink_to(photos.root / "a" / "00.jpg"),
        lambda: [photos.add(f"a/{row}.jpg", row) for row in range(300, 303)],
    ]
    for number, change in enumerate(changes):
        change()
        photos.ingest()
        incremental = read_files(photos.out)
        ingest(photos.settings, photos.out)
        assert incremental == read_files(photos.out), number
    assert capsys.readouterr().out.count("not read again") == len(changes) - 1


def test_verify_reads_all_and_names_what_has_changed_unnoticed(photos, monkeypatch, capsys):
    """As by a disk, or by a program that writes through a mapping."""
    for module in (inspection_cache, file_inspection):
        monkeypatch.setattr(module, "read_stamp", lambda file, *, now_ns: "as before")
    first = photos.ingest(verify=True)
    assert "all 16 files were read; of 0 with the size" in capsys.readouterr().out
    photos.add("a/00.jpg", 500)
    assert photos.ingest().digest == first.digest, "what is kept is used"
    capsys.readouterr()
    changed = photos.ingest(verify=True)
    said = capsys.readouterr().out
    assert "! 1 files had changed, although their " in said and said.count("a/00.jpg") == 1
    assert changed.digest != first.digest
    assert photos.ingest().digest == changed.digest
    photos.ingest(verify=True)
    said = capsys.readouterr().out
    assert "of 16 with the sizes, times and inodes of an earlier" in said


def test_what_a_failed_ingest_has_converted_goes_with_its_file(photos):
    photos.add("a/x.webp", 50)
    photos.add("a/y.webp", 51)
    (photos.root / "a" / "cut.jpg").write_bytes(b"\xff\xd8 cut")
    with pytest.raises(TooManyRejects):
        photos.ingest(max_reject_fraction=0.0)
    (photos.root / "a" / "cut.jpg").unlink()
    (photos.root / "a" / "x.webp").unlink()
    photos.ingest(max_reject_fraction=0.0)
    assert len(list((photos.out / "converted").iterdir())) == 1


def test_the_stage_keeps_what_it_finds_and_takes_verify(photos, tmp_path, monkeypatch, capsys):
    data = {"source": "image_folder", "path": "in", "max_reject_fraction": 0.9}
    write_params(tmp_path, {**SMALL, "data": {**SMALL["data"], **data}})
    monkeypatch.chdir(tmp_path)
    said = []
    for options in ([], [], ["--verify"]):
        monkeypatch.setattr(sys, "argv", ["python -m tasks.ingest", *options])
        shutil.rmtree("data", ignore_errors=True)  # as DVC does before the stage
        stage.main()
        said.append(capsys.readouterr().out)
    assert "not read again" not in said[0] and "16 of 16 files" in said[1]
    assert "all 16 files were read; of 16 with the size" in said[2]


def inspect_in(process: int, stored: StoredFile, converted: Path) -> FileInfo:
    """Read a file in this process; any other lacks its folder."""
    away = "" if os.getpid() == process else "elsewhere"
    dataclasses.replace(stored, path=stored.path / away).read(lambda *_: None)
    return FileInfo(path=stored.path, **FOUND)


@pytest.mark.slow
def test_what_a_worker_alone_cannot_read_names_its_machine(opened, tmp_path, monkeypatch):
    """And what nobody can read is a reject."""
    monkeypatch.chdir(tmp_path)
    node, cache = os.uname().nodename, InspectionCache(None, root=Root(opened.root))
    with use_engine(workers=1):
        with pytest.raises(EngineFailed, match=rf"worker at {node} .*x\.jpg \(cannot be read: Not"):
            find_by(partial(inspect_in, os.getpid()), opened, cache)
        finding = find_by(partial(inspect_in, -1), opened, cache)
    assert isinstance(finding, Rejected)
    assert (finding.id, finding.reason) == ("a/x.jpg", "cannot be read: Not a directory")
