"""Shards in an object store have the bytes and records of files, through every fault."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.lanes import slow_but_first
from tests.support.small_data import read_files
from tests.support.small_pipelines import PREPROCESS, batches, open_snapshot, pipeline, same
from tests.support.stored_snapshots import kill_at
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
from throughline.settings import ShardSettings
from throughline.shared.errors import ObjectStoreFailed
from throughline.shared.object_store import RETRIES, open_store

pytestmark = pytest.mark.integration
RANGE_BYTES = 5_000  # so that a shard is fetched in several ranges


def put_shards(arrays: Path, out: Path, storage: Storage, **more: object) -> ShardIndex:
    """The shards of the arrays, in the store."""
    manifest, settings = read_manifest(arrays / "manifest"), ShardSettings(min_shards=3, writers=2)
    return writing.shard(manifest, out, settings=settings, storage=storage, **more)


@pytest.fixture
def storage(tmp_path, bucket_url) -> Storage:
    return Storage(url=bucket_url, cache=tmp_path / "cache")


@pytest.fixture
def put(arrays, tmp_path, storage, monkeypatch) -> tuple[ShardIndex, ShardFiles]:
    """Shards in the store, and nothing of them on this machine."""
    monkeypatch.setattr(shard_files, "RANGE_BYTES", RANGE_BYTES)
    index = put_shards(arrays, tmp_path / "shards", storage)
    shutil.rmtree(storage.cache)
    return index, ShardFiles(folder=tmp_path / "shards", storage=storage)


def read_all(index: ShardIndex, files: ShardFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.paths(index.shards)}


def test_index_offsets_and_bytes_are_those_of_files(arrays, put, tmp_path):
    index, files = put
    expected = read_files(arrays / "shards")
    found = read_all(index, files)
    assert len(found) == len(index.shards)
    assert read_files(files.folder) | found == expected
    both = ShardFiles(folder=arrays / "shards"), files
    assert len({len(open_records(one, index.for_split("train"))) for one in both}) == 1


def open_both(arrays: Path, put, tmp_path: Path) -> PreparedData:
    """Prepared data of which shards and columns are in the store."""
    index, files = put
    out = Destination(folder=tmp_path / "snapshot", store=open_store(files.storage.url))
    write_snapshot(index, files, out, preprocess=PREPROCESS["arrays"])
    (tmp_path / "manifest").symlink_to(arrays / "manifest")
    return open_snapshot(tmp_path, out.folder, "arrays", storage=files.storage)


WAYS = [
    {"read": "indexed_shards", "shuffle": {"kind": "global"}, "vectorize": True},
    {"shuffle": {"kind": "none"}},
]


@pytest.mark.parametrize("config", slow_but_first(WAYS), ids=["indexed", "stream"])
def test_each_way_of_reading_gives_the_batches_of_files(arrays, stored, put, tmp_path, config):
    data = {"arrays": open_both(arrays, put, tmp_path)}
    assert same(batches(pipeline(data, **config)), batches(pipeline(stored, **config)))


def test_what_is_read_is_fetched_once_and_nothing_else(arrays, put, tmp_path, proxy):
    data = open_both(arrays, put, tmp_path)
    shutil.rmtree(data.storage.cache)
    proxy.requests.clear()
    pipeline({"arrays": data}, read="snapshot", shuffle={"kind": "global"}).dataset()
    assert not [path for _, path, _ in proxy.requests if "/shards/" in path]
    for _ in range(2):
        batches(pipeline({"arrays": data}, shuffle={"kind": "none"}))
    got = sum(size for _, path, size in proxy.requests if "/shards/" in path)
    assert got == sum(shard.bytes for shard in data.shards.for_split("train"))


def test_faults_that_pass_leave_the_right_bytes(arrays, put, proxy):
    index, files = put
    faults = iter(["corrupt", None, "cut", "503", None, "late"])
    proxy.fault = lambda method, path: next(faults, None)
    found = read_all(index, files)
    assert found == {name: read_files(arrays / "shards")[name] for name in found}
    assert next(faults, None) is None


def test_damage_that_stays_is_named_with_object_and_shard(put, proxy, storage):
    index, files = put
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


def test_what_was_fetched_and_is_damaged_is_found_and_can_be_fetched_again(put):
    index, files = put
    shard = index.shards[0]
    path = files.path(shard)
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"?" + data[101:])
    assert files.find_damage(shard)
    assert files.fix_hint(shard) == f"delete {path} to fetch it again"
    assert find_damaged_shards(index, files) == {}, "the store has it whole"
    assert not files.is_here(shard)
    files.path(shard).write_bytes(data[:-1])
    assert files.path(shard).read_bytes() == data, "what has been cut off is seen"


@pytest.mark.slow
def test_two_who_fetch_into_one_folder_fetch_once(put, proxy):
    index, files = put
    proxy.fault = lambda method, path: "late"
    with ThreadPoolExecutor(2) as threads:
        paths = list(threads.map(files.paths, [index.shards, index.shards]))
    assert paths[0] == paths[1]
    got = sum(size for method, _, size in proxy.requests if method == "GET")
    assert got == sum(shard.bytes for shard in index.shards)


def test_what_an_earlier_run_put_stays_as_it_is(arrays, put, tmp_path, storage, proxy, monkeypatch):
    index, files = put
    written = files.folder.rename(tmp_path / "earlier")
    monkeypatch.setattr(writing, "write_frames", None)
    assert put_shards(arrays, tmp_path / "shards", storage, earlier=written) == index
    assert not proxy.count("PUT")
    assert read_files(tmp_path / "shards") == read_files(written)


@pytest.mark.slow
def test_a_kill_while_putting_is_gone_on_from(arrays, tmp_path, storage, proxy):
    third = "PUT", "", 3  # when one of two writers has noted its first shard
    kill_at(proxy, third, put_shards, (arrays, tmp_path / "shards", storage))
    assert not (tmp_path / "shards").exists()
    there = {one.name for one in open_store(storage.url).list()}
    done = len(list(tmp_path.glob("shards.*.partial/.done-*")))
    proxy.requests.clear()
    index = put_shards(arrays, tmp_path / "shards", storage)
    assert 0 < done < len(index.shards)
    assert proxy.count("PUT") == len(index.shards) - len(there)
    assert index == read_shard_index(arrays / "shards")
    assert not list((tmp_path / "shards").glob(".done-*"))
    shutil.rmtree(storage.cache)
    found = read_all(index, ShardFiles(folder=tmp_path / "shards", storage=storage))
    assert found == {name: read_files(arrays / "shards")[name] for name in found}
