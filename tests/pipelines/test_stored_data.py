"""Columns and shards in an object store have the bytes of files, through every fault."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from tests.support.small_data import flip_bit, read_files
from tests.support.small_pipelines import PREPROCESS, batches, open_snapshot, pipeline, same
from tests.support.stored_snapshots import fetch_all, kill_at, open_stored, write
from throughline.data.columns import fetching
from throughline.data.columns.index import column_path, verify
from throughline.data.columns.stored import Destination
from throughline.data.manifest import read_manifest
from throughline.data.shards import files as shard_files
from throughline.data.shards import writing
from throughline.data.shards.files import ShardFiles, object_name
from throughline.data.shards.index import ShardIndex, read_shard_index
from throughline.data.shards.record_offsets import open_records
from throughline.data.shards.repair import find_damaged_shards
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.augmentations import RandomCrop
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import ShardSettings
from throughline.shared.errors import (
    CorruptColumn,
    DiskRefused,
    MissingInput,
    ObjectStoreFailed,
    StaleSnapshot,
)
from throughline.shared.object_store import RETRIES, open_store

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("small_pieces")]


def fetched(proxy, part="/train/image/"):
    """How many bytes of such objects have passed."""
    return sum(size for _, path, size in proxy.requests if part in path)


@pytest.mark.parametrize(("kind", "fraction"), slow_but_first([("arrays", 0.7), ("unlike", 0.4)]))
def test_index_and_columns_are_those_of_files(arrays, photos, tmp_path, bucket_url, kind, fraction):
    folder = arrays if kind == "arrays" else photos
    for name, url in (("files", ""), ("put", bucket_url)):
        write(folder, tmp_path / name, url, kind=kind, fraction=fraction)
    files = read_files(tmp_path / "files")
    assert read_files(tmp_path / "put") == {"index.json": files["index.json"]}
    data = open_stored(folder, tmp_path / "put", bucket_url, tmp_path / "cache", kind=kind)
    for name, values in fetch_all(data).items():
        assert values == files[f"{name}.bin"], name
    verify(data.columns_folder, data.snapshot)


@pytest.mark.slow
def test_two_shares_of_the_rows_are_under_one_key_without_harm(arrays, tmp_path, bucket_url):
    for name, fraction in (("all", 1.0), ("most", 0.7)):
        write(arrays, tmp_path / name, bucket_url, fraction=fraction)
    for name in ("most", "all"):
        data = open_stored(arrays, tmp_path / name, bucket_url, tmp_path / f"cache of {name}")
        fetch_all(data)
        verify(data.columns_folder, data.snapshot)


def test_what_is_read_is_fetched_once_and_nothing_else(put, proxy):
    data = put()
    data.memmap("validation", "label")
    paths = [path for _, path, _ in proxy.requests if "/index/" not in path]
    assert paths and all("/validation/label/" in path for path in paths)
    fetch_all(data)
    whole = sum(map(data.snapshot.bytes, data.snapshot.splits))
    assert fetched(proxy, "/") - fetched(proxy, "/index/") == whole
    proxy.requests.clear()
    fetch_all(put())
    assert not proxy.requests


def test_no_row_is_zero_while_it_is_fetched_and_what_was_corrupted_comes_again(put, proxy, stored):
    data, seen, faults = put(), [], iter([None, "corrupt", "503"])
    path = column_path(data.columns_folder, "train", "key")

    def look(method, requested):
        seen.extend([np.fromfile(path, np.int64)] if path.exists() else [])
        return next(faults, None) if "/train/key/" in requested else None

    proxy.fault = look
    keys = np.asarray(data.memmap("train", "key"))
    assert np.array_equal(keys, stored["arrays"].memmap("train", "key")) and (keys != 0).all()
    assert next(faults, None) is None
    data.memmap("train", "image")
    assert seen and all(np.array_equal(found, keys) for found in seen)


def test_damage_that_stays_is_named_with_object_and_rows(put, proxy):
    spoiled = []

    def spoil(method, path):
        if "/train/image/" in path and path == (spoiled or [path])[0]:
            spoiled.append(path)
            return "corrupt"
        return None

    proxy.fault = spoil
    said = "does not match its digest, .*column image of the train split, rows "
    with pytest.raises(ObjectStoreFailed, match=said) as failed:
        put().memmap("train", "image")
    assert spoiled[0].removeprefix("/data/") in str(failed.value)
    assert len(spoiled) >= 1 + RETRIES
    assert not column_path(put().columns_folder, "train", "image").exists()


def test_an_object_or_index_that_is_missing_or_another_ones_is_named(arrays, tmp_path, bucket_url):
    write(arrays, tmp_path / "put", bucket_url)
    store, names = open_store(bucket_url), [one.name for one in open_store(bucket_url).list()]

    def map_train(column, cache="cache"):
        open_stored(arrays, tmp_path / "put", bucket_url, tmp_path / cache).memmap("train", column)

    gone = next(name for name in names if "/train/image/" in name)
    store.delete([gone])
    with pytest.raises(ObjectStoreFailed, match=f"{gone}: there is no such object.* rows "):
        map_train("image")
    index = next(name for name in names if "/index/" in name)
    store.write(index, store.read(index).replace(index.partition("/")[0].encode(), b"0" * 32))
    with pytest.raises(StaleSnapshot, match="is of another snapshot"):
        map_train("key")
    store.delete([index])
    with pytest.raises(StaleSnapshot, match=r"is not there, .* correct storage.url"):
        map_train("key", "second")


def test_without_the_url_the_index_alone_is_refused(arrays, arrays_in_store):
    with pytest.raises(MissingInput, match=r"holds only the index.* set storage.url"):
        open_snapshot(arrays, arrays_in_store[0], "arrays")


def test_columns_in_files_are_read_there_whatever_the_url(arrays, tmp_path):
    write(arrays, tmp_path / "files")
    data = open_stored(arrays, tmp_path / "files", "s3://nowhere", tmp_path / "cache")
    fetch_all(data)
    assert not (tmp_path / "cache").exists()
    column_path(tmp_path / "files", "train", "image").write_bytes(b"")
    with pytest.raises(CorruptColumn):
        open_stored(arrays, tmp_path / "files", "s3://nowhere", tmp_path / "cache")


def fill(disk: Path) -> None:
    """Take all room of a disk, as others do who write to it."""
    with suppress(OSError), (disk / "others").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):  # what a file on a tmpfs takes at least
            pass


@pytest.mark.slow
@pytest.mark.parametrize("full", ["meanwhile", "before"])
def test_on_a_full_disk_whole_columns_stay_and_the_rest_comes_later(put, proxy, small_disk, full):
    expected = fetch_all(put("other"))
    if full == "before":
        fill(small_disk)
    else:  # a column that has been started has its room
        proxy.fault = lambda method, path: fill(small_disk) if "/train/image/" in path else None
    with pytest.raises((OSError, DiskRefused)):
        fetch_all(put("disk/cache"))
    found = {f"{one.parent.name}/{one.stem}": one.read_bytes() for one in small_disk.rglob("*.bin")}
    assert list(found) == ["train/image"] * (full == "meanwhile")
    assert found.items() <= expected.items()
    proxy.fault = lambda method, path: None
    (small_disk / "others").unlink()
    assert fetch_all(put("disk/cache")) == expected


@pytest.mark.slow
def test_a_kill_while_fetching_is_gone_on_from(put, proxy):
    data = put()
    size = data.snapshot.splits["train"].bytes(data.input_column)
    assert len(data.snapshot.splits["train"].chunks) > fetching.READERS, "some come after others"
    kill_at(proxy, ("GET", "/train/image/", 32), data.fetched.fetch, ("train", data.input_column))
    assert not column_path(data.columns_folder, "train", "image").exists()
    proxy.requests.clear()
    values = put().memmap("train", "image")
    assert 0 < fetched(proxy) < size, "only what was not there"
    assert np.array_equal(values, put("other").memmap("train", "image"))


@pytest.mark.slow
def test_two_who_fetch_into_one_folder_fetch_once(put, in_store, proxy):
    (index, files), opened = in_store, [put(), put()]
    proxy.fault = lambda method, path: "late"
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda data: data.memmap("train", "image"), opened))
        list(threads.map(files.paths, [index.shards] * 2))
    assert fetched(proxy) == opened[0].snapshot.splits["train"].bytes(opened[0].input_column)
    assert fetched(proxy, "/shards/") == sum(shard.bytes for shard in index.shards)


def test_an_upload_that_fails_is_named_with_object_and_rows(arrays, tmp_path, bucket_url, proxy):
    proxy.fault = lambda used, path: "403" if used == "PUT" and "/train/image/" in path else None
    said = f"{bucket_url}/.*HTTP 403.*column image of the train split, rows "
    with pytest.raises(ObjectStoreFailed, match=said):
        write(arrays, tmp_path / "put", bucket_url)
    assert not (tmp_path / "put").exists()


@pytest.mark.slow
def test_a_kill_while_uploading_is_gone_on_from(arrays, tmp_path, bucket_url, proxy):
    write(arrays, tmp_path / "files")
    store, index = open_store(bucket_url), (tmp_path / "files" / "index.json").read_bytes()
    kill_at(proxy, ("PUT", "", 12), write, (arrays, tmp_path / "put", bucket_url))
    assert not (tmp_path / "put").exists()
    there = {one.name for one in store.list()}
    assert there and not [name for name in there if "/index/" in name]
    (left,) = tmp_path.glob("put.*.partial")
    shutil.copytree(left, tmp_path / "left")

    def go_on():  # the names of the objects that are put
        proxy.requests.clear()
        write(arrays, tmp_path / "put", bucket_url)
        assert (tmp_path / "put" / "index.json").read_bytes() == index
        fetch_all(open_stored(arrays, tmp_path / "put", bucket_url, tmp_path / "cache"))
        return {path.split("/", 3)[3] for method, path, _ in proxy.requests if method == "PUT"}

    assert not there & go_on(), "what is there is not put again"
    store.delete([one.name for one in store.list()])  # as what nothing has reached for a day
    shutil.rmtree(tmp_path / "put")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "left").rename(left)
    assert there <= go_on()


@pytest.mark.slow
def test_processes_fetch_rows_of_their_lanes_only(photos, snapshot_of, tmp_path, bucket_url, proxy):
    write(photos, tmp_path / "put", bucket_url, kind="unlike")

    def reading(index, data=None):  # what one of two processes reads
        cache, augment = tmp_path / f"cache{index}", (RandomCrop(height=6, width=6),)
        data = data or open_stored(photos, tmp_path / "put", bucket_url, cache, kind="unlike")
        more = {"augment": augment, "worker": TrainingWorker(index=index, count=2)}
        shuffle = {"kind": "lanes", "lanes": 4}
        return pipeline({"unlike": data}, "unlike", read="snapshot", shuffle=shuffle, **more)

    whole = snapshot_of("unlike")
    for index in (0, 1):
        assert same(batches(reading(index)), batches(reading(index, whole))), "no row is a hole"
    assert 1 <= fetched(proxy) / whole.snapshot.splits["train"].bytes(whole.input_column) < 1.5
    proxy.requests.clear()
    assert all(reading(index).reader.variables for index in (0, 1)) and not proxy.requests


def test_rows_of_a_region_are_fetched_and_no_others(put, proxy):
    whole, data, sizes = put("other"), put(), set()
    images = np.asarray(whole.memmap("train", "image"))
    proxy.requests.clear()
    assert np.array_equal(whole.for_rows((3, 9)).memmap("train", "image"), images)
    assert not proxy.requests, "of rows that are there already"
    for first, stop in ((0, 1), (0, len(images) // 2), (len(images) // 2, len(images))):
        found = data.for_rows((first, stop)).memmap("train", "image")
        assert found.shape == images.shape and np.array_equal(found[first:stop], images[first:stop])
        sizes.add(fetched(proxy))
        proxy.requests.clear()
    assert max(sizes) < images.nbytes and len(sizes) > 1


def test_a_region_that_was_damaged_since_is_named(put):
    data = put().for_rows((4, 9))
    data.memmap("train", "image")
    fetched = put().fetched
    fetched.verify_regions()
    path = column_path(data.columns_folder, "train", "image")
    flip_bit(path, 5 * data.input_column.stride)
    with pytest.raises(CorruptColumn, match=r"rows-4-9/train/image.bin .* rows \d+ to \d+\); del"):
        fetched.verify_regions()


def test_a_column_that_was_cut_off_since_is_fetched_again(put):
    data = put()
    images = np.array(data.memmap("train", "image"))
    path = column_path(data.columns_folder, "train", "image")
    os.truncate(path, images.nbytes // 2)
    rows = put().for_rows((3, 9)).memmap("train", "image")
    assert np.array_equal(rows[3:9], images[3:9]), "not from what is left of the whole"
    assert np.array_equal(put().memmap("train", "image"), images)
    assert path.stat().st_size == images.nbytes


RANGE_BYTES = 5_000  # so that a shard is fetched in several ranges


def write_shards(arrays: Path, out: Path, storage: Storage, **more: object) -> ShardIndex:
    """The shards of the arrays, in the store."""
    manifest, settings = read_manifest(arrays / "manifest"), ShardSettings(min_shards=3, writers=2)
    return writing.shard(manifest, out, settings=settings, storage=storage, **more)


@pytest.fixture
def storage(tmp_path, bucket_url) -> Storage:
    return Storage(url=bucket_url, cache=tmp_path / "cache")


@pytest.fixture
def in_store(arrays, tmp_path, storage, monkeypatch) -> tuple[ShardIndex, ShardFiles]:
    """Shards in the store, and nothing of them on this machine."""
    monkeypatch.setattr(shard_files, "RANGE_BYTES", RANGE_BYTES)
    index = write_shards(arrays, tmp_path / "shards", storage)
    shutil.rmtree(storage.cache)
    return index, ShardFiles(folder=tmp_path / "shards", storage=storage)


def read_all(index: ShardIndex, files: ShardFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.paths(index.shards)}


def test_index_offsets_and_bytes_are_those_of_files(arrays, in_store):
    index, files = in_store
    found = read_all(index, files)
    assert len(found) == len(index.shards)
    assert read_files(files.folder) | found == read_files(arrays / "shards")
    both = ShardFiles(folder=arrays / "shards"), files
    assert len({len(open_records(one, index.for_split("train"))) for one in both}) == 1


@pytest.fixture
def both(arrays, in_store, tmp_path) -> dict[str, PreparedData]:
    """Prepared data of which shards and columns are in the store."""
    index, files = in_store
    out = Destination(folder=tmp_path / "snapshot", store=open_store(files.storage.url))
    write_snapshot(index, files, out, preprocess=PREPROCESS["arrays"])
    return {"arrays": open_snapshot(tmp_path, out.folder, "arrays", storage=files.storage)}


INDEXED = {"read": "indexed_shards", "shuffle": {"kind": "global"}, "vectorize": True}
WAYS = slow_but_first([INDEXED, {"shuffle": {"kind": "none"}}])


@pytest.mark.parametrize("config", WAYS, ids=["indexed", "stream"])
def test_each_way_of_reading_gives_the_batches_of_files(both, stored, config):
    assert same(batches(pipeline(both, **config)), batches(pipeline(stored, **config)))


def test_shards_that_are_read_are_fetched_once_and_no_others(both, storage, proxy):
    shutil.rmtree(storage.cache)
    pipeline(both, read="snapshot", shuffle={"kind": "global"}).dataset()
    assert not fetched(proxy, "/shards/")
    for _ in range(2):
        batches(pipeline(both, shuffle={"kind": "none"}))
    of_split = both["arrays"].shards.for_split("train")
    assert fetched(proxy, "/shards/") == sum(shard.bytes for shard in of_split)


def test_faults_that_pass_leave_the_right_bytes(arrays, in_store, proxy):
    index, files = in_store
    faults = iter(["corrupt", None, "cut", "503", None, "late"])
    proxy.fault = lambda method, path: next(faults, None)
    found = read_all(index, files)
    assert found == {name: read_files(arrays / "shards")[name] for name in found}
    assert next(faults, None) is None


def test_damage_that_stays_is_named_with_object_and_shard(in_store, proxy, storage):
    index, files = in_store
    first = index.shards[0]
    proxy.fault = lambda method, path: "corrupt"
    named = rf"{first.digest} does not match its digest, .* \(shard {first.name}\)"
    with pytest.raises(ObjectStoreFailed, match=named):
        files.path(first)
    ranges = -(-first.bytes // RANGE_BYTES)
    assert proxy.count("GET") == (1 + RETRIES) * ranges
    assert not [path for path in storage.cache.rglob("*") if path.is_file()]
    proxy.fault = lambda method, path: None
    open_store(storage.url).delete([object_name(first.digest)])
    with pytest.raises(ObjectStoreFailed, match=rf"no such object.* \(shard {first.name}; "):
        files.path(first)


def test_what_was_fetched_and_is_damaged_is_found_and_can_be_fetched_again(in_store):
    index, files = in_store
    shard = index.shards[0]
    path = files.path(shard)
    data = path.read_bytes()
    flip_bit(path, 100)
    assert files.find_damage(shard)
    assert files.fix_hint(shard) == f"delete {path} to fetch it again"
    assert find_damaged_shards(index, files) == {}, "the store has it whole"
    assert not files.is_here(shard)
    files.path(shard).write_bytes(data[:-1])
    assert files.path(shard).read_bytes() == data, "what has been cut off is seen"


def test_what_an_earlier_run_put_stays_as_it_is(
    arrays, in_store, tmp_path, storage, proxy, monkeypatch
):
    index, files = in_store
    written = files.folder.rename(tmp_path / "earlier")
    monkeypatch.setattr(writing, "write_frames", None)
    assert write_shards(arrays, tmp_path / "shards", storage, earlier=written) == index
    assert not proxy.count("PUT")
    assert read_files(tmp_path / "shards") == read_files(written)


@pytest.mark.slow
def test_a_kill_while_putting_is_gone_on_from(arrays, tmp_path, storage, proxy):
    third = "PUT", "", 3  # when one of two writers has noted its first shard
    kill_at(proxy, third, write_shards, (arrays, tmp_path / "shards", storage))
    assert not (tmp_path / "shards").exists()
    there = {one.name for one in open_store(storage.url).list()}
    done = len(list(tmp_path.glob("shards.*.partial/.done-*")))
    proxy.requests.clear()
    index = write_shards(arrays, tmp_path / "shards", storage)
    assert 0 < done < len(index.shards)
    assert proxy.count("PUT") == len(index.shards) - len(there)
    assert index == read_shard_index(arrays / "shards")
    assert not list((tmp_path / "shards").glob(".done-*"))
    shutil.rmtree(storage.cache)
    found = read_all(index, ShardFiles(folder=tmp_path / "shards", storage=storage))
    assert found == {name: read_files(arrays / "shards")[name] for name in found}
