"""Commands for stores put what ingest reads, name damage, remove what nothing reaches."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.storage import LEFT_ALONE, collect_garbage, find_reachable, find_unreachable, verify
from tasks.upload import upload
from tests.support.project import run
from tests.support.skips import need
from tests.support.small_data import write_files
from tests.support.small_pipelines import PREPROCESS
from throughline.data.columns.stored import Destination
from throughline.data.manifest import read_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.writing import shard
from throughline.data.storage import Storage
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.settings import ShardSettings, StorageSettings
from throughline.shared.errors import (
    DataNotFound,
    InvalidParams,
    ObjectStoreFailed,
    UnexpectedFiles,
    WorkspaceProblem,
)
from throughline.shared.layout import Layout
from throughline.shared.object_store import StoredObject, open_store

pytestmark = pytest.mark.integration

FILES = {"cats/1.jpg": b"one", "cats/2.jpg": b"two", "dogs/1.jpg": b"three"}
FIRST, SECOND, TRIED, NOBODY = (digit * 32 for digit in "1234")  # keys of snapshots
DIGEST = "ab" * 16
LATER = datetime.now(UTC) + 2 * LEFT_ALONE
STAGE = """\
stages:
  shard:
    cmd: mkdir -p data/shards && cp shards.json data/shards/index.json
    deps: [shards.json]
    outs: [data/shards]
  snapshot:
    cmd: mkdir -p data/snapshot && cp key.json data/snapshot/index.json
    deps: [key.json]
    outs: [data/snapshot]
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    """A project with snapshots FIRST and SECOND in commits, and TRIED in an experiment."""
    folder = tmp_path_factory.mktemp("history")
    run(folder, "git", "init", "-q")
    run(folder, "dvc", "init", "-q")
    (folder / "dvc.yaml").write_text(STAGE)
    for key in (FIRST, SECOND, TRIED):
        (folder / "key.json").write_text(json.dumps({"key": key}))
        (folder / "shards.json").write_text(json.dumps({"shards": [{"digest": key}]}))
        run(folder, "dvc", "repro", "-q")
        if key == TRIED:
            run(folder, "dvc", "exp", "save", "--name", "trial")
        else:
            run(folder, "git", "add", "-A")
            run(folder, "git", "commit", "-qm", key)
    run(folder, "git", "checkout", "-q", "--", ".")
    run(folder, "dvc", "checkout", "-q", "--force")
    return folder


@pytest.mark.slow
def test_what_a_commit_or_an_experiment_has_is_kept_and_nothing_else(history, bucket_url):
    store = open_store(bucket_url)
    for key in (FIRST, SECOND, TRIED, NOBODY):
        store.write(f"shards/{key}", b"3")
        store.write(f"{key}/train/image/000000000000-{DIGEST}", b"1")
        store.write(f"{key}/index/{DIGEST}.json", b"2")
    others = (
        *("shards/readme.txt", f"shards/old/{NOBODY}", "photos/cats/1.jpg", "readme.txt"),
        *("dvc/files/md5/ab/cdef", "files/md5/ab/01", "annotations/index/0001.json"),
        "backups/db/daily/202401010300-a1b2c3",
    )
    for name in others:
        store.write(name, b"3")
    reached = {FIRST, SECOND, TRIED}
    assert find_reachable(history) == {*reached, *(f"shards/{key}" for key in reached)}
    listed = list(collect_garbage(store, history, now=LATER, removes=False))
    written = {
        name: f"{store.find(name).modified_at.astimezone(UTC):%Y-%m-%d}"
        for name in (f"{NOBODY}/index/{DIGEST}.json", f"shards/{NOBODY}")
    }
    for line, (name, day), count in zip(listed, written.items(), (2, 1), strict=True):
        said = f"{count} objects, 0.0 MiB, the last of {day}, can be removed"
        assert line == f"{bucket_url}/{name.partition('/')[0]}: {said}"
    assert len(list(store.list())) == 12 + len(others)
    assert not list(collect_garbage(store, history, now=datetime.now(UTC), removes=True))
    removed = list(collect_garbage(store, history, now=LATER, removes=True))
    assert [line.rpartition(", ")[2] for line in removed] == ["removed", "removed"]
    names = {one.name for one in store.list()}
    assert {name.partition("/")[0] for name in names - {*others}} == {*reached, "shards"}
    assert {*others, *(f"shards/{key}" for key in reached)} < names
    assert f"shards/{NOBODY}" not in names


@pytest.mark.slow
def test_nothing_is_removed_where_the_history_cannot_be_read(history, bucket_url):
    store = open_store(bucket_url)
    store.write(f"{NOBODY}/index/{DIGEST}.json", b"2")
    text = json.dumps({"key": FIRST})
    (cached,) = (
        path for path in history.glob(".dvc/cache/files/md5/*/*") if path.read_text() == text
    )
    away = cached.rename(history / "away")
    said = "cannot be read, so nothing is removed; first get the hist"
    with pytest.raises(WorkspaceProblem, match=said):
        list(collect_garbage(store, history, now=LATER, removes=True))
    away.rename(cached)
    assert len(list(store.list())) == 1


@pytest.mark.slow
def test_what_another_worktree_and_unfinished_outputs_have_is_kept(history, tmp_path):
    run(history, "git", "worktree", "add", "-q", "--detach", str(tmp_path / "other"))
    data = tmp_path / "other" / "data"
    notes = {
        "snapshot/index.json": {"key": "5" * 32},
        f"snapshot.{'0' * 12}.partial/.done-a.json": {"objects": [f"{'6' * 32}/train/x/0"]},
        f"shards.{'0' * 12}.partial/.done-b.json": {"digest": "7" * 32},
        "shards_of_others/index.json": {"shards": [{}]},
    }
    write_files(data, {name: json.dumps(value) for name, value in notes.items()})
    assert {"5" * 32, "6" * 32, f"shards/{'7' * 32}"} < find_reachable(history)
    (data / "snapshot/index.json").write_text("{")
    with pytest.raises(WorkspaceProblem, match=r"other/data/snapshot/index\.json cannot be"):
        find_reachable(history)
    run(history, "git", "worktree", "remove", "--force", str(tmp_path / "other"))


def test_a_snapshot_that_somebody_writes_is_left_alone():
    now = datetime.now(UTC)
    ages = {
        f"{NOBODY}/index/{DIGEST}.json": 2.0,
        f"{NOBODY}/index/{FIRST}.json": 0.5,
        f"{FIRST}/index/{DIGEST}.json": 1.0,
        f"{SECOND}/index/{DIGEST}.json": 2.0,
        f"{TRIED}/index/{DIGEST}.txt": 2.0,
        f"shards/{FIRST}": 2.0,
        f"shards/{SECOND}": 0.5,
    }
    objects = [
        StoredObject(name=name, bytes=1, modified_at=now - age * LEFT_ALONE, tag="")
        for name, age in ages.items()
    ]
    found = find_unreachable(objects, {SECOND}, now=now)
    assert {*found} == {FIRST, "shards"}
    assert found["shards"] == [objects[-2]], "one that somebody writes keeps no other"


def test_verify_reads_every_object_and_names_one_that_is_damaged(arrays, tmp_path, bucket_url):
    manifest = replace(read_manifest(arrays / "manifest"), folder=arrays / "manifest")
    storage = Storage(url=bucket_url, cache=tmp_path / "cache")
    layout, store = Layout(tmp_path), open_store(bucket_url)
    layout.shards.parent.mkdir()
    index = shard(manifest, layout.shards, settings=ShardSettings(min_shards=2), storage=storage)
    preprocess, settings = PREPROCESS["arrays"], StorageSettings(url=bucket_url)
    params = SimpleNamespace(preprocess=preprocess, storage=settings)
    files = ShardFiles(folder=layout.shards, storage=storage)
    destination = Destination(folder=layout.snapshot, store=store)
    write_snapshot(index, files, destination, preprocess=preprocess)
    objects = [one for one in store.list() if "/index/" not in one.name]
    assert verify(params, layout).startswith(f"{len(objects)} objects, ")
    for where, rows in (("shards/", r"\(shard "), ("/test/key/", ".* rows")):
        name = next(one.name for one in objects if where in one.name)
        data = store.read(name)
        store.write(name, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ObjectStoreFailed, match=f"{name} does not match its digest.*{rows}"):
            verify(params, layout)
        store.write(name, data)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["shards", "snapshot"]


@pytest.fixture
def folder(tmp_path):
    hidden = {".hidden/1.jpg": b"x", "cats/.DS_Store": b"x"}
    return write_files(tmp_path / "photos", FILES | hidden)


def read_all(url: str) -> dict[str, bytes]:
    store = open_store(url)
    return {one.name: store.read(one.name) for one in store.list()}


def test_a_folder_or_a_file_is_put_into_a_bucket(folder, bucket_url):
    (folder / "dogs").rename(folder / ".store")  # links count as what they lead to
    (folder / "dogs").symlink_to(".store")
    (folder / "cats" / "1.jpg").rename(folder / ".one")
    (folder / "cats" / "1.jpg").symlink_to("../.one")
    assert upload(folder, f"{bucket_url}/all") == f"3 objects, 0.0 MiB, in {bucket_url}/all"
    assert read_all(f"{bucket_url}/all") == FILES
    for where, name in (("one.jpg", "one.jpg"), ("some/", "some/1.jpg"), ("", "1.jpg")):
        upload(folder / "cats" / "1.jpg", f"{bucket_url}/{where}")
        assert open_store(bucket_url).read(name) == b"one"


BAD: dict[str, Callable[[Path], object]] = {
    "a link outside": lambda bad: bad.symlink_to("/usr"),
    "a second link": lambda bad: bad.symlink_to("cats"),
    "a link to nothing": lambda bad: bad.symlink_to("nowhere"),
    "no UTF-8": lambda bad: (bad.mkdir(), Path(f"{bad}/\udcff.png").write_bytes(b"1")),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_what_ingest_would_not_read_is_refused_before_anything_is_put(folder, bucket_url, make):
    make(folder / "birds")
    with pytest.raises(UnexpectedFiles, match="photos/birds"):
        upload(folder, bucket_url)
    assert not read_all(bucket_url)


def test_what_this_user_may_not_read_is_refused_before_anything_is_put(bucket_url):
    need("root")
    assert not read_all(bucket_url), "with all that this imports"
    with tempfile.TemporaryDirectory() as name:
        folder, hidden = Path(name), Path(name, "dogs.jpg")
        folder.chmod(0o755)
        for path in (folder / "cats.jpg", hidden):
            path.write_bytes(b"x")
        hidden.chmod(0)
        os.seteuid(65534)  # nobody
        try:
            said = r"dogs\.jpg cannot be read: Permission d"
            for source in (folder, hidden):
                with pytest.raises(UnexpectedFiles, match=said):
                    upload(source, f"{bucket_url}/x")
        finally:
            os.seteuid(0)
    assert not read_all(bucket_url)


def test_what_is_not_there_and_what_is_no_bucket_is_refused(folder, tmp_path, bucket_url):
    (tmp_path / "empty").mkdir()
    for name, said in (("nowhere", "nowhere does not exist"), ("empty", "empty has no files")):
        with pytest.raises(DataNotFound, match=said):
            upload(tmp_path / name, bucket_url)
    with pytest.raises(InvalidParams, match="found ftp://"):
        upload(folder, "ftp://host/x")
