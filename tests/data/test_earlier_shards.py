"""Shards of the same examples are not written again, and their bytes are those of a fresh set."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.upload import upload
from tests.support.lanes import slow_but_first
from tests.support.small_data import data_settings, flip_bit, read_files, save_photos, write_files
from throughline.data import inspection_cache
from throughline.data.ingest import ingest
from throughline.data.known_files import open_known_files
from throughline.data.manifest import Manifest
from throughline.data.shards import writing
from throughline.data.shards.files import find_earlier_shards
from throughline.data.shards.index import read_shard_index
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.errors import DataNotFound
from throughline.shared.object_store import open_store

pytestmark = pytest.mark.integration

SETTINGS = ShardSettings(min_shards=6, writers=2)


class Data:
    """A folder of photos or of texts, its shards, and those of before."""

    def __init__(self, folder: Path, kind: str, count: int = 30) -> None:
        self.folder, self.source = folder, folder / "source"
        self.shards, self.earlier = folder / "shards", folder / "earlier"
        self.kind = kind
        if kind == "image_folder":
            save_photos(self.source, count, "a", "b")
        else:
            texts = [f"{number} " * (1 + number % 7) for number in range(count)]
            write_files(self.source, {f"{'ab'[n % 2]}/{n:02}.txt": t for n, t in enumerate(texts)})

    def ingest(self) -> Manifest:
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        return ingest(data_settings(self.source, self.kind), self.folder / "manifest")

    def write(self, manifest: Manifest, settings=SETTINGS, **more: object) -> set[str]:
        """The names of the shards that are written, and not taken; all are as fresh ones are."""
        written, real = set(), writing.write_frames

        def write_frames(path, *arguments, **values):
            written.add(path.name)
            return real(path, *arguments, **values)

        shutil.rmtree(self.shards, ignore_errors=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(writing, "write_frames", write_frames)
            writing.shard(manifest, self.shards, settings=settings, earlier=self.earlier, **more)
        writing.shard(manifest, self.folder / "fresh", settings=settings)
        assert read_files(self.shards) == read_files(self.folder / "fresh")
        read_shard_index(self.shards)
        return written

    def write_known(self, manifest: Manifest, settings: DataSettings, kept: Path) -> set[str]:
        """The same with what an ingest has kept of the files."""
        with open_known_files(manifest, settings, kept) as is_known:
            return self.write(manifest, is_known=is_known)

    def keep(self) -> None:
        """What was written is what an earlier run has left."""
        shutil.rmtree(self.earlier, ignore_errors=True)
        self.shards.rename(self.earlier)

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.mark.parametrize("kind", slow_but_first(["text_folder", "image_folder"]))
def test_one_example_more_or_less_changes_one_shard(tmp_path, kind):
    data = Data(tmp_path, kind)
    assert data.write(data.ingest()) == data.names()
    data.keep()
    assert not data.write(data.ingest())
    one = min(data.source.rglob("07.*"))
    content = one.read_bytes()
    one.unlink()
    assert len(data.write(data.ingest())) == 1
    data.keep()
    one.write_bytes(content)
    assert len(data.write(data.ingest())) == 1


def ingest_known(data: Data, settings: DataSettings, kept: Path) -> Manifest:
    """The manifest of files that are known, which have shards."""
    manifest = ingest(settings, data.folder / "manifest", inspections=kept)
    data.write(manifest)
    data.keep()
    return manifest


def test_a_file_that_was_changed_after_ingest_is_read_and_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection_cache, "SETTLED_NS", -1_000_000_000)  # settled at once
    data, kept = Data(tmp_path, "image_folder", 12), tmp_path / "kept"
    changed = data.source / "a" / "04.jpg"
    os.utime(changed, (1, 1))
    settings = data_settings(data.source)
    manifest = ingest_known(data, settings, kept)
    assert not data.write_known(manifest, settings, kept)
    flip_bit(changed, -3)
    os.utime(changed, (1, 1))
    shutil.rmtree(data.shards)
    with (
        open_known_files(manifest, settings, kept) as is_known,
        pytest.raises(DataNotFound, match=r"04\.jpg .* has other contents than at ingest"),
    ):
        writing.shard(
            manifest, data.shards, settings=SETTINGS, earlier=data.earlier, is_known=is_known
        )


@pytest.mark.slow
def test_objects_that_are_as_ingest_has_seen_them_are_not_read_again(tmp_path, bucket_url):
    data, kept = Data(tmp_path, "image_folder", 12), tmp_path / "kept"
    upload(data.source, f"{bucket_url}/photos")
    settings = data_settings(f"{bucket_url}/photos")
    manifest = ingest_known(data, settings, kept)
    assert not data.write_known(manifest, settings, kept)
    store = open_store(f"{bucket_url}/photos")
    store.write("a/04.jpg", store.read("a/04.jpg"))  # the same again, as its tag says
    written = data.write_known(manifest, settings, kept)
    assert len(written) <= 1, "a store may count when it was written"
    store.write("a/04.jpg", store.read("a/08.jpg"))
    with pytest.raises(DataNotFound, match=r"a/04\.jpg .*(other contents|another size)"):
        data.write_known(manifest, settings, kept)


@pytest.mark.slow
def test_what_is_damaged_or_of_another_label_compression_or_schema_is_written_again(tmp_path):
    data = Data(tmp_path, "text_folder")
    manifest = data.ingest()
    data.write(manifest)
    data.keep()
    relabeled = manifest.examples.copy()
    relabeled.loc[3, "label"] = 1 - relabeled.loc[3, "label"]
    assert len(data.write(replace(manifest, examples=relabeled))) == 1
    packed = SETTINGS.model_copy(update={"compression": "gzip"})
    assert data.write(manifest, packed) == data.names()
    features = [replace(each, name=f"my_{each.name}") for each in manifest.schema.features]
    renamed = replace(manifest.schema, features=tuple(features))
    assert find_earlier_shards(data.earlier, manifest.schema, "none")
    assert not find_earlier_shards(data.earlier, renamed, "none")
    damaged, index = min(data.earlier.glob("*.tfrecord")), data.earlier / "index.json"
    flip_bit(damaged, -1)
    assert len(data.write(manifest)) == 1
    damaged.unlink()
    assert len(data.write(manifest)) == 1
    index.write_text(index.read_text().replace('"records"', '"rows"'))
    assert data.write(manifest) == data.names()
    shutil.rmtree(data.earlier)
    assert data.write(manifest) == data.names()
