"""A project whose data is in a bucket has the results of files, and DVC sees what changes there;
commands for stores put what ingest reads, name damage, remove what nothing reaches.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.storage import LEFT_ALONE, collect_garbage, find_reachable, find_unreachable, verify
from tasks.upload import upload
from tests.support.project import SMALL, make_project, run, run_stages, write_params
from tests.support.skips import need
from tests.support.small_data import picture, read_files, save_photos, write_files
from tests.support.small_pipelines import PREPROCESS
from throughline.data.columns.stored import Destination
from throughline.data.manifest import read_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.writing import shard
from throughline.data.storage import Storage
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.results.build import BuildResult
from throughline.results.train import read_history
from throughline.settings import ShardSettings, StorageSettings
from throughline.shared import errors
from throughline.shared.layout import Layout
from throughline.shared.object_store import StoredObject, open_store

pytestmark = pytest.mark.integration

FILES = {"cats/1.jpg": b"one", "cats/2.jpg": b"two", "dogs/1.jpg": b"three"}
FIRST, SECOND, TRIED, NOBODY = (digit * 32 for digit in "1234")  # keys of snapshots
DIGEST = "ab" * 16
LATER = datetime.now(UTC) + 2 * LEFT_ALONE
STAGE = """\
stages:
  both: {cmd: mkdir -p data && cp -r new/. data, deps: [new], outs: [data/shards, data/snapshot]}
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    """A project with snapshots FIRST and SECOND in commits, and TRIED in an experiment."""
    folder = tmp_path_factory.mktemp("history")
    run(folder, "git", "init", "-q")
    run(folder, "dvc", "init", "-q")
    (folder / "dvc.yaml").write_text(STAGE)
    for key in (FIRST, SECOND, TRIED):
        new = {"shards": {"shards": [{"digest": key}]}, "snapshot": {"key": key}}
        write_files(folder, {f"new/{name}/index.json": json.dumps(new[name]) for name in new})
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
    reachable = {*reached, *(f"shards/{key}" for key in reached)}
    assert find_reachable(history) == reachable
    before = {one.name: f"{one.modified_at.astimezone(UTC):%Y-%m-%d}" for one in store.list()}
    size = "objects, 0.0 MiB, the last of"
    expected = [
        f"{bucket_url}/{NOBODY}: 2 {size} {before[f'{NOBODY}/index/{DIGEST}.json']}",
        f"{bucket_url}/shards: 1 {size} {before[f'shards/{NOBODY}']}",
    ]
    listed = list(collect_garbage(store, history, now=LATER, removes=False))
    assert listed == [f"{line}, can be removed" for line in expected]
    assert not list(collect_garbage(store, history, now=datetime.now(UTC), removes=True))
    assert {one.name for one in store.list()} == before.keys()
    removed = list(collect_garbage(store, history, now=LATER, removes=True))
    assert removed == [f"{line}, removed" for line in expected]
    assert before.keys() - {one.name for one in store.list()} == {
        name for name in before if NOBODY in name and name not in others
    }


@pytest.mark.slow
def test_nothing_is_removed_where_the_history_cannot_be_read(history, bucket_url):
    store = open_store(bucket_url)
    store.write(f"{NOBODY}/index/{DIGEST}.json", b"2")
    cached = {path.read_text(): path for path in history.glob(".dvc/cache/files/md5/*/*")}
    lost = cached[json.dumps({"key": FIRST})]
    away = lost.rename(history / "away")
    with pytest.raises(errors.WorkspaceProblem, match="need, so nothing is removed; first get"):
        list(collect_garbage(store, history, now=LATER, removes=True))
    away.rename(lost)
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
    with pytest.raises(errors.WorkspaceProblem, match=r"other/data/snapshot/index\.json need"):
        find_reachable(history)
    run(history, "git", "worktree", "remove", "--force", str(tmp_path / "other"))


def test_a_snapshot_that_somebody_writes_is_left_alone():
    ages = {
        f"{NOBODY}/index/{DIGEST}.json": 2.0,
        f"{NOBODY}/index/{FIRST}.json": 0.5,
        f"{FIRST}/index/{DIGEST}.json": 1.0,
        f"{SECOND}/index/{DIGEST}.json": 2.0,
        f"{TRIED}/index/{DIGEST}.txt": 2.0,
        f"shards/{FIRST}": 2.0,
        f"shards/{SECOND}": 0.5,  # keeps no other
    }
    objects = [
        StoredObject(name=name, bytes=1, modified_at=LATER - age * LEFT_ALONE, tag="")
        for name, age in ages.items()
    ]
    found = find_unreachable(objects, {SECOND}, now=LATER)
    assert found == {FIRST: [objects[2]], "shards": [objects[-2]]}


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
    names = [one.name for one in store.list() if "/index/" not in one.name]
    assert verify(params, layout).startswith(f"{len(names)} objects, ")
    for where, rows in (("shards/", r"\(shard "), ("/test/key/", ".* rows")):
        name = next(name for name in names if where in name)
        data = store.read(name)
        store.write(name, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(errors.ObjectStoreFailed, match=f"{name} does not match.*{rows}"):
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
    with pytest.raises(errors.UnexpectedFiles, match="photos/birds"):
        upload(folder, bucket_url)
    assert not read_all(bucket_url)


def test_what_this_user_may_not_read_is_refused_before_anything_is_put(bucket_url):
    need("root")
    assert not read_all(bucket_url), "with all that this imports"
    with tempfile.TemporaryDirectory() as name:
        folder = write_files(Path(name), {"cats.jpg": b"x", "dogs.jpg": b"x"})
        folder.chmod(0o755)
        (folder / "dogs.jpg").chmod(0)
        os.seteuid(65534)  # nobody
        try:
            for source in (folder, folder / "dogs.jpg"):
                with pytest.raises(errors.UnexpectedFiles, match=r"dogs\.jpg cannot be read: Perm"):
                    upload(source, f"{bucket_url}/x")
        finally:
            os.seteuid(0)
    assert not read_all(bucket_url)


def test_what_is_not_there_and_what_is_no_bucket_is_refused(folder, tmp_path, bucket_url):
    (tmp_path / "empty").mkdir()
    for name, said in (("nowhere", "nowhere does not exist"), ("empty", "empty has no files")):
        with pytest.raises(errors.DataNotFound, match=said):
            upload(tmp_path / name, bucket_url)
    with pytest.raises(errors.InvalidParams, match="found ftp://"):
        upload(folder, "ftp://host/x")


PREPARED = ("ingest", "shard", "snapshot")


def params_of(path: str, **sections) -> dict:
    """Parameters of images at a path."""
    return SMALL | {"data": SMALL["data"] | {"source": "image_folder", "path": path}} | sections


def repro(folder: Path, stage: str = "snapshot") -> list[str]:
    """Bring a stage up to date; returns the stages that have run."""
    return re.findall(r"Running stage '([\w@]+)'", run(folder, "dvc", "repro", stage))


def stale(folder: Path) -> list[str]:
    return [*json.loads(run(folder, "dvc", "status", "--json", *PREPARED) or "{}")]


def read_results(folder: Path):
    """What does not depend on how long things took: digests of examples, losses, and indexes."""
    results, data = Layout(folder).results("optimized"), folder / "data"
    losses = [row["train_loss"] for row in read_history(results)]
    indexes = [(data / name / "index.json").read_bytes() for name in ("shards", "snapshot")]
    return BuildResult.read(results).examples_digests, losses, indexes


@pytest.mark.core
@pytest.mark.timeout(900)
def test_a_project_in_a_bucket_has_the_results_of_files_and_follows_what_changes_there(
    array_file, bucket_url, object_store, tmp_path, monkeypatch
):
    """A Dask worker prepares it into the bucket."""
    stored = {"storage": {"url": f"{bucket_url}/stored"}, "engine": {"workers": 1}}
    params = params_of(f"{bucket_url}/photos", **stored)
    project = make_project(tmp_path / "project", array_file, params)
    photos = save_photos(project / "source" / "photos", 40, "cat", "dog")
    upload(photos, f"{bucket_url}/photos")
    trained = ["build@optimized", "train@optimized"]
    assert repro(project, "train@optimized") == ["identities", *PREPARED, *trained]
    in_bucket = read_results(project)
    assert stale(project) == []
    assert not [*(project / "data").rglob("*.bin"), *(project / "data").rglob("*.tfrecord")]
    assert [*(project / ".throughline" / "cache").rglob("image.bin")]
    assert "all digests match" in run(project, "python", "-m", "tasks.storage", "verify")
    run(project, "python", "-m", "tasks.verify")
    (tmp_path / "files").mkdir()
    write_params(tmp_path / "files", params_of(str(photos)))
    run_stages(tmp_path / "files", *PREPARED, *trained)
    assert read_results(tmp_path / "files") == in_bucket

    write_params(project, params_of(f"{bucket_url}/photos"))
    assert stale(project) == [], "where it is reruns nothing"
    check_taken_back(project)
    write_params(project, params)
    check_changes(project, f"{bucket_url}/photos")
    manifest = read_files(project / "data" / "manifest")
    with monkeypatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
        said = run(project, "dvc", "repro", "snapshot", code=255)
    assert "failed to reproduce 'ingest': Forbidden" in said and "a-wrong-secret" not in said
    assert read_files(project / "data" / "manifest") == manifest

    secret = object_store["AWS_SECRET_ACCESS_KEY"].encode()
    assert not [name for name, content in read_files(project).items() if secret in content]


def check_taken_back(folder: Path) -> None:
    """Without the bucket, the error names the command that writes the files here."""
    lock, indexes = (folder / "dvc.lock").read_bytes(), read_results(folder)[-1]
    verify = ("python", "-m", "tasks.verify")
    said = run(folder, *verify, code=2)
    found = re.search(r"set storage.url .* or write them here with `(dvc [^`]+)`", said)
    assert found, said
    run(folder, *found[1].split())
    run(folder, *verify)
    assert read_results(folder)[-1] == indexes
    (folder / "dvc.lock").write_bytes(lock)
    run(folder, "dvc", "checkout", "--force", "shard", "snapshot")


def check_changes(folder: Path, url: str) -> None:
    """Of an object that is written again DVC sees nothing; of others it runs what follows."""
    store, first = open_store(url), open_store(url).read("cat/00.jpg")
    index = (folder / "data" / "snapshot" / "index.json").read_bytes()
    store.write("cat/00.jpg", first)
    assert stale(folder) == [], "it is the same again"
    store.delete(["cat/00.jpg"])
    assert stale(folder) == ["ingest"]
    store.write("cat/00.jpg", first)
    store.write("cat/.hidden", b"of which ingest sees nothing")
    assert stale(folder) == ["ingest"]
    assert repro(folder) == ["ingest"]
    picture(99).save(folder / "source" / "other.jpg")
    upload(folder / "source" / "other.jpg", f"{url}/cat/00.jpg")
    assert stale(folder) == ["ingest"]
    assert repro(folder) == [*PREPARED]
    assert (folder / "data" / "snapshot" / "index.json").read_bytes() != index
