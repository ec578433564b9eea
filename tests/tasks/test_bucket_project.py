"""A project whose source is in a bucket: DVC sees what changes there, runs what follows and nothing
else.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from tasks.upload import upload
from tests.support.project import SMALL, make_project, run, write_params
from tests.support.small_data import picture
from throughline.shared.object_store import open_store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PREPARED = ("ingest", "shard", "snapshot")


def in_folder(path: str) -> dict:
    """Parameters of images at a path."""
    params = copy.deepcopy(SMALL)
    params["data"] |= {"source": "image_folder", "path": path}
    return params


def repro(folder: Path) -> list[str]:
    """Bring the snapshot up to date; returns the stages that have run."""
    said = run(folder, "dvc", "repro", "snapshot")
    return re.findall(r"Running stage '(\w+)'", said)


def stale(folder: Path) -> dict:
    return json.loads(run(folder, "dvc", "status", "--json", *PREPARED) or "{}")


@pytest.fixture
def project(array_file, bucket_url, tmp_path) -> Path:
    """A project with photos in source/photos and in the bucket, read from there."""
    folder = make_project(tmp_path / "project", array_file, in_folder(f"{bucket_url}/photos"))
    for number in range(40):
        path = folder / "source" / "photos" / ("cat", "dog")[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, size=(12, 10)).save(path)
    upload(folder / "source" / "photos", f"{bucket_url}/photos")
    return folder


@pytest.mark.slow
def test_dvc_runs_what_a_change_in_the_bucket_concerns_and_nothing_else(
    project, bucket_url, object_store, monkeypatch
):
    store = open_store(f"{bucket_url}/photos")
    assert repro(project) == ["identities", *PREPARED]
    index = (project / "data" / "snapshot" / "index.json").read_bytes()
    assert stale(project) == {}

    first = store.read("cat/00.jpg")
    store.write("cat/00.jpg", first)
    assert stale(project) == {}, "it is the same again"
    store.delete(["cat/00.jpg"])
    assert [*stale(project)] == ["ingest"]
    store.write("cat/00.jpg", first)
    store.write("cat/.hidden", b"of which ingest sees nothing")
    assert [*stale(project)] == ["ingest"]
    assert repro(project) == ["ingest"]

    picture(99, size=(12, 10)).save(project / "source" / "other.jpg")
    upload(project / "source" / "other.jpg", f"{bucket_url}/photos/cat/00.jpg")
    assert [*stale(project)] == ["ingest"]
    assert repro(project) == [*PREPARED]
    assert (project / "data" / "snapshot" / "index.json").read_bytes() != index

    manifest = (project / "data" / "manifest" / "manifest.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
        said = run(project, "dvc", "repro", "snapshot", code=255)
    assert "a-wrong-secret" not in said
    assert "failed to reproduce 'ingest': Forbidden" in said
    assert (project / "data" / "manifest" / "manifest.json").read_bytes() == manifest

    write_params(project, in_folder("source/photos"))
    assert repro(project)[:2] == ["identities", "ingest"]
    assert (project / "data" / "snapshot" / "index.json").read_bytes() == index, "as of a folder"

    secret = object_store["AWS_SECRET_ACCESS_KEY"].encode()
    files = [path for path in project.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_bytes()]
