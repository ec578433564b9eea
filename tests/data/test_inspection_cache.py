"""What was found in a file, and shards of files, are used again where nothing has changed."""

import os
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from tasks import ingest as stage
from tests.support.lanes import slow_but_first
from tests.support.project import SMALL, write_params
from tests.support.small_data import (
    data_settings,
    flip_bit,
    picture,
    read_files,
    save_photos,
    write_files,
)
from throughline.data import file_inspection, inspection_cache
from throughline.data.encodings.base import FileInfo, Root, StoredFile
from throughline.data.file_inspection import FileInspection
from throughline.data.found import ExampleFile, Rejected
from throughline.data.ingest import ingest
from throughline.data.inspection_cache import InspectionCache, open_inspection_cache, read_stamp
from throughline.data.known_files import open_known_files
from throughline.data.manifest import Manifest
from throughline.data.shards import writing
from throughline.data.shards.index import read_shard_index
from throughline.settings import ShardSettings
from throughline.shared.engine import use_engine
from throughline.shared.errors import DataNotFound, EngineFailed, TooManyRejects
from throughline.shared.files import digest_blake2b

SECOND = 1_000_000_000
SHARDS = ShardSettings(min_shards=6, writers=2)
FOUND = {"bytes": 4, "digest": digest_blake2b(b"1234"), "shape": (1, 2, 3)}


class Inspected:
    """A folder with the file `a/x.jpg`, its cache, and a clock so many seconds ahead."""

    def __init__(self, folder: Path) -> None:
        self.root, self.kept, self.ahead = folder / "in", folder / "kept", 10
        self.path = write_files(self.root, {"a/x.jpg": "1234"}) / "a" / "x.jpg"
        self.file = ExampleFile(id="a/x.jpg", path=self.path, label="a")

    def clock(self) -> int:
        return time.time_ns() + self.ahead * SECOND

    @contextmanager
    def open(self, key: str = "one") -> Iterator[InspectionCache]:
        with open_inspection_cache(self.kept, root=Root(self.root), key=key) as cache:
            cache.now = self.clock
            yield cache

    def keep(self, **found: object) -> None:
        info = FileInfo(**{"path": self.path, **FOUND, **found})
        with self.open() as cache:
            cache.keep([(self.file, read_stamp(self.file, now_ns=self.clock()), info)])

    def find(self, key: str = "one") -> FileInfo | None:
        with self.open(key) as cache:
            (info,) = cache.find([self.file])
            return info

    def inspect(self, inspect, cache: InspectionCache) -> FileInfo | Rejected:
        """What this function finds in the file."""
        root = Root(self.root)
        inspection = FileInspection(inspect=inspect, cache=cache, root=root, converted=self.root)
        (finding,) = inspection.inspect_all([self.file], verify=False)
        return finding

    def rewrite(self) -> None:
        let_file_times_pass(self.path)
        self.path.write_bytes(b"abcd")
        os.utime(self.path, (1, 1))

    def lead_outside(self) -> None:
        outside = self.path.parent.rename(self.kept / "outside")
        self.path.parent.symlink_to(outside)

    def damage(self, change: str) -> None:
        (path,) = self.kept.glob("*-one.sqlite")
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(f"UPDATE inspections SET {change}")


@pytest.fixture
def one(tmp_path):
    return Inspected(tmp_path)


def let_file_times_pass(path: Path) -> None:
    """Touch another file until its times, whose granularity is coarse, are later than a file's."""
    other = path.with_name("touched")
    other.touch()
    while other.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        other.touch()
    other.unlink()


CHANGES = {
    "other contents": Inspected.rewrite,
    "gone": lambda one: one.path.unlink(),
    "led outside": Inspected.lead_outside,
    "damaged findings": lambda one: one.damage("found = replace(found, '4', '5')"),
    "a damaged time": lambda one: one.damage("inspected_ns = X'FF'"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_found_in_a_file_is_found_again_until_it_changes(one, change):
    assert one.find() is None
    os.utime(one.path, (1, 1))
    one.keep(note="content is PNG")
    assert one.find() == FileInfo(path=one.path, **FOUND, note="content is PNG")
    change(one)
    assert one.find() is None


@pytest.mark.parametrize("ahead", [0, 3600], ids=["just changed", "a clock that was ahead"])
def test_what_was_kept_at_another_time_is_not_believed(one, ahead):
    """The next change of a file that has just changed might leave the same times."""
    one.ahead = ahead
    one.keep()
    one.ahead = 10
    assert one.find() is None
    one.keep()
    assert one.find()


def test_a_file_that_changes_while_it_is_inspected_is_read_again(one):
    def inspect(stored: StoredFile, converted: Path) -> FileInfo:
        one.path.write_bytes(b"abcd")
        return FileInfo(path=stored.path, **FOUND)

    let_file_times_pass(one.path)
    with one.open() as cache:
        assert one.inspect(inspect, cache) == FileInfo(path=one.path, **FOUND)
    assert one.find() is None


def test_what_another_program_has_found_is_not_used_and_forgotten_after_a_few(one):
    one.keep()
    for number in range(inspection_cache.OTHERS_KEPT + 1):
        assert one.find(f"other{number}") is None
        assert one.find(), "it was used between them, such as by a run with changes"
    for number in range(inspection_cache.OTHERS_KEPT + 1):
        one.find(f"more{number}")
    assert one.find() is None


def test_a_damaged_database_is_replaced_and_without_any_all_files_are_read(tmp_path, capsys):
    kept = tmp_path / "kept"
    for _ in range(2):
        with open_inspection_cache(kept, root=Root(tmp_path), key="one") as cache:
            assert not cache.damaged
        (path,) = kept.iterdir()
        assert path.read_bytes().startswith(b"SQLite")
        path.write_bytes(b"no database at all" * 100)
    with open_inspection_cache(path, root=Root(tmp_path), key="one"):
        assert " cannot be opened, so all files are read: " in capsys.readouterr().out


class Data:
    """Class folders of photos or texts, a cache, and what is written again and again."""

    def __init__(self, folder: Path, kind: str = "image_folder") -> None:
        self.root, self.out, self.kept = folder / "in", folder / "manifest", folder / "kept"
        self.shards, self.earlier = folder / "shards", folder / "earlier"
        self.settings = data_settings(self.root, kind, layout="class")
        if kind == "image_folder":
            save_photos(self.root, 30, "a", "b")
        else:
            texts = {f"{'ab'[n % 2]}/{n:02}.txt": f"{n} " * (1 + n % 7) for n in range(30)}
            write_files(self.root, texts)

    def add(self, name: str, seed: int) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        picture(seed).save(path)

    def ingest(self, *, verify: bool = False, **changes: object) -> Manifest:
        settings = self.settings.model_copy(update=changes)
        return ingest(settings, self.out, inspections=self.kept, verify=verify)

    def write(self, manifest: Manifest, settings=SHARDS, **more: object) -> set[str]:
        """The names of the shards that are written, and not taken; all are as fresh ones are."""
        shutil.rmtree(self.shards, ignore_errors=True)
        with patch.object(writing, "write_frames", wraps=writing.write_frames) as written:
            writing.shard(manifest, self.shards, settings=settings, earlier=self.earlier, **more)
        fresh = self.shards.with_name("fresh")
        writing.shard(manifest, fresh, settings=settings)
        assert read_files(self.shards) == read_files(fresh)
        return {call.args[0].name for call in written.call_args_list}

    def write_known(self, manifest: Manifest) -> set[str]:
        with open_known_files(manifest, self.settings, self.kept) as is_known:
            return self.write(manifest, is_known=is_known)

    def keep(self) -> None:
        """What was written is what an earlier run has left."""
        shutil.rmtree(self.earlier, ignore_errors=True)
        self.shards.rename(self.earlier)

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Photos whose changes count as settled at once."""
    monkeypatch.setattr(inspection_cache, "SETTLED_NS", -SECOND)
    return Data(tmp_path)


@pytest.mark.integration
def test_the_manifest_is_that_of_reading_everything_byte_for_byte(photos, capsys):
    add, root = photos.add, photos.root
    same = (root / "a" / "00.jpg").read_bytes()
    split = photos.settings.split.model_copy(update={"seed": 7})
    changes = [  # what changes, the settings, and of how many files how many are known
        (lambda: None, {}, ""),
        (lambda: None, {"split": split}, "30 of 30"),
        (lambda: None, {"max_pixels": 1_000_000}, ""),
        (lambda: (add("a/00.jpg", 101), (root / "b" / "01.jpg").unlink()), {}, "28 of 29"),
        (lambda: add("c/x.webp", 202), {}, "29 of 30"),  # is converted
        (lambda: write_files(root, {"b/cut.jpg": b"\xff\xd8", "b/copy.jpg": same}), {}, "29 of 32"),
        (lambda: (add("c/x.webp", 203), add("b/cut.jpg", 204)), {}, "30 of 32"),
        (lambda: (root / "b").rename(root / "d"), {}, "15 of 32"),
        (lambda: (root / "d" / "link.jpg").symlink_to(root / "a" / "00.jpg"), {}, "31 of 33"),
    ]
    for change, settings, known in changes:
        change()
        photos.ingest(**settings)
        said = capsys.readouterr().out
        assert "".join(re.findall("not read again: (.*) files", said)) == known
        incremental = read_files(photos.out)
        ingest(photos.settings.model_copy(update=settings), photos.out)
        assert incremental == read_files(photos.out), known


def test_verify_reads_all_and_names_what_has_changed_unnoticed(photos, monkeypatch, capsys):
    """As by a disk, or by a program that writes through a mapping."""
    for module in (inspection_cache, file_inspection):
        monkeypatch.setattr(module, "read_stamp", lambda file, *, now_ns: "as before")
    first = photos.ingest(verify=True)
    assert "all 30 files were read; of 0 with the size" in capsys.readouterr().out
    photos.add("a/00.jpg", 500)
    assert photos.ingest().digest == first.digest, "what is kept is used"
    capsys.readouterr()
    changed = photos.ingest(verify=True)
    assert re.search("! 1 files had changed.*again: a/00.jpg$", capsys.readouterr().out, re.M)
    assert photos.ingest().digest == changed.digest != first.digest
    photos.ingest(verify=True)
    assert "of 30 with the sizes, times and inodes of an earlier" in capsys.readouterr().out


def test_what_a_failed_ingest_has_converted_goes_with_its_file(photos):
    photos.add("a/x.webp", 50)
    photos.add("a/y.webp", 51)
    write_files(photos.root, {"a/cut.jpg": b"\xff\xd8 cut"})
    with pytest.raises(TooManyRejects):
        photos.ingest(max_reject_fraction=0.0)
    for name in ("cut.jpg", "x.webp"):
        (photos.root / "a" / name).unlink()
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
    assert "not read again" not in said[0] and "30 of 30 files" in said[1]
    assert "all 30 files were read; of 30 with the size" in said[2]


def inspect_in(process: int, stored: StoredFile, converted: Path) -> FileInfo:
    """Read a file in this process; any other lacks its folder."""
    away = "" if os.getpid() == process else "elsewhere"
    replace(stored, path=stored.path / away).read(lambda *_: None)
    return FileInfo(path=stored.path, **FOUND)


@pytest.mark.slow
def test_what_a_worker_alone_cannot_read_names_its_machine(one, tmp_path, monkeypatch):
    """And what nobody can read is a reject."""
    monkeypatch.chdir(tmp_path)
    node, cache = os.uname().nodename, InspectionCache(None, root=Root(one.root))
    with use_engine(workers=1):
        with pytest.raises(EngineFailed, match=rf"worker at {node} .*x\.jpg \(cannot be read: Not"):
            one.inspect(partial(inspect_in, os.getpid()), cache)
        finding = one.inspect(partial(inspect_in, -1), cache)
    assert isinstance(finding, Rejected)
    assert (finding.id, finding.reason) == ("a/x.jpg", "cannot be read: Not a directory")


@pytest.mark.integration
@pytest.mark.parametrize("kind", slow_but_first(["text_folder", "image_folder"]))
def test_one_example_more_or_less_changes_one_shard(tmp_path, kind):
    data = Data(tmp_path, kind)
    assert data.write(data.ingest()) == data.names()
    data.keep()
    assert not data.write(data.ingest())
    one = min(data.root.rglob("07.*"))
    content = one.read_bytes()
    one.unlink()
    assert len(data.write(data.ingest())) == 1
    data.keep()
    one.write_bytes(content)
    assert len(data.write(data.ingest())) == 1


@pytest.mark.integration
def test_a_file_that_was_changed_after_ingest_is_read_and_refused(photos):
    changed = photos.root / "a" / "04.jpg"
    os.utime(changed, (1, 1))
    manifest = photos.ingest()
    photos.write(manifest)
    photos.keep()
    assert not photos.write_known(manifest)
    flip_bit(changed, -3)
    os.utime(changed, (1, 1))
    with pytest.raises(DataNotFound, match=r"04\.jpg .* has other contents than at ingest"):
        photos.write_known(manifest)
    assert not photos.shards.exists()


@pytest.mark.slow
def test_what_is_damaged_or_of_another_label_compression_or_schema_is_written_again(tmp_path):
    data = Data(tmp_path, "text_folder")
    manifest = data.ingest()
    data.write(manifest)
    data.keep()
    relabeled = manifest.examples.copy()
    relabeled.loc[3, "label"] = 1 - relabeled.loc[3, "label"]
    assert len(data.write(replace(manifest, examples=relabeled))) == 1
    packed = SHARDS.model_copy(update={"compression": "gzip"})
    assert data.write(manifest, packed) == data.names()
    features = [replace(each, name=f"my_{each.name}") for each in manifest.schema.features]
    renamed = replace(manifest.schema, features=tuple(features))
    assert data.write(replace(manifest, schema=renamed)) == data.names()
    damaged, index = min(data.earlier.glob("*.tfrecord")), data.earlier / "index.json"
    flip_bit(damaged, -1)
    assert len(data.write(manifest)) == 1
    damaged.unlink()
    assert len(data.write(manifest)) == 1
    index.write_text(index.read_text().replace('"records"', '"rows"'))
    assert data.write(manifest) == data.names()
