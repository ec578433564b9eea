"""A snapshot whose columns are in an object store: the same bytes as in files, through every fault
of the way there and back.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lanes import slow_but_first
from object_stores import RANGE_BYTES, Proxy, fetch_slowly, fetch_with_file_limit
from small_pipelines import PREPROCESS, batches, pipeline, same

from throughline.data.columns import fetching, stored
from throughline.data.columns.fetching import Storage
from throughline.data.columns.index import column_path, find_span, verify
from throughline.data.columns.stored import Destination
from throughline.data.shards.index import read_shard_index
from throughline.pipelines.read.prepared_data import PreparedData, open_prepared_data
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.augmentations import RandomCrop
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import SnapshotSettings
from throughline.shared.errors import (
    CorruptColumn,
    DiskRefused,
    MissingInput,
    ObjectStoreFailed,
    StaleSnapshot,
)
from throughline.shared.object_store import RETRIES, open_store

CHUNK_BYTES = 1_200  # so that small data make many chunks and objects
OTHER = multiprocessing.get_context("spawn")


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(stored, "OBJECT_BYTES", RANGE_BYTES)
    monkeypatch.setattr(fetching, "RANGE_BYTES", RANGE_BYTES)


def write(folder: Path, out: Path, url: str = "", *, kind: str = "arrays", fraction: float = 1.0):
    """The snapshot of prepared data, in a folder or with its columns in a store."""
    write_snapshot(
        read_shard_index(folder / "shards"),
        folder / "shards",
        Destination(folder=out, store=open_store(url) if url else None),
        preprocess=PREPROCESS[kind],
        settings=SnapshotSettings(fraction=fraction),
    )


def open_stored(
    folder: Path, out: Path, url: str, cache: Path, *, kind: str = "arrays"
) -> PreparedData:
    return open_prepared_data(
        manifest=folder / "manifest",
        shards=folder / "shards",
        snapshot=out,
        preprocess=PREPROCESS[kind],
        storage=Storage(url=url, cache=cache),
    )


def fetch_all(data: PreparedData) -> dict[str, bytes]:
    """The bytes of all columns, by split and name."""
    return {
        f"{split}/{column.name}": np.asarray(data.memmap(split, column.name)).tobytes()
        for split in data.snapshot.splits
        for column in data.snapshot.columns
    }


@pytest.fixture
def put(arrays, tmp_path, bucket_url, small_pieces):
    """The arrays' snapshot in a store, and a function that opens it with a cache folder."""
    write(arrays, tmp_path / "put", bucket_url)
    return lambda cache="cache": open_stored(arrays, tmp_path / "put", bucket_url, tmp_path / cache)


@pytest.mark.parametrize("kind", ["arrays", "photos"])
@pytest.mark.parametrize("fraction", [1.0, 0.4, 0.0])
def test_digests_index_and_columns_are_those_of_files(
    request, tmp_path, bucket_url, small_pieces, monkeypatch, kind, fraction
):
    folder = request.getfixturevalue(kind)
    if kind == "photos":  # of variable size
        monkeypatch.setitem(PREPROCESS, "photos", PREPROCESS["arrays"])
    write(folder, tmp_path / "files", kind=kind, fraction=fraction)
    write(folder, tmp_path / "put", bucket_url, kind=kind, fraction=fraction)
    index = "index.json"
    assert (tmp_path / "put" / index).read_bytes() == (tmp_path / "files" / index).read_bytes()
    assert [path.name for path in (tmp_path / "put").rglob("*") if path.is_file()] == [index]
    data = open_stored(folder, tmp_path / "put", bucket_url, tmp_path / "cache", kind=kind)
    for name, values in fetch_all(data).items():
        assert values == (tmp_path / "files" / f"{name}.bin").read_bytes(), name
    verify(data.columns_folder, data.snapshot)


def test_two_shares_of_the_rows_are_under_one_key_without_harm(
    arrays, tmp_path, bucket_url, small_pieces
):
    for name, fraction in (("all", 1.0), ("most", 0.7)):
        write(arrays, tmp_path / name, bucket_url, fraction=fraction)
    for name in ("most", "all"):
        data = open_stored(arrays, tmp_path / name, bucket_url, tmp_path / "cache")
        fetch_all(data)
        verify(data.columns_folder, data.snapshot)


def test_what_is_fetched_is_the_columns_once(put, proxy):
    data = put()
    fetch_all(data)
    index = sum(size for _, path, size in proxy.requests if "/index/" in path)
    size = sum(map(data.snapshot.bytes, data.snapshot.splits))
    assert proxy.bytes_of("GET") - index == size
    proxy.requests.clear()
    fetch_all(put())
    assert not proxy.requests


def test_only_the_columns_that_are_read_are_fetched(put, proxy):
    data = put()
    data.memmap("validation", "label")
    assert {path.split("/")[5] for _, path, _ in proxy.requests if "/index/" not in path} == {
        "label"
    }


def test_no_row_is_zero_while_columns_are_fetched(put, proxy):
    data = put()
    proxy.fault = lambda method, path: "late"
    seen = []

    def watch():
        path = column_path(data.columns_folder, "train", "key")
        while not path.exists():
            time.sleep(0.001)
        seen.append(np.fromfile(path, np.int64))

    watcher = threading.Thread(target=watch)
    watcher.start()
    keys = np.asarray(data.memmap("train", "key"))
    watcher.join()
    assert len(seen[0]) == len(keys) == data.snapshot.splits["train"].count
    assert (seen[0] != 0).all()
    assert (keys != 0).all()


@pytest.mark.parametrize("fault", slow_but_first(["corrupt", "cut", "late", "503"]))
def test_a_fault_that_passes_leaves_the_right_bytes(put, proxy, fault):
    expected = fetch_all(put("other"))
    faults = iter([None, fault, None, None, fault])  # the first two requests are of the index
    proxy.fault = lambda method, path: next(faults, None) if "/image/" in path else None
    assert fetch_all(put()) == expected
    assert next(faults, None) is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("corrupt", r"does not match its digest, also when fetched 3 times more \("),
        ("503", r"answered HTTP 503 \(503\), also when tried 3 times more \("),
        ("cut", "was not reached or stopped answering"),
    ],
)
def test_a_fault_that_stays_names_object_and_rows(put, proxy, fault, words):
    spoiled = []

    def spoil(method, path):
        if "/train/image/" in path and path == (spoiled or [path])[0]:
            spoiled.append(path)
            return fault
        return None

    proxy.fault = spoil
    with pytest.raises(ObjectStoreFailed, match=words) as failed:
        put().memmap("train", "image")
    assert spoiled[0].removeprefix("/data/") in str(failed.value)
    assert "column image of the train split, rows " in str(failed.value)
    assert len(spoiled) >= 1 + RETRIES
    assert not column_path(put().columns_folder, "train", "image").exists()


def test_an_object_that_is_missing_is_named_with_its_rows(put, bucket_url):
    store = open_store(bucket_url)
    gone = next(one.name for one in store.list() if "/train/image/" in one.name)
    store.delete([gone])
    with pytest.raises(ObjectStoreFailed, match=f"{gone}: there is no such object.* rows "):
        put().memmap("train", "image")


def test_an_index_of_another_key_is_refused(put, bucket_url):
    store = open_store(bucket_url)
    name = next(one.name for one in store.list() if "/index/" in one.name)
    store.write(name, store.read(name).replace(put().snapshot.key.encode(), b"0" * 32))
    with pytest.raises(StaleSnapshot, match="is of another snapshot"):
        put().memmap("train", "key")
    store.delete([name])
    with pytest.raises(StaleSnapshot, match=r"is not there, .* correct storage.url"):
        put("second").memmap("train", "key")


def test_without_the_url_the_index_alone_is_refused(put, arrays, tmp_path):
    with pytest.raises(MissingInput, match=r"holds the index alone.* set storage.url"):
        open_prepared_data(
            manifest=arrays / "manifest",
            shards=arrays / "shards",
            snapshot=tmp_path / "put",
            preprocess=PREPROCESS["arrays"],
        )


def test_columns_in_files_are_read_there_whatever_the_url(arrays, tmp_path):
    write(arrays, tmp_path / "files")
    data = open_stored(arrays, tmp_path / "files", "s3://nowhere", tmp_path / "cache")
    fetch_all(data)
    assert not (tmp_path / "cache").exists()
    column_path(tmp_path / "files", "train", "image").write_bytes(b"")
    with pytest.raises(CorruptColumn):
        open_stored(arrays, tmp_path / "files", "s3://nowhere", tmp_path / "cache")


def test_a_column_larger_than_the_disk_is_refused_with_both_sizes(put):
    data = put()
    rows = data.snapshot.splits["train"]
    images = data.input_column
    vast = replace(images, shape=(1 << 44, *images.shape[1:]))
    data = replace(data, fetched=replace(data.fetched, index=replace_column(data.snapshot, vast)))
    with pytest.raises(DiskRefused, match=r"needs [\d,.]+ MiB more for image.bin, and [\d,.]+ MiB"):
        data.fetched.fetch("train", vast)
    assert rows.count
    assert not list(data.columns_folder.rglob("image.bin"))


def replace_column(index, column):
    return replace(
        index, columns=tuple(column if one.name == column.name else one for one in index.columns)
    )


def test_a_file_that_cannot_grow_is_the_disks_error(put):
    """A limit on the size of files, as a quota is."""
    data = put()
    process = OTHER.Process(target=fetch_with_file_limit, args=(data.fetched, data.input_column))
    process.start()
    process.join(60)
    assert process.exitcode == 3


@pytest.mark.slow
def test_a_kill_while_fetching_is_gone_on_from(put, proxy, tmp_path):
    data = put()
    proxy.fault = lambda method, path: "late"
    chunks = data.snapshot.splits["train"].chunks
    assert len(chunks) > fetching.THREADS, "some are fetched after others"
    process = OTHER.Process(
        target=fetch_slowly, args=(data.fetched, data.input_column, proxy.endpoint)
    )
    process.start()
    while sum("/train/image/" in path for _, path, _ in proxy.requests[:]) < 32:
        assert process.is_alive()
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not column_path(data.columns_folder, "train", "image").exists()
    proxy.fault = lambda method, path: None
    proxy.requests.clear()
    size = data.snapshot.splits["train"].bytes(data.input_column)
    values = np.asarray(put().memmap("train", "image"))
    got = sum(length for _, path, length in proxy.requests if "/train/image/" in path)
    assert 0 < got < size, "only what was not there"
    assert values.tobytes() == np.asarray(put("other").memmap("train", "image")).tobytes()


@pytest.mark.slow
def test_two_processes_in_one_folder_fetch_once(put, proxy):
    data = put()
    proxy.fault = lambda method, path: "late"
    both = [
        OTHER.Process(target=fetch_slowly, args=(data.fetched, data.input_column, proxy.endpoint))
        for _ in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    got = sum(length for _, path, length in proxy.requests if "/train/image/" in path)
    assert got == data.snapshot.splits["train"].bytes(data.input_column)


@pytest.mark.parametrize(("method", "fault"), [("PUT", "503"), ("PUT", "lost"), ("HEAD", "503")])
def test_a_fault_of_an_upload_that_passes_leaves_the_right_bytes(
    arrays, tmp_path, bucket_url, proxy, small_pieces, method, fault
):
    faults = iter([None, fault, None, fault])
    proxy.fault = lambda used, path: (
        next(faults, None) if used == method and "/image/" in path else None
    )
    write(arrays, tmp_path / "put", bucket_url)
    assert not [*faults]
    write(arrays, tmp_path / "files")
    data = open_stored(arrays, tmp_path / "put", bucket_url, tmp_path / "cache")
    for name, values in fetch_all(data).items():
        assert values == (tmp_path / "files" / f"{name}.bin").read_bytes(), name


@pytest.mark.parametrize(
    ("method", "fault", "words"),
    [
        ("PUT", "503", r"answered HTTP 503 \(503\), also when tried 3 times more \("),
        ("PUT", "403", r"no permission \(HTTP 403\); check the credentials .* \("),
        ("HEAD", "503", r"also when tried 3 times more \("),
    ],
)
def test_a_fault_of_an_upload_that_stays_names_object_and_rows(
    arrays, tmp_path, bucket_url, proxy, small_pieces, method, fault, words
):
    proxy.fault = lambda used, path: fault if used == method and "/train/image/" in path else None
    with pytest.raises(ObjectStoreFailed, match=words) as failed:
        write(arrays, tmp_path / "put", bucket_url)
    assert f"{bucket_url}/" in str(failed.value)
    assert "column image of the train split, rows " in str(failed.value)
    assert not (tmp_path / "put").exists()


@pytest.mark.slow
@pytest.mark.parametrize("removed", [False, True])
def test_a_kill_while_uploading_is_gone_on_from(
    arrays, tmp_path, bucket_url, proxy, small_pieces, removed
):
    write(arrays, tmp_path / "files")
    proxy.fault = lambda method, path: "late" if method == "PUT" else None
    process = OTHER.Process(
        target=_write_slowly, args=(arrays, tmp_path / "put", bucket_url, proxy.endpoint)
    )
    process.start()
    while proxy.count("PUT") < 12:
        assert process.is_alive()
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "put").exists()
    assert not [one for one in open_store(bucket_url).list() if "/index/" in one.name]
    there = {one.name for one in open_store(bucket_url).list()}
    proxy.fault = lambda method, path: None
    if removed:  # as what nothing has reached for a day
        open_store(bucket_url).delete(sorted(there))
    proxy.requests.clear()
    write(arrays, tmp_path / "put", bucket_url)
    written = {path.split("/", 3)[3] for method, path, _ in proxy.requests if method == "PUT"}
    assert there
    assert there & written == (there if removed else set()), "what is there is not put again"
    index = "index.json"
    assert (tmp_path / "put" / index).read_bytes() == (tmp_path / "files" / index).read_bytes()
    fetch_all(open_stored(arrays, tmp_path / "put", bucket_url, tmp_path / "cache"))


def _write_slowly(folder: Path, out: Path, url: str, endpoint: str) -> None:
    snapshot_writer.ROWS_BYTES, stored.OBJECT_BYTES = CHUNK_BYTES, RANGE_BYTES
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    write(folder, out, url)


def test_two_writers_of_one_snapshot_do_no_harm(arrays, tmp_path, bucket_url, small_pieces):
    both = [
        threading.Thread(target=write, args=(arrays, tmp_path / name, bucket_url))
        for name in ("one", "two")
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    for name in ("one", "two"):
        data = open_stored(arrays, tmp_path / name, bucket_url, tmp_path / name / "cache")
        fetch_all(data)
        verify(data.columns_folder, data.snapshot)


def test_proxy_counts(proxy: Proxy, bucket_url):
    open_store(bucket_url).write("a", b"123")
    assert open_store(bucket_url).read("a") == b"123"
    assert (proxy.count("PUT"), proxy.bytes_of("GET")) == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "processes"), [("arrays", 4), ("photos", 2)])
def test_processes_fetch_the_rows_of_their_lanes_alone(
    request, tmp_path, bucket_url, small_pieces, monkeypatch, proxy, kind, processes
):
    folder = request.getfixturevalue(kind)
    if kind == "photos":  # of variable size
        monkeypatch.setitem(PREPROCESS, "photos", PREPROCESS["arrays"])
    crop = (RandomCrop(height=6, width=6),) if kind == "photos" else ()
    config = {"read": "snapshot", "shuffle": {"kind": "lanes", "lanes": 4}, "augment": crop}
    write(folder, tmp_path / "files", kind=kind)
    write(folder, tmp_path / "put", bucket_url, kind=kind)
    local = open_stored(folder, tmp_path / "files", bucket_url, tmp_path, kind=kind)

    def read(data, index):
        worker = TrainingWorker(index=index, count=processes)
        return batches(pipeline({kind: data}, kind, worker=worker, **config), epochs=2)

    def fetch():
        for index in range(processes):
            cache = tmp_path / f"cache{index}"
            data = open_stored(folder, tmp_path / "put", bucket_url, cache, kind=kind)
            assert same(read(data, index), read(local, index)), "no row is a hole"

    fetch()
    column, rows = local.input_column, local.snapshot.splits["train"]
    got = sum(size for _, path, size in proxy.requests if f"/train/{column.name}/" in path)
    spans = [
        find_span(tmp_path / "files", "train", column, chunk, rows.count) for chunk in rows.chunks
    ]
    largest = max(end - begin for begin, end in spans)
    assert 0 <= got - rows.bytes(column) <= 4 * largest
    proxy.requests.clear()
    fetch()
    assert not proxy.requests


def test_rows_of_a_region_are_fetched_and_no_others(put, proxy):
    whole, data = put("other"), put()
    images = np.asarray(whole.memmap("train", "image"))
    proxy.requests.clear()
    sizes = set()
    for rows in ((0, 1), (0, len(images) // 2), (len(images) // 2, len(images))):
        first, stop = rows
        found = data.for_rows(rows).memmap("train", "image")
        assert found.shape == images.shape and np.array_equal(found[first:stop], images[first:stop])
        sizes.add(sum(size for _, path, size in proxy.requests if "/train/image/" in path))
        proxy.requests.clear()
    assert max(sizes) < images.nbytes and len(sizes) > 1


def test_a_region_that_was_damaged_since_is_named(put):
    data = put().for_rows((4, 9))
    data.memmap("train", "image")
    fetched = put().fetched
    fetched.verify_regions()
    path = column_path(data.columns_folder, "train", "image")
    content = bytearray(path.read_bytes())
    content[5 * data.input_column.stride] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptColumn, match=r"rows-4-9/train/image.bin .* rows \d+ to \d+\); del"):
        fetched.verify_regions()


def test_rows_that_are_there_already_are_not_fetched_again(put, proxy):
    data = put()
    images = np.array(data.memmap("train", "image"))
    proxy.requests.clear()
    assert np.array_equal(data.for_rows((3, 9)).memmap("train", "image"), images)
    assert not proxy.requests


def test_a_column_that_was_cut_off_since_is_fetched_again(put):
    data = put()
    images = np.array(data.memmap("train", "image"))
    path = column_path(data.columns_folder, "train", "image")
    os.truncate(path, images.nbytes // 2)
    rows = put().for_rows((3, 9)).memmap("train", "image")
    assert np.array_equal(rows[3:9], images[3:9]), "not from what is left of the whole"
    assert np.array_equal(put().memmap("train", "image"), images)
    assert path.stat().st_size == images.nbytes
