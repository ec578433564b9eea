"""A project whose data is in a bucket has the results of files, and DVC sees what changes there."""

import copy
import json
import re
import sys
from pathlib import Path

import pytest

from tasks.upload import upload
from tests.support.project import SMALL, make_project, run, run_stages, write_params
from tests.support.small_data import picture, save_photos
from throughline.assembly.inputs import open_inputs
from throughline.config.params import load_params
from throughline.data.columns.index import column_path
from throughline.shared.layout import Layout
from throughline.shared.object_store import open_store

pytestmark = [pytest.mark.core, pytest.mark.timeout(900)]
PREPARED = ("ingest", "shard", "snapshot")


def params_of(path: str, **sections) -> dict:
    """Parameters of images at a path."""
    params = copy.deepcopy(SMALL) | sections
    params["data"] |= {"source": "image_folder", "path": path}
    return params


def repro(folder: Path, stage: str = "snapshot") -> list[str]:
    """Bring a stage up to date; returns the stages that have run."""
    return re.findall(r"Running stage '([\w@]+)'", run(folder, "dvc", "repro", stage))


def stale(folder: Path) -> list[str]:
    return [*json.loads(run(folder, "dvc", "status", "--json", *PREPARED) or "{}")]


def read_results(folder: Path):
    """What does not depend on how long things took: digests of examples, losses, and indexes."""
    run_folder = folder / "runs" / "optimized"
    history = (run_folder / "history.csv").read_text().splitlines()
    column = history[0].split(",").index("train_loss")
    digests = json.loads((run_folder / "input.json").read_text())["examples_digests"]
    names = ("shards", "snapshot")
    indexes = [(folder / "data" / name / "index.json").read_bytes() for name in names]
    return digests, [line.split(",")[column] for line in history], indexes


@pytest.fixture
def project(array_file, bucket_url, tmp_path) -> Path:
    """A project whose photos, here and in the bucket, a Dask worker prepares into the bucket."""
    stored = {"storage": {"url": f"{bucket_url}/stored"}, "engine": {"workers": 1}}
    params = params_of(f"{bucket_url}/photos", **stored)
    folder = make_project(tmp_path / "project", array_file, params)
    upload(save_photos(folder / "source" / "photos", 40, "cat", "dog"), f"{bucket_url}/photos")
    return folder


def test_a_project_in_a_bucket_has_the_results_of_files_and_follows_what_changes_there(
    project, bucket_url, object_store, tmp_path, monkeypatch
):
    trained = ["build@optimized", "train@optimized"]
    assert repro(project, "train@optimized") == ["identities", *PREPARED, *trained]
    in_bucket = read_results(project)
    assert stale(project) == []
    assert not [*(project / "data").rglob("*.bin"), *(project / "data").rglob("*.tfrecord")]
    assert [*(project / ".throughline" / "cache").rglob("image.bin")]
    verify = (sys.executable, "-m", "tasks.storage", "verify")
    assert "all digests match" in run(project, *verify)
    check_damaged_region(project)
    (tmp_path / "files").mkdir()
    write_params(tmp_path / "files", params_of(str(project / "source" / "photos")))
    run_stages(tmp_path / "files", *PREPARED, *trained)
    assert read_results(tmp_path / "files") == in_bucket

    stored = (project / "params.yaml").read_text()
    write_params(project, params_of(f"{bucket_url}/photos"))
    assert stale(project) == [], "where it is reruns nothing"
    check_taken_back(project)
    (project / "params.yaml").write_text(stored)
    check_changes(project, f"{bucket_url}/photos")
    manifest = (project / "data" / "manifest" / "manifest.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
        said = run(project, "dvc", "repro", "snapshot", code=255)
    assert "failed to reproduce 'ingest': Forbidden" in said and "a-wrong-secret" not in said
    assert (project / "data" / "manifest" / "manifest.json").read_bytes() == manifest

    secret = object_store["AWS_SECRET_ACCESS_KEY"].encode()
    files = [path for path in project.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_bytes()]


def check_damaged_region(folder: Path) -> None:
    """What a host has fetched of some rows is compared with its digests, too."""
    data = open_inputs(load_params(folder / "params.yaml"), Layout(folder)).for_rows((4, 9))
    data.memmap("train", "image")
    path = column_path(data.columns_folder, "train", "image")
    content = path.read_bytes()
    path.unlink()  # it may be a link to the whole
    path.write_bytes(b"?" * len(content))
    said = run(folder, sys.executable, "-m", "tasks.verify", code=2)
    assert "rows-4-9/train/image.bin does not match its digest" in said
    path.unlink()


def check_taken_back(folder: Path) -> None:
    """Without the bucket, the error names the command that writes the files here."""
    lock, indexes = (folder / "dvc.lock").read_bytes(), read_results(folder)[-1]
    verify = (sys.executable, "-m", "tasks.verify")
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
