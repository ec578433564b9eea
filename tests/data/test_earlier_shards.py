"""Shards that hold the same examples as those of an earlier set are not written again, and bytes
are always those of a fresh set.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import data_settings, picture

from tasks.upload import upload
from throughline.data.ingest import ingest
from throughline.data.inspection_cache import SETTLED_NS
from throughline.data.known_files import open_known_files
from throughline.data.manifest import Manifest
from throughline.data.shards import writing
from throughline.data.shards.earlier_shards import find_earlier_shards
from throughline.data.shards.index import read_shard_index
from throughline.settings import ShardSettings
from throughline.shared.errors import DataNotFound
from throughline.shared.object_store import open_store

SETTINGS = ShardSettings(min_shards=6, writers=2)


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Data:
    """A folder of photos or of texts, its shards, and those of before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, folder / "source"
        self.shards, self.earlier = folder / "shards", folder / "earlier"

    def ingest(self) -> Manifest:
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        kind = "text_folder" if list(self.source.rglob("*.txt")) else "image_folder"
        manifest = ingest(data_settings(self.source, kind), self.folder / "manifest")
        return replace(manifest, folder=self.folder / "manifest")

    def write(self, manifest: Manifest, settings: ShardSettings = SETTINGS) -> set[str]:
        """The names of the shards that are written, and not taken; all are as fresh ones are."""
        written, real = set(), writing.write_frames

        def write_frames(path, *arguments, **values):
            written.add(path.name)
            return real(path, *arguments, **values)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(writing, "write_frames", write_frames)
            writing.shard(manifest, self.shards, settings=settings, earlier=self.earlier)
        writing.shard(manifest, self.folder / "fresh", settings=settings)
        assert read_files(self.shards) == read_files(self.folder / "fresh")
        read_shard_index(self.shards)
        return written

    def keep(self) -> None:
        """What was written is what an earlier run has left."""
        shutil.rmtree(self.earlier, ignore_errors=True)
        self.shards.rename(self.earlier)

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.fixture(params=["photos", "texts"])
def data(request, tmp_path) -> Data:
    made = Data(tmp_path)
    for number in range(60):
        path = made.source / "ab"[number % 2] / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "photos":
            picture(number).save(path.with_suffix(".jpg"))
        else:
            path.with_suffix(".txt").write_text(f"{number} " * (1 + number % 7))
    return made


def test_one_removed_example_changes_one_shard(data):
    assert data.write(data.ingest()) == data.names()
    data.keep()
    assert not data.write(data.ingest())
    min(data.source.rglob("7.*")).unlink()
    assert len(data.write(data.ingest())) == 1


def test_one_added_example_changes_one_shard(data):
    added = min(data.source.rglob("7.*"))
    later = added.read_bytes()
    added.unlink()
    data.write(data.ingest())
    data.keep()
    added.write_bytes(later)
    assert len(data.write(data.ingest())) == 1


def test_another_label_is_another_shard(data):
    manifest = data.ingest()
    data.write(manifest)
    data.keep()
    relabeled = manifest.examples.copy()
    relabeled.loc[3, "label"] = 1 - relabeled.loc[3, "label"]
    assert len(data.write(replace(manifest, examples=relabeled))) == 1


def test_shards_of_another_compression_or_schema_are_not_taken(data):
    manifest = data.ingest()
    data.write(manifest)
    data.keep()
    packed = SETTINGS.model_copy(update={"compression": "gzip"})
    assert data.write(manifest, packed) == data.names()
    features = [replace(each, name=f"my_{each.name}") for each in manifest.schema.features]
    renamed = replace(manifest.schema, features=tuple(features))
    assert find_earlier_shards(data.earlier, manifest.schema, "none")
    assert not find_earlier_shards(data.earlier, renamed, "none")


def test_a_file_that_was_changed_after_ingest_is_read_and_refused(tmp_path):
    data = Data(tmp_path)
    for number in range(20):
        path = data.source / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
        os.utime(path, (1, 1))
    settings, kept = data_settings(data.source), tmp_path / "kept"
    time.sleep(1.1 * SETTLED_NS / 1e9)
    manifest = replace(
        ingest(settings, tmp_path / "manifest", inspections=kept), folder=tmp_path / "manifest"
    )
    data.write(manifest)
    data.keep()

    def write_again():
        with open_known_files(manifest, settings, kept) as is_known:
            writing.shard(
                manifest,
                data.shards,
                settings=SETTINGS,
                earlier=data.earlier,
                is_known=is_known,
            )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "write_frames", None)  # every shard is taken
        write_again()
    shutil.rmtree(data.shards)
    changed = data.source / "a" / "4.jpg"
    content = bytearray(changed.read_bytes())
    content[-3] ^= 1
    changed.write_bytes(content)
    os.utime(changed, (1, 1))
    with pytest.raises(DataNotFound, match=r"4\.jpg .* has other contents than at ingest"):
        write_again()


def test_objects_that_are_as_ingest_has_seen_them_are_not_read_again(
    tmp_path, bucket_url, monkeypatch
):
    data = Data(tmp_path)
    for number in range(20):
        path = data.source / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    upload(data.source, f"{bucket_url}/photos")
    settings, kept = data_settings(f"{bucket_url}/photos"), tmp_path / "kept"
    manifest = replace(
        ingest(settings, tmp_path / "manifest", inspections=kept), folder=tmp_path / "manifest"
    )
    data.write(manifest)
    data.keep()
    written, real = [], writing.write_frames

    def write_frames(path, *arguments, **values):
        written.append(path.name)
        return real(path, *arguments, **values)

    monkeypatch.setattr(writing, "write_frames", write_frames)

    def write_again():
        shutil.rmtree(data.shards, ignore_errors=True)
        with open_known_files(manifest, settings, kept) as is_known:
            writing.shard(
                manifest, data.shards, settings=SETTINGS, earlier=data.earlier, is_known=is_known
            )

    write_again()
    assert not written
    store = open_store(f"{bucket_url}/photos")
    store.write("a/4.jpg", store.read("a/4.jpg"))  # the same again, as its tag says
    write_again()
    assert len(written) <= 1, "a store may count when it was written"
    store.write("a/4.jpg", store.read("a/6.jpg"))
    with pytest.raises(DataNotFound, match=r"a/4\.jpg .*(other contents|another size)"):
        write_again()
    store.delete(["a/4.jpg"])
    with pytest.raises(DataNotFound, match=r"a/4\.jpg .* is gone now"):
        write_again()


@pytest.mark.parametrize("damage", ["byte", "gone", "index", "no_index", "nothing"])
def test_what_is_damaged_is_written_again(data, damage):
    manifest = data.ingest()
    data.write(manifest)
    data.keep()
    damaged, index = min(data.earlier.glob("*.tfrecord")), data.earlier / "index.json"
    if damage == "byte":
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    elif damage == "gone":
        damaged.unlink()
    elif damage == "index":
        index.write_text(index.read_text().replace('"records"', '"rows"'))
    elif damage == "no_index":
        index.unlink()
    else:
        shutil.rmtree(data.earlier)
    written = data.write(manifest)
    assert len(written) == 1 if damage in {"byte", "gone"} else written == data.names()
