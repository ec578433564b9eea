"""The stages of a project whose snapshot stores a part of its rows."""

from __future__ import annotations

import copy
import json

import pytest

from tests.support.project import SMALL, make_project, run_stages, write_params
from throughline.data.columns.index import count_stored, read_index
from throughline.results.build import BuildResult
from throughline.shared.layout import Layout

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PREPARED = ("identities", "fetch", "ingest", "shard", "snapshot")


def of_fraction(fraction):
    params = copy.deepcopy(SMALL)
    params["pipelines"]["optimized"]["snapshot"] = {"fraction": fraction}
    return params


@pytest.fixture(scope="module")
def project(tmp_path_factory, array_file):
    folder = tmp_path_factory.mktemp("part") / "project"
    return make_project(folder, array_file, of_fraction(0.3))


def read_losses(folder):
    lines = (folder / "runs" / "optimized" / "history.csv").read_text().splitlines()
    return [line.split(",")[:5] for line in lines]


@pytest.mark.slow
def test_a_project_trains_the_same_whatever_its_snapshot_stores(project, finished, capsys):
    stages = (*PREPARED, "build@naive", "build@optimized", "train@optimized", "profile@optimized")
    run_stages(project, *[stage.replace("profile@", "profiling@") for stage in stages], "verify")
    said = capsys.readouterr().out
    assert "the first 30% of each split stored" in said
    assert "gather:0.3 of snapshot (else parse+decode)[global shuffle,32]+flip" in said
    index = read_index(Layout(project).snapshot)
    value, *_ = index.columns
    rows = index.splits["train"]
    assert rows.rows(value) == count_stored(rows.count, 0.3)
    stored = sum(split.rows(value) for split in index.splits.values())
    assert f"columns of 200 rows, image of {stored}, OK: all digests match" in said
    results = [BuildResult.read(project / "runs" / name) for name in ("naive", "optimized")]
    whole = BuildResult.read(finished[0] / "runs" / "optimized")
    assert whole.examples_digests == results[0].examples_digests == results[1].examples_digests
    assert read_losses(project) == read_losses(finished[0])


def test_a_configuration_that_reads_more_than_is_stored_says_what_to_run(project, capsys):
    write_params(project, of_fraction(0.3))
    run_stages(project, *PREPARED)
    write_params(project, of_fraction(0.5))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run_stages(project, "build@optimized")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "StaleSnapshot" in said and "run `dvc repro snapshot`" in said
    identity = project / "data" / "identities" / "snapshot.json"
    assert json.loads(identity.read_text())["settings"]["snapshot"]["fraction"] == 0.3
    run_stages(project, "identities")
    assert json.loads(identity.read_text())["settings"]["snapshot"]["fraction"] == 0.5
