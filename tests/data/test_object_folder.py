"""What is below a URL in a bucket is listed once, copied by its names, and compared again."""

from __future__ import annotations

import shutil

import boto3
import pytest

from tests.support.small_data import data_settings
from throughline.data import object_folder
from throughline.data.encodings.base import RejectedValue
from throughline.data.object_folder import ObjectFile, ObjectFolder, list_all, open_folder
from throughline.data.shards.file_parts import FilePart, read_parts
from throughline.data.sources import file_folder
from throughline.shared.errors import DataNotFound, DiskRefused, ObjectStoreFailed, UnexpectedFiles
from throughline.shared.object_store import StoredObject, open_store
from throughline.shared.progress import in_threads_ahead

pytestmark = pytest.mark.integration


def test_what_changes_until_all_has_been_read_is_named(bucket_url):
    """DVC compares the bucket when the stage has ended, and would take it for what was read."""
    store = open_store(bucket_url)
    store.write("cat/old.jpg", b"x")
    name = "cat/new.jpg"
    write, delete = store.write, store.delete
    for change in (lambda: write(name, b"x"), lambda: write(name, b"y"), lambda: delete([name])):
        folder = open_folder(bucket_url)
        folder.check_unchanged()
        change()
        with pytest.raises(ObjectStoreFailed, match=r"/cat/new\.jpg changed while ingest was"):
            folder.check_unchanged()
    store.write("cat/new2.jpg", b"x")
    with pytest.raises(ObjectStoreFailed, match=r"and 1 more changed"):
        folder.check_unchanged()


def test_a_copy_that_does_not_fit_is_refused_with_both_sizes(bucket_url, monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(object_folder.shutil, "disk_usage", lambda path: usage)
    large = StoredObject(name="a.csv", bytes=2 << 20, modified_at=None, tag="x")
    folder = ObjectFolder(store=open_store(bucket_url), objects=[large])
    with pytest.raises(
        DiskRefused, match=r"needs 2\.0 MiB for a copy of s3://.* 1\.0 MiB are free"
    ):
        folder.copy_into(tmp_path)


def test_objects_that_stand_for_folders_are_none_of_files(bucket_url, object_store, tmp_path):
    client = boto3.client("s3", endpoint_url=object_store["AWS_ENDPOINT_URL"])
    for name in ("cat/", "none/", "lines/"):
        client.put_object(Bucket="data", Key=f"{bucket_url.rpartition('/')[2]}/{name}", Body=b"")
    open_store(bucket_url).write("cat/1.jpg", b"x")
    scanned = file_folder.scan(data_settings(bucket_url), open_folder(bucket_url))
    assert [file.id for file in scanned.files] == ["cat/1.jpg"]
    assert not scanned.skipped and not scanned.rejected
    assert sorted(scanned.empty_classes) == ["lines", "none"]
    open_folder(bucket_url).copy_into(tmp_path)
    assert (tmp_path / "none").is_dir()


def test_many_folders_are_listed_as_one(bucket_url):
    store = open_store(bucket_url)
    names = [f"{a}/{b}/{c}" for a in "ab" for b in range(6) for c in range(2)] + ["x", "a/y"]
    for name in names:
        store.write(name, name.encode())
    assert [one.name for one in list_all(store)] == sorted(names)
    assert list_all(store) == sorted(store.list(), key=lambda one: one.name)


def test_a_folder_that_is_an_object_too_is_refused_because_dvc_would_watch_that_alone(bucket_url):
    with pytest.raises(DataNotFound, match="no object has this name or is below it"):
        open_folder(bucket_url)
    store = open_store(bucket_url)
    for name, data in (("photos/cat/1.png", b"1"), ("photos", b"")):
        store.write(name, data)
    with pytest.raises(UnexpectedFiles, match=r"/photos is an object, and there are objects below"):
        open_folder(f"{bucket_url}/photos")


def test_a_name_with_a_percent_sign_is_taken_as_it_is(bucket_url):
    """As DVC takes it."""
    open_store(f"{bucket_url}/a b").write("x.csv", b"1")
    open_store(f"{bucket_url}/a%20b").write("y.csv", b"1")
    assert [one.name for one in open_folder(f"{bucket_url}/a%20b").objects] == ["y.csv"]
    assert [one.name for one in open_folder(f"{bucket_url}/a b").objects] == ["x.csv"]


def test_what_is_too_large_is_refused_before_it_is_read(bucket_url, proxy):
    one = StoredObject(name="none", bytes=1 << 40, modified_at=None, tag="x")
    file = ObjectFile(store=open_store(bucket_url), object=one)

    def refuse(opened, size):
        raise RejectedValue(f"larger: {size}")

    with pytest.raises(RejectedValue, match=str(1 << 40)):
        file.read(refuse)
    assert not proxy.requests


def test_parts_of_files_here_and_of_objects_are_read_in_their_order(bucket_url, tmp_path):
    contents = [bytes(range(100)), bytes(range(100, 200))] * 20
    open_store(bucket_url).write("one", contents[0])
    (tmp_path / "other").write_bytes(contents[1])
    uris = [f"{bucket_url}/one", str(tmp_path / "other")] * 20
    for offset, size, part in ((-1, 100, slice(None)), (10, 7, slice(10, 17))):
        parts = [FilePart(example_id="", uri=uri, offset=offset, bytes=size) for uri in uris]
        assert [*read_parts(parts)] == [data[part] for data in contents]


def test_results_that_wait_are_bounded():
    taken = []
    items = (taken.append(item) or item for item in range(100))
    results = in_threads_ahead(lambda item: item, items, workers=3)
    assert [next(results) for _ in range(5)] == [*range(5)]
    assert len(taken) == 5 + 3
    assert [*results] == [*range(5, 100)]
    with pytest.raises(ZeroDivisionError):
        list(in_threads_ahead(lambda item: 1 // item, [1, 0, 1], workers=2))
