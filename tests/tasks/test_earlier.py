"""What the last run has written is found in the cache while it would be written today."""

import hashlib
import re
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.earlier import open_earlier
from tests.support.project import SMALL, copy_project, make_project, run, write_params
from tests.support.small_data import read_files, save_photos
from throughline.results.snapshot import SnapshotCost
from throughline.shared.layout import Layout
from throughline.shared.scratch import Scratch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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
    names = ("shards", "snapshot") if stage == "snapshot" else ("shards",)
    expected = {name: read_files(done / "data" / name) for name in names}
    shutil.rmtree(done / "data" / "shards")
    try:
        earlier, scratch = open_in(done, stage, monkeypatch)
        folders = [path for path in (earlier.root / "data").iterdir() if path.is_dir()]
        assert {path.name: read_files(path) for path in folders} == expected
        assert (earlier.root / "data" / "snapshot.json").exists() == (stage == "snapshot")
        cached = [path.resolve() for path in earlier.shards.iterdir()]
        del scratch
        assert not earlier.root.exists() and all(path.exists() for path in cached)
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


@pytest.mark.parametrize("damage", ["{", "stages: {shard: [1]}\n", "cache"])
def test_without_a_record_or_a_cache_there_is_none(done, tmp_path, monkeypatch, damage):
    folder = copy_project(done, tmp_path / "project")
    if damage == "cache":
        shutil.rmtree(folder / ".dvc" / "cache")
    else:
        (folder / "dvc.lock").write_text(damage)
    assert open_in(folder, "shard", monkeypatch)[0] is None


PARAMS = {
    **SMALL,
    "data": {**SMALL["data"], "source": "image_folder", "path": "source/photos"},
    "shard": {**SMALL["shard"], "min_shards": 4},
    "preprocess": ["decode", "my_ops:Stamp", {"resize": {"height": 16, "width": 18}}],
}
OWN = """
from pathlib import Path

from throughline.plan.ops import Op


class Stamp(Op):
    name = "stamp"

    def compute(self, element, draw):
        stamp = int(Path("stamp.txt").read_text())
        return {**element, "image": element["image"] // 2 + stamp}
"""


def read_prepared(folder: Path) -> list[dict[str, bytes]]:
    return [read_files(folder / "data" / name) for name in ("manifest", "shards", "snapshot")]


def read_copied(said: str) -> int:
    found = re.search(r"([\d,]+) of them copied", said)
    return int(found[1].replace(",", "")) if found else 0


@pytest.fixture(scope="module")
def growing(array_file, tmp_path_factory) -> Path:
    """Photos, and an op of one's own that reads a file, through DVC as far as the snapshot."""
    folder = make_project(tmp_path_factory.mktemp("growing") / "project", array_file, PARAMS)
    save_photos(folder / "source" / "photos", 60, "a", "b")
    (folder / "my_ops.py").write_text(OWN)
    (folder / "stamp.txt").write_text("3")
    pipeline = folder / "dvc.yaml"
    mark = re.compile(r"(      # Own ops and models.*\n)")
    pipeline.write_text(mark.sub(r"\1      - stamp.txt\n", pipeline.read_text()))
    run(folder, "dvc", "repro", "snapshot")
    return folder


def test_one_file_less_changes_one_shard_and_its_rows(growing):
    before = SnapshotCost.read(growing / "data")
    (growing / "source" / "photos" / "b" / "07.jpg").unlink()
    said = run(growing, "dvc", "repro", "snapshot")
    copied = read_copied(said)
    assert 0 < copied < 59
    # It is what a fresh one would take, by the rate of that in which nothing was copied.
    after = SnapshotCost.read(growing / "data")
    assert after.examples_per_s == pytest.approx(before.examples_per_s)
    incremental = read_prepared(growing)
    fresh = ("env", "THROUGHLINE_FRESH=1", "dvc", "repro", "--force", "snapshot")
    assert not read_copied(run(growing, *fresh)), "everything is computed where that is asked for"
    assert read_prepared(growing) == incremental


def test_what_own_code_reads_is_not_forgotten(growing):
    before = read_prepared(growing)
    (growing / "stamp.txt").write_text("4")
    assert not read_copied(run(growing, "dvc", "repro", "snapshot"))
    assert read_prepared(growing) != before


def test_a_cache_that_lacks_a_column_costs_time_alone(growing, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(growing, folder, symlinks=True)
    expected = read_prepared(folder)
    digest = hashlib.md5((folder / "data/snapshot/train/image.bin").read_bytes()).hexdigest()
    (folder / ".dvc" / "cache" / "files" / "md5" / digest[:2] / digest[2:]).unlink()
    assert 0 < read_copied(run(folder, sys.executable, "-m", "tasks.snapshot")) < 30
    assert read_prepared(folder) == expected


def test_dvc_records_no_other_identity_than_that_which_the_results_have(growing):
    own = growing / "my_ops.py"
    before = own.read_text()
    own.write_text(before.replace("// 2", "// 3"))
    try:
        said = run(growing, "dvc", "repro", "--force", "--single-item", "snapshot", code=255)
        assert "what decides the results of snapshot has changed since" in said
    finally:
        own.write_text(before)
