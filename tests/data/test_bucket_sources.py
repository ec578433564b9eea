"""Sources in a bucket, and the folder of objects that they read."""

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import boto3
import numpy as np
import pytest

from tasks.upload import upload
from tests.support.external_records import example, png, write
from tests.support.small_data import data_settings, picture, read_files, read_reasons, save_photos
from throughline.data import object_folder
from throughline.data.found import ExampleFile
from throughline.data.ingest import ingest
from throughline.data.inspection_cache import read_stamp
from throughline.data.manifest import read_manifest
from throughline.data.object_folder import ObjectFolder, list_all, open_folder
from throughline.data.shards import file_parts
from throughline.data.shards.file_parts import FilePart, read_parts
from throughline.data.shards.writing import shard
from throughline.data.sources import class_folders
from throughline.settings import ShardSettings
from throughline.shared.errors import (
    DataNotFound,
    DiskRefused,
    ObjectStoreFailed,
    UnexpectedFiles,
    UnreadableSource,
)
from throughline.shared.object_store import StoredObject, open_store
from throughline.shared.progress import in_threads
from throughline.shared.scratch import SCRATCH

pytestmark = pytest.mark.integration

SHARDS = ShardSettings(min_shards=2, writers=2)


def write_source(root: Path, source: str) -> None:
    """Data of a kind; some photos must be converted or cannot be used."""
    if source == "image_folder":
        save_photos(root, 30, "cat", "dog", "bird/owl")
        picture(99).save(root / "cat" / "converted ü#1%20.webp")
        shutil.copy(root / "cat" / "00.jpg", root / "dog" / "copy.jpg")
        (root / "none").mkdir()
        (root / "cat" / "empty.png").touch()
        for name in ("cat/bad.png", "cat/note.md", "1.jpg", "dog/.hidden.jpg", "none/read.me"):
            (root / name).write_text("x")
    elif source == "tfrecord":
        for part in range(2):
            records = [example(image=[png(20 * part + n)], label=[n % 2]) for n in range(20)]
            write(root / f"data-{part:05d}-of-00002", records)
    else:
        root.mkdir()
        draw = np.random.default_rng(7)
        np.save(root / "x.npy", draw.integers(0, 256, (60, 8, 6), np.uint8))
        np.save(root / "y.npy", np.arange(60) % 4)


@pytest.mark.parametrize("source", ["image_folder", "tfrecord", "arrays"])
def test_a_bucket_gives_the_shards_of_a_folder(source, bucket_url, tmp_path, monkeypatch):
    path, url = tmp_path / "in", bucket_url
    write_source(path, source)
    upload(path, url)
    # Some are read ahead, others in turn; what is copied comes in several ranges.
    monkeypatch.setattr(object_folder, "READ_AHEAD_BYTES", 900)
    monkeypatch.setattr(file_parts, "READ_AHEAD_BYTES", 900)
    monkeypatch.setattr(object_folder, "RANGE_BYTES", 500)
    monkeypatch.chdir(tmp_path)
    manifests, shards = [], []
    for where, out in ((path, tmp_path / "local"), (url, tmp_path / "remote")):
        ingest(data_settings(where, source), out / "manifest", inspections=tmp_path / "kept")
        manifests.append(read_manifest(out / "manifest"))
        shards.append(shard(manifests[-1], out / "shards", settings=SHARDS).digest)
    local, remote = manifests
    assert (remote.digest, shards[1]) == (local.digest, shards[0])
    assert remote.stats == local.stats
    assert read_reasons(remote) == read_reasons(local)
    for here, there in ((f"{path}/", f"{url}/"), (f"{tmp_path}/local/", f"{tmp_path}/remote/")):
        local.examples["uri"] = local.examples["uri"].str.replace(here, there)
    assert remote.examples.equals(local.examples)
    assert not read_files(tmp_path / SCRATCH), "copies are gone"


@pytest.fixture
def photos_url(bucket_url, tmp_path) -> str:
    upload(save_photos(tmp_path / "photos", 20, "cat", "dog"), bucket_url)
    return bucket_url


def asked_for(proxy) -> list[str]:
    """The objects that have been read since the last time."""
    names = [path.partition("?")[0] for method, path, _ in proxy.requests if method == "GET"]
    proxy.requests.clear()
    return sorted(Path(name).name for name in names if name.endswith(".jpg"))


@pytest.mark.slow
def test_objects_are_read_again_to_verify_them_or_if_changed_and_no_secret_is_written(
    photos_url, object_store, proxy, tmp_path, capsys
):
    settings, store = data_settings(photos_url), open_store(photos_url)
    out, kept = tmp_path / "manifest", tmp_path / "kept"
    first = ingest(settings, out, inspections=kept)
    assert len(asked_for(proxy)) == 20
    ingest(settings, out, inspections=kept)
    assert asked_for(proxy) == []
    ingest(settings, out, inspections=kept, verify=True)
    assert len(asked_for(proxy)) == 20
    printed = capsys.readouterr()
    assert "of 20 with the sizes, times and tags of an earlier ingest, none" in printed.out
    for number, name in enumerate(("cat/00.jpg", "dog/new.jpg")):
        store.write(name, png(100 + number))
    store.delete(["dog/03.jpg"])
    after = ingest(settings, out, inspections=kept)
    assert asked_for(proxy) == ["00.jpg", "new.jpg"]
    assert after.digest != first.digest
    assert after.digest == ingest(settings, out).digest
    for key in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        secret = os.environ[key]
        assert secret not in printed.out + printed.err
        assert not any(secret.encode() in content for content in read_files(tmp_path).values())
    assert "uri" not in json.loads((out / "manifest.json").read_text())


def test_an_object_without_a_tag_is_read_each_time():
    now, stamps = datetime.now(UTC), []
    for tag in ("", "x", "y"):
        one = StoredObject(name="a", bytes=3, modified_at=now, tag=tag)
        file = ExampleFile(id="a", path=Path("a"), label="", object=one)
        stamps.append(read_stamp(file, now_ns=0))
    assert stamps[0] == "" and stamps[1] != stamps[2]


def test_an_object_that_went_or_changed_since_ingest_is_named(photos_url, proxy, tmp_path):
    ingest(data_settings(photos_url), tmp_path / "manifest")
    store, manifest = open_store(photos_url), read_manifest(tmp_path / "manifest")
    proxy.fault = lambda verb, path: "403" if path.endswith("05.jpg") else None
    with pytest.raises(ObjectStoreFailed, match=r"/dog/05\.jpg: no permission"):
        shard(manifest, tmp_path / "refused", settings=SHARDS)
    proxy.fault = lambda verb, path: None
    content = store.read("cat/02.jpg")
    store.write("cat/02.jpg", content[:9] + content[:-9])
    with pytest.raises(DataNotFound, match=r"/cat/02\.jpg .* has other contents than at"):
        shard(manifest, tmp_path / "shards", settings=SHARDS)
    store.delete(["cat/02.jpg"])
    with pytest.raises(DataNotFound, match=r"/cat/02\.jpg .* is gone now"):
        shard(manifest, tmp_path / "shards", settings=SHARDS)
    assert not (tmp_path / "shards").exists()


def test_an_object_that_changes_after_listing_is_named(photos_url, monkeypatch, tmp_path):
    def change_afterwards(store):
        found = list_all(store)
        store.write("cat/02.jpg", b"another content")
        return found

    monkeypatch.setattr(object_folder, "list_all", change_afterwards)
    with pytest.raises(ObjectStoreFailed, match=r"/cat/02\.jpg has changed since it was listed"):
        ingest(data_settings(photos_url), tmp_path / "manifest")
    assert not (tmp_path / "manifest").exists()


def test_errors_name_the_object_and_not_the_copy(bucket_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_store(bucket_url).write("bad.csv", b"x,label\n1,a\n2\n")
    with pytest.raises(UnreadableSource) as refused:
        ingest(data_settings(f"{bucket_url}/bad.csv", "table"), tmp_path / "manifest")
    assert str(refused.value).startswith(f"{bucket_url}/bad.csv: the header has 2 fields")
    assert str(tmp_path) not in str(refused.value)


def test_what_changes_until_all_has_been_read_is_named(bucket_url):
    """DVC compares the bucket when the stage has ended, and would take it for what was read."""
    store, name = open_store(bucket_url), "cat/new.jpg"
    store.write("cat/old.jpg", b"x")
    for data in (b"x", b"y", None):
        folder = open_folder(bucket_url)
        folder.check_unchanged()
        store.write(name, data) if data else store.delete([name])
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
    with pytest.raises(DiskRefused, match=r"needs 2\.0 MiB .* s3://.* only 1\.0 MiB are free"):
        folder.copy_into(tmp_path)


def test_objects_that_stand_for_folders_are_none_of_files(bucket_url, object_store, tmp_path):
    client = boto3.client("s3", endpoint_url=object_store["AWS_ENDPOINT_URL"])
    for name in ("cat/", "none/", "lines/"):
        client.put_object(Bucket="data", Key=f"{bucket_url.rpartition('/')[2]}/{name}", Body=b"")
    open_store(bucket_url).write("cat/1.jpg", b"x")
    folder = open_folder(bucket_url)
    scanned = class_folders.scan(data_settings(bucket_url), folder)
    assert [file.id for file in scanned.files] == ["cat/1.jpg"]
    assert not scanned.skipped and not scanned.rejected
    assert sorted(scanned.empty_classes) == ["lines", "none"]
    folder.copy_into(tmp_path)
    assert (tmp_path / "none").is_dir()


def test_a_folder_that_is_an_object_too_is_refused_because_dvc_would_watch_that_alone(bucket_url):
    with pytest.raises(DataNotFound, match="no object has this name or is below it"):
        open_folder(bucket_url)
    for name in ("photos/cat/1.png", "photos"):
        open_store(bucket_url).write(name, b"")
    with pytest.raises(UnexpectedFiles, match=r"/photos is an object, and there are objects below"):
        open_folder(f"{bucket_url}/photos")


def test_a_name_with_a_percent_sign_is_taken_as_it_is(bucket_url):
    folders = ("a b", "a%20b")
    for name in folders:
        open_store(f"{bucket_url}/{name}").write(f"{name}.csv", b"1")
    found = [open_folder(f"{bucket_url}/{name}").objects for name in folders]
    assert [one.name for (one,) in found] == ["a b.csv", "a%20b.csv"]


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
    results = in_threads(lambda item: item, items, workers=3, ahead=3)
    assert [next(results) for _ in range(5)] == [*range(5)]
    assert len(taken) == 5 + 3
    assert [*results] == [*range(5, 100)]
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda item: 1 // item, [1, 0, 1], workers=2, ahead=2))
