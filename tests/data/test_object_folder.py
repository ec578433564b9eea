"""A source in a bucket gives the examples that it gives in a folder; what changes there while it is
read is named, and what has not changed is not read again.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import data_settings, picture, read_reasons
from test_example_features import example
from test_external_shards import png, write

from tasks.upload import upload
from throughline.data import object_folder
from throughline.data.encodings.base import RejectedValue
from throughline.data.ingest import ingest
from throughline.data.manifest import Manifest, read_manifest
from throughline.data.object_folder import ObjectFile, open_folder
from throughline.data.shards import file_parts
from throughline.data.shards.file_parts import FilePart, read_parts
from throughline.data.shards.index import ShardIndex
from throughline.data.shards.writing import shard
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.ops import CenterCrop, Decode
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.engine import use_engine
from throughline.shared.errors import (
    DataNotFound,
    DiskRefused,
    ObjectStoreFailed,
    UnexpectedFiles,
    UnreadableSource,
    UserError,
)
from throughline.shared.object_store import RETRIES, StoredObject, open_store
from throughline.shared.progress import in_threads_ahead

SHARDS = ShardSettings(min_shards=2, writers=2)


def write_photos(root: Path) -> Path:
    """Photos of three classes, some of which must be converted or cannot be used."""
    for number in range(30):
        path = root / ("cat", "dog", "bird/owl")[number % 3] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    picture(99).save(root / "cat" / "converted ü#1%20.webp")
    shutil.copy(root / "cat" / "00.jpg", root / "dog" / "copy.jpg")
    (root / "cat" / "broken.png").write_bytes(b"no image")
    (root / "cat" / "empty.png").touch()
    (root / "cat" / "note.md").write_text("other")
    (root / "outside.jpg").write_bytes(b"x")
    for hidden in (".hidden/a.jpg", "dog/.b.jpg"):
        (root / hidden).parent.mkdir(exist_ok=True)
        (root / hidden).write_bytes(b"x")
    (root / "none" / "deeper").mkdir(parents=True)
    (root / "none" / "deeper" / "read.me").write_text("x")
    return root


def write_table(root: Path) -> Path:
    rows = "".join(f"{number * 7 % 31},{number % 7},{'ab'[number % 2]}\n" for number in range(60))
    (root / "rows.csv").write_text(f"x,y,label\n{rows}")
    return root / "rows.csv"


def write_series(root: Path) -> Path:
    (root / "series.csv").write_text("load\n" + "".join(f"{n % 24}\n" for n in range(400)))
    return root / "series.csv"


def write_arrays(root: Path) -> Path:
    draw = np.random.default_rng(7)
    np.save(root / "x.npy", draw.integers(0, 256, (60, 8, 6), np.uint8))
    np.save(root / "y.npy", np.arange(60) % 4)
    return root


def write_texts(root: Path) -> Path:
    for number in range(40):
        path = root / ("ham", "spam")[number % 2] / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {number} ü")
    (root / "ham" / "long.txt").write_text("x" * 200)
    (root / "ham" / "latin.txt").write_bytes(b"\xff")
    return root


def write_lines(root: Path) -> Path:
    for name in ("ham", "spam"):
        (root / f"{name}.txt").write_text("".join(f"{name} {n}\n" for n in range(30)))
    return root


def write_text_table(root: Path) -> Path:
    rows = "".join(f'"text, {n}",{"ab"[n % 2]}\n' for n in range(40))
    (root / "texts.tsv").write_text(f"text,label\n{rows}")
    return root / "texts.tsv"


def write_image_records(root: Path) -> Path:
    for part in range(2):
        write(
            root / f"data-{part:05d}-of-00002",
            [example(image=[png(20 * part + n)], label=[n % 2]) for n in range(20)],
        )
    return root


def write_value_records(root: Path) -> Path:
    records = [example(x=[float(n), 0.5], label=[n % 3]) for n in range(40)]
    write(root / "a.tfrecord", records)
    return root / "a.tfrecord"


def write_fashion_mnist(root: Path) -> Path:
    draw = np.random.default_rng(7)
    for prefix, count in (("train", 40), ("t10k", 10)):
        for kind, values in {
            "images-idx3": draw.integers(0, 256, (count, 28, 28), np.uint8),
            "labels-idx1": np.arange(count, dtype=np.uint8) % 10,
        }.items():
            header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            file = root / f"{prefix}-{kind}-ubyte.gz"
            file.write_bytes(gzip.compress(header + values.tobytes()))
    return root


KINDS: dict[str, tuple[Callable[[Path], Path], dict]] = {
    "image_folder": (write_photos, {}),
    "table": (write_table, {}),
    "text_folder": (write_texts, {"max_bytes": 100}),
    "tfrecord": (write_image_records, {}),
    "tfrecord of values": (write_value_records, {}),
    "time_series": (write_series, {}),
    "arrays": (write_arrays, {}),
    "text_lines": (write_lines, {}),
    "text_table": (write_text_table, {}),
    "fashion_mnist": (write_fashion_mnist, {}),
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Where copies are made for as long as they are read."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def prepare(settings: DataSettings, out: Path) -> tuple[Manifest, ShardIndex]:
    ingest(settings, out / "manifest", inspections=out.parent / "kept")
    manifest = read_manifest(out / "manifest")
    return manifest, shard(manifest, out / "shards", settings=SHARDS)


@pytest.mark.parametrize("case", KINDS)
def test_a_bucket_gives_the_shards_of_a_folder(case, bucket_url, tmp_path, monkeypatch):
    write_files, more = KINDS[case]
    (tmp_path / "in").mkdir()
    path = write_files(tmp_path / "in")
    url = bucket_url if path.is_dir() else f"{bucket_url}/{path.name}"
    upload(path, url)
    # Some are read ahead, others in turn; what is copied comes in several ranges.
    monkeypatch.setattr(object_folder, "READ_AHEAD_BYTES", 900)
    monkeypatch.setattr(file_parts, "READ_AHEAD_BYTES", 900)
    monkeypatch.setattr(object_folder, "RANGE_BYTES", 500)
    source = case.partition(" ")[0]
    local, shards = prepare(data_settings(path, source, **more), tmp_path / "local")
    remote, stored = prepare(data_settings(url, source, **more), tmp_path / "remote")
    assert remote.digest == local.digest
    assert remote.stats == local.stats
    assert read_reasons(remote) == read_reasons(local)
    assert stored.digest == shards.digest
    places = [(f"{path}/", f"{url}/"), (f"{tmp_path}/local/", f"{tmp_path}/remote/")]
    for here, there in places if path.is_dir() else ():
        local.examples["uri"] = local.examples["uri"].str.replace(here, there)
    assert remote.examples.equals(local.examples)
    left = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    assert not left, "copies are gone"


@pytest.mark.slow
def test_dask_workers_read_a_bucket_as_threads_do(photos, bucket_url, tmp_path):
    settings = data_settings(bucket_url)
    manifest, index = prepare(settings, tmp_path / "threads")
    with use_engine(workers=1):
        other, same = prepare(settings, tmp_path / "workers")
    assert (other.digest, same.digest) == (manifest.digest, index.digest)


@pytest.mark.integration
def test_a_bucket_gives_the_snapshot_of_a_folder(bucket_url, tmp_path):
    path = write_photos(tmp_path / "in")
    upload(path, bucket_url)
    written = {}
    for name, place in {"local": path, "remote": bucket_url}.items():
        out = tmp_path / name
        _, index = prepare(data_settings(place), out)
        ops = (Decode(), CenterCrop(height=20, width=20))
        snapshot(index, out / "shards", out / "snapshot", preprocess=ops)
        files = (file for file in (out / "snapshot").rglob("*") if file.is_file())
        written[name] = {file.name + file.parent.name: file.read_bytes() for file in files}
    assert {name.removesuffix("snapshot") for name in written["local"]} >= {"index.json"}
    assert [*written["local"].values()] == [*written["remote"].values()]


@pytest.fixture
def photos(tmp_path, bucket_url) -> Path:
    """A folder of photos that is in the bucket, too."""
    root = tmp_path / "in"
    for number in range(40):
        path = root / ("cat", "dog")[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    upload(root, bucket_url)
    return root


def asked_for(proxy) -> list[str]:
    """The objects that have been read since the last time."""
    names = [path.partition("?")[0] for method, path, _ in proxy.requests if method == "GET"]
    proxy.requests.clear()
    return sorted(Path(name).name for name in names if name.endswith(".jpg"))


def test_objects_that_have_not_changed_are_not_read_again(photos, bucket_url, proxy, tmp_path):
    settings, store = data_settings(bucket_url), open_store(bucket_url)
    out, kept = tmp_path / "manifest", tmp_path / "kept"
    first = ingest(settings, out, inspections=kept)
    assert asked_for(proxy) == sorted(path.name for path in photos.rglob("*.jpg"))
    ingest(settings, out, inspections=kept)
    assert asked_for(proxy) == []
    for number, name in enumerate(("cat/00.jpg", "dog/new.jpg")):
        picture(100 + number).save(tmp_path / "other.jpg")
        store.write(name, (tmp_path / "other.jpg").read_bytes())
    store.delete(["dog/03.jpg"])
    after = ingest(settings, out, inspections=kept)
    assert asked_for(proxy) == ["00.jpg", "new.jpg"]
    assert after.digest != first.digest
    assert after.digest == ingest(settings, out).digest


def test_verify_reads_all_and_names_what_has_another_content_under_the_same_tag(
    photos, bucket_url, proxy, tmp_path, capsys
):
    settings, out, kept = data_settings(bucket_url), tmp_path / "manifest", tmp_path / "kept"
    ingest(settings, out, inspections=kept)
    asked_for(proxy)
    ingest(settings, out, inspections=kept, verify=True)
    assert len(asked_for(proxy)) == 40
    assert "40 have the sizes, times and tags of an earlier ingest" in capsys.readouterr().out


def test_an_object_without_a_tag_is_read_each_time():
    from datetime import UTC, datetime

    from throughline.data.inspection_cache import read_stamp
    from throughline.data.sources import ExampleFile

    now = datetime.now(UTC)

    def stamp(tag: str) -> str:
        one = StoredObject(name="a", bytes=3, modified_at=now, tag=tag)
        return read_stamp(ExampleFile(id="a", path=Path("a"), label="", object=one), now_ns=0)

    assert stamp("") == ""
    assert stamp("x") != stamp("y")


def test_an_object_that_has_gone_since_ingest_is_named(photos, bucket_url, tmp_path):
    ingest(data_settings(bucket_url), tmp_path / "manifest")
    open_store(bucket_url).delete(["cat/02.jpg"])
    manifest = read_manifest(tmp_path / "manifest")
    with pytest.raises(DataNotFound, match=r"/cat/02\.jpg .* was there at ingest and is gone now"):
        shard(manifest, tmp_path / "shards", settings=SHARDS)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("longer", [b"", b"more"])
@pytest.mark.parametrize("source", ["image_folder", "tfrecord"])
def test_an_object_that_has_changed_since_ingest_is_named(
    source, longer, photos, bucket_url, tmp_path
):
    name, url = "cat/02.jpg", bucket_url
    if source == "tfrecord":
        (tmp_path / "records").mkdir()
        write_image_records(tmp_path / "records")
        url, name = f"{bucket_url}/records", "data-00000-of-00002"
        upload(tmp_path / "records", url)
    ingest(data_settings(url, source), tmp_path / "manifest")
    store = open_store(url)
    data = bytearray(store.read(name))
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2) + longer
    store.write(name, bytes(data))
    manifest = read_manifest(tmp_path / "manifest")
    with pytest.raises(DataNotFound, match=rf"{name} .* has (other contents|another size) than at"):
        shard(manifest, tmp_path / "shards", settings=SHARDS)


@pytest.mark.parametrize("source", ["image_folder", "arrays"])
def test_an_object_that_changes_after_it_was_listed_is_named(
    source, photos, bucket_url, monkeypatch, tmp_path
):
    """Neither what was there before nor what is there now is taken for the other."""
    store = open_store(bucket_url)
    list_all = object_folder.list_all

    def change_afterwards(opened):
        listed = list_all(opened)
        store.write("cat/02.jpg", b"another content")
        return listed

    monkeypatch.setattr(object_folder, "list_all", change_afterwards)
    with pytest.raises(ObjectStoreFailed, match=r"/cat/02\.jpg has changed since it was listed"):
        ingest(data_settings(bucket_url, source), tmp_path / "manifest")
    assert not (tmp_path / "manifest").exists()


CHANGES = {
    "added": lambda store: store.write("cat/new.jpg", b"x"),
    "changed": lambda store: store.write("cat/new.jpg", b"y"),
    "removed": lambda store: store.delete(["cat/new.jpg"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_until_all_has_been_read_is_named(change, photos, bucket_url, tmp_path):
    """DVC compares the bucket when the stage has ended, and would take it for what was read."""
    store = open_store(bucket_url)
    if change != "added":
        CHANGES["added"](store)
    folder = open_folder(bucket_url)
    folder.check_unchanged()
    CHANGES[change](store)
    with pytest.raises(ObjectStoreFailed, match=r"/cat/new\.jpg changed while ingest was reading"):
        folder.check_unchanged()
    store.write("cat/new2.jpg", b"x")
    with pytest.raises(ObjectStoreFailed, match=r"and 1 more changed"):
        folder.check_unchanged()


def test_ingest_lists_the_bucket_again_before_it_is_complete(
    photos, bucket_url, monkeypatch, tmp_path
):
    read_rows = []
    from throughline.data import ingest as stage

    examine = stage.examine

    def add_afterwards(*arguments):
        found = examine(*arguments)
        read_rows.append(found)
        open_store(bucket_url).write("cat/late.jpg", b"x")
        return found

    monkeypatch.setattr(stage, "examine", add_afterwards)
    with pytest.raises(ObjectStoreFailed, match=r"late\.jpg changed while ingest was reading"):
        ingest(data_settings(bucket_url), tmp_path / "manifest")
    assert read_rows
    assert not (tmp_path / "manifest").exists()


def test_a_single_object_is_compared_again_too(bucket_url):
    store = open_store(bucket_url)
    store.write("a.csv", b"x")
    store.write("a.csv.old", b"x")
    folder = open_folder(f"{bucket_url}/a.csv")
    assert folder.single
    folder.check_unchanged()
    store.write("a.csv", b"y")
    with pytest.raises(ObjectStoreFailed, match=r"a\.csv changed while"):
        folder.check_unchanged()


@pytest.mark.parametrize("method", ["ingest", "shard"])
def test_a_servers_error_that_passes_changes_nothing(method, photos, bucket_url, proxy, tmp_path):
    settings = data_settings(bucket_url)
    manifest, expected = prepare(settings, tmp_path / "whole")
    failures = dict.fromkeys(("02.jpg", "05.jpg"), RETRIES)
    turn = threading.Lock()

    def fail_at_first(verb, path):
        name = Path(path).name
        with turn:
            if failures.get(name):
                failures[name] -= 1
                return "503"
        return None

    if method == "ingest":
        proxy.fault = fail_at_first
        assert ingest(settings, tmp_path / "manifest").digest == manifest.digest
    else:
        manifest = read_manifest(tmp_path / "whole" / "manifest")
        proxy.fault = fail_at_first
        index = shard(manifest, tmp_path / "shards", settings=SHARDS)
        assert index.digest == expected.digest
    assert not any(failures.values())


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_an_object_that_cannot_be_read_ends_the_stage_with_its_name(
    fault, photos, bucket_url, proxy, tmp_path
):
    """It is no example to be rejected: it may be there the next time."""
    proxy.fault = lambda verb, path: fault if path.endswith("05.jpg") else None
    with pytest.raises(ObjectStoreFailed, match=r"/dog/05\.jpg: the store"):
        ingest(data_settings(bucket_url), tmp_path / "manifest")
    proxy.fault = lambda verb, path: None
    ingest(data_settings(bucket_url), tmp_path / "manifest")
    proxy.fault = lambda verb, path: fault if path.endswith("05.jpg") else None
    with pytest.raises(ObjectStoreFailed, match=r"/dog/05\.jpg: "):
        manifest = read_manifest(tmp_path / "manifest")
        shard(manifest, tmp_path / "shards", settings=SHARDS)


@pytest.mark.parametrize(
    ("path", "variables", "error", "words"),
    [
        ("s3://other/x", {}, ObjectStoreFailed, "no such bucket"),
        (
            "s3://data/x",
            {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"},
            ObjectStoreFailed,
            r"no permission \(SignatureDoesNotMatch\)",
        ),
        (
            "s3://data/x",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            ObjectStoreFailed,
            "the store was not reached",
        ),
        ("s3://data/nowhere", {}, DataNotFound, "no object has this name or is below it"),
    ],
)
def test_what_cannot_be_listed_is_said_in_words(
    path, variables, error, words, object_store, monkeypatch, tmp_path
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=words) as refused:
        ingest(data_settings(path), tmp_path / "manifest")
    said = str(refused.value)
    for secret in (object_store["AWS_SECRET_ACCESS_KEY"], "a-wrong-secret"):
        assert secret not in said
    assert not (tmp_path / "manifest").exists()


def test_errors_name_the_object_and_not_the_copy(bucket_url, tmp_path):
    store = open_store(bucket_url)
    store.write("bad.csv", b"x,label\n1,a\n2\n")
    with pytest.raises(UnreadableSource) as refused:
        ingest(data_settings(f"{bucket_url}/bad.csv", "table"), tmp_path / "manifest")
    assert str(refused.value).startswith(f"{bucket_url}/bad.csv: 1 of 2 rows")
    assert str(tmp_path) not in str(refused.value)
    store.write("lines/a.jsonl", b'{"text": "x"}\n')
    with pytest.raises(UserError, match=rf"{bucket_url}/lines/a\.jsonl, line 1: no column label"):
        ingest(data_settings(f"{bucket_url}/lines", "text_lines"), tmp_path / "manifest")


def test_a_copy_that_does_not_fit_is_refused_with_both_sizes(bucket_url, monkeypatch, tmp_path):
    open_store(bucket_url).write("a.csv", bytes(2 << 20))
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(object_folder.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        DiskRefused, match=r"needs 2\.0 MiB for a copy of s3://.* 1\.0 MiB are free"
    ):
        ingest(data_settings(f"{bucket_url}/a.csv", "table"), tmp_path / "manifest")


def test_an_object_that_is_a_folder_too_cannot_be_copied(bucket_url, tmp_path, object_store):
    folder = open_folder_of({"a.txt": 1, "a.txt/b.txt": 1}, bucket_url)
    with pytest.raises(UnreadableSource, match=r"a\.txt/b\.txt cannot be copied .*rename"):
        folder.copy_into(tmp_path)


def open_folder_of(sizes: dict[str, int], url: str) -> object_folder.ObjectFolder:
    """A folder of objects that nobody has put there."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    objects = [
        StoredObject(name=name, bytes=size, modified_at=now, tag="x")
        for name, size in sizes.items()
    ]
    return object_folder.ObjectFolder(store=open_store(url), objects=objects)


def test_objects_that_stand_for_folders_are_none_of_files(bucket_url, object_store, tmp_path):
    import boto3

    prefix = bucket_url.rpartition("/")[2]
    client = boto3.client("s3", endpoint_url=object_store["AWS_ENDPOINT_URL"])
    for name in ("cat/", "none/", "lines/"):
        client.put_object(Bucket="data", Key=f"{prefix}/{name}", Body=b"")
    for number in range(20):
        path = tmp_path / "in" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    upload(tmp_path / "in", bucket_url)
    stats = ingest(data_settings(bucket_url), tmp_path / "manifest").stats
    assert (stats["skipped"], stats["rejected"]) == ({}, 0)
    assert sorted(stats["empty_classes"]) == ["lines", "none"]
    open_folder(bucket_url).copy_into(tmp_path / "project")
    assert (tmp_path / "project" / "none").is_dir()


def test_many_folders_are_listed_as_one(bucket_url):
    store = open_store(bucket_url)
    names = [f"{a}/{b}/{c}" for a in "ab" for b in range(6) for c in range(2)] + ["x", "a/y"]
    for name in names:
        store.write(name, name.encode())
    assert [one.name for one in object_folder.list_all(store)] == sorted(names)
    assert object_folder.list_all(store) == sorted(store.list(), key=lambda one: one.name)


def test_a_folder_that_is_an_object_too_is_refused_because_dvc_would_watch_that_alone(bucket_url):
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


def test_another_process_gets_neither_the_listing_nor_credentials(photos, bucket_url, object_store):
    folder = open_folder(bucket_url)
    sent = pickle.dumps(folder)
    assert object_store["AWS_SECRET_ACCESS_KEY"].encode() not in sent
    assert b"00.jpg" not in sent
    assert pickle.loads(sent).store.read("cat/00.jpg") == (photos / "cat" / "00.jpg").read_bytes()


def test_what_is_too_large_is_refused_before_it_is_read(bucket_url, proxy):
    one = StoredObject(name="none", bytes=1 << 40, modified_at=None, tag="x")
    file = ObjectFile(store=open_store(bucket_url), object=one)

    def refuse(opened, size):
        raise RejectedValue(f"larger: {size}")

    with pytest.raises(RejectedValue, match=str(1 << 40)):
        file.read(refuse)
    assert not proxy.requests


def test_parts_of_files_here_and_of_objects_are_read_in_their_order(photos, bucket_url):
    places = [f"{bucket_url}/cat/00.jpg", str(photos / "dog" / "01.jpg")] * 20
    contents = [(photos / place).read_bytes() for place in ("cat/00.jpg", "dog/01.jpg")] * 20
    parts = [
        FilePart(example_id="", uri=uri, offset=-1, bytes=len(data))
        for uri, data in zip(places, contents, strict=True)
    ]
    inner = [FilePart(example_id="", uri=part.uri, offset=10, bytes=7) for part in parts]
    assert [*read_parts(parts)] == contents
    assert [*read_parts(inner)] == [data[10:17] for data in contents]


def test_results_that_wait_are_bounded():
    taken = []
    items = (taken.append(item) or item for item in range(100))
    results = in_threads_ahead(lambda item: item, items, workers=3)
    assert [next(results) for _ in range(5)] == [*range(5)]
    assert len(taken) == 5 + 3
    assert [*results] == [*range(5, 100)]
    with pytest.raises(ZeroDivisionError):
        list(in_threads_ahead(lambda item: 1 // item, [1, 0, 1], workers=2))


@pytest.mark.parametrize("source", ["image_folder", "tfrecord"])
def test_an_empty_object_stands_for_the_folder_of_others(source, bucket_url, tmp_path):
    (tmp_path / "in").mkdir()
    folder = write_photos(tmp_path / "in") if source == "image_folder" else tmp_path / "in"
    if source == "tfrecord":
        write_image_records(folder)
    url = f"{bucket_url}/data.v1"
    upload(folder, f"{url}/cat.v1")
    store = open_store(bucket_url)
    store.write("data.v1/cat.v1", b"")
    settings = data_settings(url, source)
    with_marks = ingest(settings, tmp_path / "marked", inspections=tmp_path / "kept")
    store.delete(["data.v1/cat.v1"])
    without = ingest(settings, tmp_path / "plain", inspections=tmp_path / "kept")
    assert (with_marks.digest, with_marks.stats) == (without.digest, without.stats)


def test_no_secret_is_in_what_ingest_writes(photos, bucket_url, object_store, tmp_path, capsys):
    ingest(data_settings(bucket_url), tmp_path / "manifest", inspections=tmp_path / "kept")
    printed = capsys.readouterr()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for key in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        secret = os.environ[key]
        assert secret not in printed.out + printed.err
        assert not any(secret.encode() in content for content in written)
    summary = json.loads((tmp_path / "manifest" / "manifest.json").read_text())
    assert "uri" not in summary
