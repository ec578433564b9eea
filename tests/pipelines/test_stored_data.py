"""Columns and shards in an object store have the bytes of files, through every fault."""

import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from tests.support.object_stores import BUCKET
from tests.support.small_data import flip_bit, read_files
from tests.support.small_pipelines import batches, open_snapshot, pipeline, same
from tests.support.stored_snapshots import fetch_all, kill_at, open_stored, use_small_pieces, write
from throughline.data.columns import fetching
from throughline.data.columns.index import column_path, verify
from throughline.data.manifest import read_manifest
from throughline.data.shards import files as shard_files
from throughline.data.shards import writing
from throughline.data.shards.files import object_name
from throughline.data.shards.index import ShardIndex, read_shard_index
from throughline.data.shards.record_offsets import open_records
from throughline.data.shards.repair import find_damaged_shards
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.settings import ShardSettings
from throughline.shared import errors
from throughline.shared.object_store import RETRIES, open_store

pytestmark = pytest.mark.integration
IMAGES, SHARDS = "/train/image/", "/shards/"  # in the names of objects


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    use_small_pieces(monkeypatch)
    monkeypatch.setattr(shard_files, "RANGE_BYTES", 5_000)  # several of them in a shard


def write_shards(arrays: Path, out: Path, storage: Storage, **more: object) -> ShardIndex:
    """The shards of the arrays, in the store."""
    manifest, settings = read_manifest(arrays / "manifest"), ShardSettings(min_shards=3, writers=2)
    return writing.shard(manifest, out, settings=settings, storage=storage, **more)


@pytest.fixture(scope="module")
def in_store(arrays, tmp_path_factory, store_variables) -> tuple[Path, str]:
    """The folder of the indexes of shards and snapshot, whose data is at a URL; to read only."""
    folder, url = tmp_path_factory.mktemp("put"), f"s3://{BUCKET}/{secrets.token_hex(8)}"
    (folder / "manifest").symlink_to(arrays / "manifest")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in store_variables.items():
            patched.setenv(name, value)
        use_small_pieces(patched)
        write_shards(arrays, folder / "shards", Storage(url=url, cache=folder / "cache"))
        write(arrays, folder / "snapshot", url)
    return folder, url


@pytest.fixture
def put(in_store, object_store, tmp_path) -> Callable[..., PreparedData]:
    """A function that opens these data with a cache folder, in which nothing is yet."""
    folder, url = in_store
    return lambda cache="cache": open_stored(folder, folder / "snapshot", url, tmp_path / cache)


def fetched(proxy, part=IMAGES):
    """How many bytes of such objects have passed."""
    return sum(size for _, path, size in proxy.requests if part in path)


def read_shards(data: PreparedData) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in data.shard_files.paths(data.shards.shards)}


@pytest.mark.parametrize("kind", slow_but_first(["arrays", "unlike"]))
def test_index_and_columns_are_those_of_files(arrays, photos, tmp_path, bucket_url, kind):
    """Also of two shares of the rows, which are under one key."""
    folder, shares = arrays if kind == "arrays" else photos, (1.0, 0.4)
    for share in shares:
        for name, url in (("files", ""), ("put", bucket_url)):
            write(folder, tmp_path / f"{name} {share}", url, kind=kind, fraction=share)
    for share in shares:
        files, out = read_files(tmp_path / f"files {share}"), tmp_path / f"put {share}"
        assert read_files(out) == {"index.json": files["index.json"]}
        data = open_stored(folder, out, bucket_url, tmp_path / f"cache {share}", kind=kind)
        for name, values in fetch_all(data).items():
            assert values == files[f"{name}.bin"], name
        verify(data.columns_folder, data.snapshot)


def test_index_offsets_and_bytes_are_those_of_files(arrays, stored, put):
    data, files = put(), stored["arrays"].shard_files
    assert read_files(data.shards_folder) | read_shards(data) == read_files(arrays / "shards")
    of_train = data.shards.for_split("train")
    assert len(open_records(data.shard_files, of_train)) == len(open_records(files, of_train))


INDEXED = {"read": "indexed_shards", "shuffle": {"kind": "global"}, "vectorize": True}
IN_ORDER = {"shuffle": {"kind": "none"}}


@pytest.mark.parametrize("config", slow_but_first([INDEXED, IN_ORDER]), ids=["indexed", "stream"])
def test_each_way_of_reading_gives_the_batches_of_files(put, stored, config):
    assert same(batches(pipeline({"arrays": put()}, **config)), batches(pipeline(stored, **config)))


def test_what_is_read_is_fetched_once_and_nothing_else(put, proxy):
    data = put()
    data.memmap("validation", "label")
    paths = [path for _, path, _ in proxy.requests if "/index/" not in path]
    assert paths and all("/validation/label/" in path for path in paths)
    fetch_all(data)
    whole = sum(map(data.snapshot.bytes, data.snapshot.splits))
    assert fetched(proxy, "/") - fetched(proxy, "/index/") == whole, "of no shard"
    for _ in range(2):
        batches(pipeline({"arrays": data}, **IN_ORDER))
        fetch_all(put())
    of_split = data.shards.for_split("train")
    assert fetched(proxy, SHARDS) == sum(shard.bytes for shard in of_split)
    assert fetched(proxy, "/") - fetched(proxy, "/index/") - fetched(proxy, SHARDS) == whole


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


def test_faults_that_pass_leave_the_right_bytes(arrays, put, proxy):
    data, faults = put(), iter(["corrupt", None, "cut", "503", None, "late"])
    proxy.fault = lambda method, path: next(faults, None)
    found = read_shards(data)
    assert found == {name: read_files(arrays / "shards")[name] for name in found}
    assert next(faults, None) is None


@pytest.mark.parametrize(
    ("part", "read", "named"),
    [
        (IMAGES, lambda data: data.memmap("train", "image"), "column image of the train .*, rows "),
        (SHARDS, read_shards, r"\(shard train-00000"),
    ],
    ids=["columns", "shards"],
)
def test_damage_that_stays_is_named_with_its_object(put, proxy, tmp_path, part, read, named):
    spoiled = []

    def spoil(method, path):  # always the same object
        if part in path and path == (spoiled or [path])[0]:
            spoiled.append(path)
            return "corrupt"
        return None

    proxy.fault = spoil
    said = f"does not match its digest, .*{named}"
    with pytest.raises(errors.ObjectStoreFailed, match=said) as failed:
        read(put())
    assert spoiled[0].removeprefix("/data/") in str(failed.value)
    assert len(spoiled) >= 1 + RETRIES
    assert not [path for path in tmp_path.glob("cache/**/*.*") if path.suffix != ".partial"]


def test_an_object_or_index_that_is_missing_or_another_ones_is_named(
    arrays, in_store, tmp_path, bucket_url
):
    folder, storage = tmp_path / "put", Storage(url=bucket_url, cache=tmp_path / "cache")
    first = write_shards(arrays, tmp_path / "shards", storage).shards[0]
    write(arrays, folder, bucket_url)
    shutil.rmtree(storage.cache)
    store = open_store(bucket_url)
    names = [one.name for one in store.list()]

    def data(cache="cache"):
        return open_stored(tmp_path, folder, bucket_url, tmp_path / cache)

    (tmp_path / "manifest").symlink_to(arrays / "manifest")
    gone = next(name for name in names if IMAGES in f"/{name}")
    store.delete([gone, object_name(first.digest)])
    with pytest.raises(errors.ObjectStoreFailed, match=f"{gone}: there is no such object.* rows "):
        data().memmap("train", "image")
    with pytest.raises(errors.ObjectStoreFailed, match=rf"no such object.* \(shard {first.name}; "):
        read_shards(data())
    index = next(name for name in names if "/index/" in name)
    store.write(index, store.read(index).replace(index.partition("/")[0].encode(), b"0" * 32))
    with pytest.raises(errors.StaleSnapshot, match="is of another snapshot"):
        data().memmap("train", "key")
    store.delete([index])
    with pytest.raises(errors.StaleSnapshot, match=r"is not there, .* correct storage.url"):
        data("second").memmap("train", "key")


def test_columns_are_read_where_they_are_whatever_the_url(arrays, in_store, tmp_path):
    with pytest.raises(errors.MissingInput, match=r"holds only the index.* set storage.url"):
        open_snapshot(arrays, in_store[0] / "snapshot", "arrays")
    write(arrays, tmp_path / "files")
    data = open_stored(arrays, tmp_path / "files", "s3://nowhere", tmp_path / "cache")
    fetch_all(data)
    assert not (tmp_path / "cache").exists()
    column_path(tmp_path / "files", "train", "image").write_bytes(b"")
    with pytest.raises(errors.CorruptColumn):
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
        proxy.fault = lambda method, path: fill(small_disk) if IMAGES in path else None
    with pytest.raises((OSError, errors.DiskRefused)):
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
    kill_at(proxy, ("GET", IMAGES, 32), data.fetched.fetch, ("train", data.input_column))
    assert not column_path(data.columns_folder, "train", "image").exists()
    proxy.requests.clear()
    values = put().memmap("train", "image")
    assert 0 < fetched(proxy) < size, "only what was not there"
    assert np.array_equal(values, put("other").memmap("train", "image"))


@pytest.mark.slow
def test_two_who_fetch_into_one_folder_fetch_once(put, proxy):
    opened, data = [put(), put()], put()
    proxy.fault = lambda method, path: "late"
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda data: data.memmap("train", "image"), opened))
        list(threads.map(read_shards, opened))
    assert fetched(proxy) == data.snapshot.splits["train"].bytes(data.input_column)
    assert fetched(proxy, SHARDS) == sum(shard.bytes for shard in data.shards.shards)


def test_an_upload_that_fails_is_named_with_object_and_rows(arrays, tmp_path, bucket_url, proxy):
    proxy.fault = lambda used, path: "403" if used == "PUT" and IMAGES in path else None
    said = f"{bucket_url}/.*HTTP 403.*column image of the train split, rows "
    with pytest.raises(errors.ObjectStoreFailed, match=said):
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
def test_a_kill_while_putting_is_gone_on_from(arrays, tmp_path, bucket_url, proxy):
    storage = Storage(url=bucket_url, cache=tmp_path / "cache")
    third = "PUT", "", 3  # when one of two writers has noted its first shard
    kill_at(proxy, third, write_shards, (arrays, tmp_path / "shards", storage))
    assert not (tmp_path / "shards").exists()
    there = len(list(open_store(bucket_url).list()))
    done = len(list(tmp_path.glob("shards.*.partial/.done-*")))
    proxy.requests.clear()
    index = write_shards(arrays, tmp_path / "shards", storage)
    assert index == read_shard_index(arrays / "shards") and 0 < done < len(index.shards)
    assert proxy.count("PUT") == len(index.shards) - there
    assert not list((tmp_path / "shards").glob(".done-*"))


def test_what_an_earlier_run_put_stays_as_it_is(
    arrays, in_store, object_store, tmp_path, proxy, monkeypatch
):
    folder, url = in_store
    storage = Storage(url=url, cache=tmp_path / "cache")
    earlier = folder / "shards"
    write_shards(arrays, tmp_path / "again", storage)
    assert not proxy.count("PUT"), "of what is there already"
    monkeypatch.setattr(writing, "write_frames", None)
    index = write_shards(arrays, tmp_path / "shards", storage, earlier=earlier)
    assert index == read_shard_index(earlier) and not proxy.count("PUT")
    assert read_files(tmp_path / "shards") == read_files(earlier)


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


def test_columns_that_are_damaged_since_they_were_fetched_are_named_or_fetched_again(put):
    data, images = put().for_rows((4, 9)), np.array(put().memmap("train", "image"))
    path = column_path(put().columns_folder, "train", "image")
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(data.memmap("train", "image")[4:9], images[4:9]), "not what is left"
    assert np.array_equal(put().memmap("train", "image"), images)
    fetched = put().fetched
    fetched.verify_regions()
    flip_bit(column_path(data.columns_folder, "train", "image"), 5 * data.input_column.stride)
    said = r"rows-4-9/train/image.bin .* rows \d+ to \d+\); del"
    with pytest.raises(errors.CorruptColumn, match=said):
        fetched.verify_regions()


def test_a_shard_that_is_damaged_since_it_was_fetched_is_found_and_fetched_again(put):
    data = put()
    files, shard = data.shard_files, data.shards.shards[0]
    path = files.path(shard)
    content = path.read_bytes()
    flip_bit(path, 100)
    assert files.find_damage(shard)
    assert files.fix_hint(shard) == f"delete {path} to fetch it again"
    assert find_damaged_shards(data.shards, files) == {}, "the store has it whole"
    assert not files.is_here(shard)
    files.path(shard).write_bytes(content[:-1])
    assert files.path(shard).read_bytes() == content, "what has been cut off is seen"
