"""A snapshot whose columns are in an object store: the same bytes as in files, through every fault
of the way there and back.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.object_stores import RANGE_BYTES, fetch_slowly, fetch_with_file_limit
from tests.support.small_data import read_files
from tests.support.small_pipelines import open_snapshot
from tests.support.stored_snapshots import (  # noqa: F401
    CHUNK_BYTES,
    arrays_in_store,
    fetch_all,
    open_stored,
    put,
    small_pieces,
    write,
)
from throughline.data.columns import fetching, stored
from throughline.data.columns.index import column_path, verify
from throughline.pipelines.write import snapshot_writer
from throughline.shared.errors import (
    CorruptColumn,
    DiskRefused,
    MissingInput,
    ObjectStoreFailed,
    StaleSnapshot,
)
from throughline.shared.failures import report_user_errors
from throughline.shared.object_store import BACKOFF, RETRIES, open_store

OTHER = multiprocessing.get_context("spawn")
PAGE = 4096  # bytes; what a file on a tmpfs takes at least


@pytest.mark.parametrize(
    ("kind", "fraction"), [("arrays", 1.0), ("unlike", 1.0), ("unlike", 0.4), ("arrays", 0.0)]
)
def test_digests_index_and_columns_are_those_of_files(
    arrays, photos, tmp_path, bucket_url, small_pieces, kind, fraction
):
    folder = arrays if kind == "arrays" else photos
    write(folder, tmp_path / "files", kind=kind, fraction=fraction)
    write(folder, tmp_path / "put", bucket_url, kind=kind, fraction=fraction)
    files = read_files(tmp_path / "files")
    assert read_files(tmp_path / "put") == {"index.json": files["index.json"]}
    data = open_stored(folder, tmp_path / "put", bucket_url, tmp_path / "cache", kind=kind)
    for name, values in fetch_all(data).items():
        assert values == files[f"{name}.bin"], name
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


def test_what_is_read_is_fetched_once_and_nothing_else(put, proxy):
    data = put()
    data.memmap("validation", "label")
    assert {path.split("/")[5] for _, path, _ in proxy.requests if "/index/" not in path} == {
        "label"
    }
    fetch_all(data)
    index = sum(size for _, path, size in proxy.requests if "/index/" in path)
    size = sum(map(data.snapshot.bytes, data.snapshot.splits))
    assert proxy.bytes_of("GET") - index == size
    proxy.requests.clear()
    fetch_all(put())
    assert not proxy.requests


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


def test_faults_that_pass_leave_the_right_bytes(put, proxy):
    expected = fetch_all(put("other"))
    # The first two requests are of the index.
    faults = iter([None, "corrupt", None, None, "cut", None, "late", None, "503"])
    proxy.fault = lambda method, path: next(faults, None) if "/image/" in path else None
    assert fetch_all(put()) == expected
    assert next(faults, None) is None


def test_damage_that_stays_is_named_with_object_and_rows(put, proxy):
    spoiled = []

    def spoil(method, path):
        if "/train/image/" in path and path == (spoiled or [path])[0]:
            spoiled.append(path)
            return "corrupt"
        return None

    proxy.fault = spoil
    with pytest.raises(
        ObjectStoreFailed, match=r"does not match its digest, also when fetched 3 times more \("
    ) as failed:
        put().memmap("train", "image")
    assert spoiled[0].removeprefix("/data/") in str(failed.value)
    assert "column image of the train split, rows " in str(failed.value)
    assert len(spoiled) >= 1 + RETRIES
    assert not column_path(put().columns_folder, "train", "image").exists()


def test_an_object_or_index_that_is_missing_or_another_ones_is_named(
    arrays, tmp_path, bucket_url, small_pieces
):
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
    with pytest.raises(MissingInput, match=r"holds the index alone.* set storage.url"):
        open_snapshot(arrays, arrays_in_store[0], "arrays")


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
    images, *others = data.snapshot.columns
    vast = replace(images, shape=(1 << 44, *images.shape[1:]))
    index = replace(data.snapshot, columns=(vast, *others))
    with pytest.raises(DiskRefused, match=r"needs [\d,.]+ MiB more for image.bin, and [\d,.]+ MiB"):
        replace(data.fetched, index=index).fetch("train", vast)
    assert not list(data.columns_folder.rglob("image.bin"))


def test_a_file_that_cannot_grow_is_the_disks_error(put):
    """A limit on the size of files, as a quota is."""
    data = put()
    process = OTHER.Process(target=fetch_with_file_limit, args=(data.fetched, data.input_column))
    process.start()
    process.join(60)
    assert process.exitcode == 3


def fill(disk: Path) -> None:
    """Take all room of a disk, as others do who write to it."""
    with suppress(OSError), (disk / "others").open("ab", buffering=0) as file:
        while file.write(bytes(PAGE)):
            pass


@pytest.mark.parametrize(
    ("full", "words"),
    [
        ("before", "DiskFull: no space is left"),
        ("meanwhile", "DiskRefused: "),
        ("since room was counted", "DiskFull: no space is left"),
    ],
)
def test_on_a_full_disk_whole_columns_alone_are_left_and_the_next_run_fetches_the_rest(
    put, proxy, small_disk, monkeypatch, capsys, full, words
):
    expected = fetch_all(put("other"))
    if full == "meanwhile":  # a column that has been started has its room
        proxy.fault = lambda method, path: fill(small_disk) if "/train/image/" in path else None
    else:
        fill(small_disk)
    if full == "since room was counted":
        taken = small_disk / "others"
        os.truncate(taken, taken.stat().st_size - 2 * PAGE)  # a lock fits, images do not
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))
    with pytest.raises(SystemExit) as ended, report_user_errors():
        fetch_all(put("disk/cache"))
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(words) and "free some space" in said.lower()
    assert said.count("\n") == 1
    found = {f"{one.parent.name}/{one.stem}": one.read_bytes() for one in small_disk.rglob("*.bin")}
    assert list(found) == ["train/image"] * (full == "meanwhile")
    assert found.items() <= expected.items()
    proxy.fault = lambda method, path: None
    (small_disk / "others").unlink()
    assert fetch_all(put("disk/cache")) == expected


@pytest.mark.slow
def test_a_kill_while_fetching_is_gone_on_from(put, proxy, tmp_path):
    data = put()
    proxy.fault = lambda method, path: "late"
    chunks = data.snapshot.splits["train"].chunks
    assert len(chunks) > fetching.READERS, "some are fetched after others"
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


def test_two_who_fetch_into_one_folder_fetch_once(put, proxy):
    proxy.fault = lambda method, path: "late"
    opened = [put(), put()]
    run_both(lambda data: data.memmap("train", "image"), opened)
    got = sum(length for _, path, length in proxy.requests if "/train/image/" in path)
    assert got == opened[0].snapshot.splits["train"].bytes(opened[0].input_column)


def run_both(function, arguments):
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(function, arguments))


def test_faults_of_an_upload_that_pass_leave_the_right_bytes(
    arrays, tmp_path, bucket_url, proxy, small_pieces
):
    faults = {"PUT": iter([None, "503", None, "lost"]), "HEAD": iter([None, "503"])}
    proxy.fault = lambda method, path: (
        next(faults[method], None) if method in faults and "/image/" in path else None
    )
    write(arrays, tmp_path / "put", bucket_url)
    assert not [fault for left in faults.values() for fault in left]
    write(arrays, tmp_path / "files")
    files = read_files(tmp_path / "files")
    data = open_stored(arrays, tmp_path / "put", bucket_url, tmp_path / "cache")
    for name, values in fetch_all(data).items():
        assert values == files[f"{name}.bin"], name


@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_a_fault_of_an_upload_that_stays_is_named_with_object_and_rows(
    arrays, tmp_path, bucket_url, proxy, small_pieces, method
):
    proxy.fault = lambda used, path: "403" if used == method and "/train/image/" in path else None
    with pytest.raises(
        ObjectStoreFailed, match=r"no permission \(HTTP 403\); check the credentials .* \("
    ) as failed:
        write(arrays, tmp_path / "put", bucket_url)
    assert f"{bucket_url}/" in str(failed.value)
    assert "column image of the train split, rows " in str(failed.value)
    assert not (tmp_path / "put").exists()


@pytest.mark.slow
def test_a_kill_while_uploading_is_gone_on_from(arrays, tmp_path, bucket_url, proxy, small_pieces):
    write(arrays, tmp_path / "files")
    store, index = open_store(bucket_url), (tmp_path / "files" / "index.json").read_bytes()
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
    seen = 0
    while seen < (seen := proxy.count("PUT")):  # what was under way arrives
        time.sleep(0.5)
    there = {one.name for one in store.list()}
    assert there and not [name for name in there if "/index/" in name]
    proxy.fault = lambda method, path: None
    (left,) = tmp_path.glob("put.*.partial")
    shutil.copytree(left, tmp_path / "left")

    def go_on():
        """The names of the objects that are put."""
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


def test_a_store_that_is_away_at_the_last_request_costs_that_alone(
    arrays, tmp_path, bucket_url, proxy, small_pieces, monkeypatch
):
    for wait in ("init_backoff", "max_backoff"):
        monkeypatch.setitem(BACKOFF, wait, timedelta(milliseconds=1))
    proxy.fault = lambda method, path: "503" if method == "PUT" and "/index/" in path else None
    with pytest.raises(ObjectStoreFailed, match="/index/"):
        write(arrays, tmp_path / "put", bucket_url)
    assert not (tmp_path / "put").exists()
    proxy.fault = lambda method, path: None
    proxy.requests.clear()
    write(arrays, tmp_path / "put", bucket_url)
    (put,) = [path for method, path, _ in proxy.requests if method == "PUT"]
    assert "/index/" in put
    assert list(read_files(tmp_path / "put")) == ["index.json"]


def _write_slowly(folder: Path, out: Path, url: str, endpoint: str) -> None:
    snapshot_writer.ROWS_BYTES, stored.OBJECT_BYTES = CHUNK_BYTES, RANGE_BYTES
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    write(folder, out, url)


def test_two_writers_of_one_snapshot_do_no_harm(arrays, tmp_path, bucket_url, small_pieces):
    folders = [tmp_path / "one", tmp_path / "two"]
    run_both(lambda folder: write(arrays, folder, bucket_url), folders)
    for folder in folders:
        data = open_stored(arrays, folder, bucket_url, folder / "cache")
        fetch_all(data)
        verify(data.columns_folder, data.snapshot)
