"""A project whose data change by one file: `dvc repro` writes one shard, preprocesses it alone, and
ends in the bytes of a fresh preparation.
"""

from __future__ import annotations

import copy
import hashlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.project import SMALL, make_project, run
from tests.support.small_data import picture
from throughline.results.snapshot import SnapshotCost

PARAMS = {
    **copy.deepcopy(SMALL),
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


def read_prepared(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for name in ("manifest", "shards", "snapshot")
        for path in (folder / "data" / name).rglob("*")
        if path.is_file()
    }


def read_copied(said: str) -> int:
    found = re.search(r"([\d,]+) of them copied", said)
    return int(found[1].replace(",", "")) if found else 0


def cost_of(folder: Path) -> SnapshotCost:
    return SnapshotCost.read(folder / "data")


@pytest.fixture(scope="module")
def project(array_file, tmp_path_factory) -> Path:
    """Photos, and an op of one's own that reads a file, through DVC as far as the snapshot."""
    folder = make_project(tmp_path_factory.mktemp("growing") / "project", array_file, PARAMS)
    for number in range(60):
        path = folder / "source" / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    (folder / "my_ops.py").write_text(OWN)
    (folder / "stamp.txt").write_text("3")
    pipeline = folder / "dvc.yaml"
    mark = re.compile(r"(      # Own ops and models.*\n)")
    pipeline.write_text(mark.sub(r"\1      - stamp.txt\n", pipeline.read_text()))
    run(folder, "dvc", "repro", "snapshot")
    return folder


@pytest.mark.slow
def test_one_file_less_changes_one_shard_and_its_rows(project):
    before = cost_of(project)
    (project / "source" / "photos" / "b" / "7.jpg").unlink()
    said = run(project, "dvc", "repro", "snapshot")
    copied = read_copied(said)
    assert 0 < copied < 59
    # It is what a fresh one would take, by the rate of that in which nothing was copied.
    assert cost_of(project).examples_per_s == pytest.approx(before.examples_per_s)
    incremental = read_prepared(project)
    fresh = ("env", "THROUGHLINE_FRESH=1", "dvc", "repro", "--force", "snapshot")
    assert not read_copied(run(project, *fresh)), "everything is computed where that is asked for"
    assert read_prepared(project) == incremental


@pytest.mark.slow
def test_what_own_code_reads_is_not_forgotten(project):
    """A file that an op reads, and is listed for that, is another: nothing is copied."""
    before = read_prepared(project)
    (project / "stamp.txt").write_text("4")
    assert not read_copied(run(project, "dvc", "repro", "snapshot"))
    assert read_prepared(project) != before


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["snapshot.json", "one column"])
def test_a_cache_that_lacks_something_costs_time_alone(project, tmp_path, lost):
    folder = tmp_path / "project"
    shutil.copytree(project, folder, symlinks=True)
    data, expected = folder / "data", read_prepared(folder)
    gone = data / "snapshot.json" if lost == "snapshot.json" else data / "snapshot/train/image.bin"
    digest = hashlib.md5(gone.read_bytes()).hexdigest()
    (folder / ".dvc" / "cache" / "files" / "md5" / digest[:2] / digest[2:]).unlink()
    copied = read_copied(run(folder, sys.executable, "-m", "tasks.snapshot"))
    assert copied == 0 if lost == "snapshot.json" else 0 < copied < 30
    assert read_prepared(folder) == expected


@pytest.mark.slow
def test_dvc_records_no_other_identity_than_that_which_the_results_have(project):
    """An op that is edited after the stage that writes identities is not taken for the earlier."""
    own = project / "my_ops.py"
    before = own.read_text()
    own.write_text(before.replace("// 2", "// 3"))
    try:
        said = run(project, "dvc", "repro", "--force", "--single-item", "snapshot", code=255)
        assert "what decides the results of snapshot has changed since" in said
    finally:
        own.write_text(before)
