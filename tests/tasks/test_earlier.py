"""What the last run by DVC has written is found in its cache, as long as it is what the stage would
write today.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.earlier import open_earlier
from tests.support.project import copy_project, run, write_params
from throughline.shared.layout import Layout
from throughline.shared.scratch import Scratch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def done(finished, tmp_path_factory) -> Path:
    """A project that DVC has run."""
    return copy_project(finished[0], tmp_path_factory.mktemp("earlier") / "project")


def open_in(folder: Path, stage: str, monkeypatch) -> tuple[Layout | None, Scratch]:
    scratch = Scratch(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return open_earlier(stage, Path(), scratch), scratch


@pytest.mark.parametrize("stage", ["shard", "snapshot"])
def test_outputs_are_found_after_dvc_has_removed_them(done, stage, monkeypatch):
    expected = {
        path.relative_to(done).as_posix(): path.read_bytes()
        for name in ("shards", *(("snapshot",) if stage == "snapshot" else ()))
        for path in (done / "data" / name).rglob("*")
        if path.is_file()
    }
    shutil.rmtree(done / "data" / "shards")
    try:
        earlier, _scratch = open_in(done, stage, monkeypatch)
        found = {
            path.relative_to(earlier.root).as_posix(): path.read_bytes()
            for path in earlier.root.rglob("data/s*/**/*")
            if path.is_file()
        }
        assert found == expected
        assert (earlier.root / "data" / "snapshot.json").exists() == (stage == "snapshot")
    finally:
        run(done, "dvc", "checkout", "data/shards")


def test_what_another_identity_has_made_is_not_opened(done, monkeypatch):
    """Also where nobody has run the stage that writes identities since."""
    before = (done / "params.yaml").read_text()
    params = YAML(typ="safe").load(before)
    write_params(done, {**params, "shard": {**params["shard"], "min_shards": 3}})
    try:
        assert open_in(done, "shard", monkeypatch)[0] is None
        assert open_in(done, "snapshot", monkeypatch)[0] is not None
    finally:
        (done / "params.yaml").write_text(before)


@pytest.mark.parametrize("damage", ["no_lock", "lock", "entry", "cache"])
def test_without_a_record_or_a_cache_there_is_none(done, tmp_path, monkeypatch, damage):
    folder = copy_project(done, tmp_path / "project")
    lock = folder / "dvc.lock"
    if damage == "no_lock":
        lock.unlink()
    elif damage == "lock":
        lock.write_text("{")
    elif damage == "entry":
        lock.write_text("stages: {shard: [1]}\n")
    else:
        shutil.rmtree(folder / ".dvc" / "cache")
    assert open_in(folder, "shard", monkeypatch)[0] is None


def test_links_go_with_their_scratch_folder(done, monkeypatch):
    earlier, scratch = open_in(done, "shard", monkeypatch)
    cached = [path.resolve() for path in earlier.shards.iterdir()]
    assert json.loads((earlier.shards / "index.json").read_text())["shards"]
    del scratch
    assert not earlier.root.exists()
    assert all(path.exists() for path in cached)
    subprocess.run(["dvc", "status", "--quiet", "shard"], cwd=done, check=True)
