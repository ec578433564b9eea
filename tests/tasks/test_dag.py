"""The whole DAG as a user runs it: `dvc repro` in a fresh project, then in changed copies of it."""

import json
import re
import signal
from pathlib import Path

import mlflow
import pytest

from tests.support.kills import signaled_at
from tests.support.own_code import each
from tests.support.project import SMALL, run, run_quietly, run_stages, runs_of, write_params
from tests.support.small_data import flip_bit
from throughline.results.build import BuildResult
from throughline.shared.file_lock import hold_outputs

pytestmark = pytest.mark.timeout(600)


def executed(output: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", output)


@pytest.mark.core
def test_a_fresh_project_runs_every_stage_once_and_its_results_are_complete_and_equal(finished):
    folder, output = finished
    once = ["identities", "fetch", "ingest", "shard", "snapshot", "race", "report"]
    assert sorted(executed(output)) == sorted([*once, *each("build", "train", "profile")])
    summary = json.loads((folder / "report" / "summary.json").read_text())
    assert summary["headline"] in output
    assert [row["pipeline"] for row in summary["configurations"]] == ["naive", "optimized"]
    for row in summary["configurations"]:
        assert row["train_examples_per_s"] > 0 and row["model_examples_per_s"] > 0
        assert 0 <= row["stall_pct"] <= 100
    page = (folder / "report" / "index.html").read_text()
    assert all(part in page for part in summary["headline"].split("`"))
    assert "data:image/svg+xml;base64," in page
    named = r'http-equiv|xmlns(:\w+)?="[^"]*"|"http://www.w3.org[^"]*"|<metadata>.*?</metadata>'
    assert "http" not in re.sub(named, "", page, flags=re.S), "it needs no network"
    proven = (BuildResult.read(folder / "runs" / name) for name in ("naive", "optimized"))
    naive, optimized = (one.examples_digests for one in proven)
    assert naive == optimized and set(naive) == {"train", "validation", "test"}


@pytest.mark.core
def test_mlflow_has_one_run_per_configuration_with_the_agreed_names(finished):
    folder, _ = finished
    runs = runs_of(folder)
    assert {run.data.tags["pipeline"] for run in runs} == {"naive", "optimized"}
    for found in runs:
        assert {
            "throughput/train_examples_per_s", "throughput/model_examples_per_s",
            "input/first_batch_s", "input/stall_pct", "step/ms_p50", "step/ms_p99",
            "cpu/seconds_per_1k_examples",
            "memory/rss_mb_max", "train/loss", "val/accuracy", "test/accuracy",
        } <= set(found.data.metrics)  # fmt: skip
        on_gpu = any(name.startswith("gpu/") for name in found.data.metrics)
        assert not on_gpu or "gpu" in found.data.params.get("machine.gpus", "")
        assert {"data.digest", "git.commit", "verdict"} <= set(found.data.tags)
        assert found.data.params["pipeline.read"] in ("shards", "snapshot")
        assert found.inputs.dataset_inputs[0].dataset.digest
    fed = "throughput/input_examples_per_s"  # absent where noise made training faster
    assert any(fed in found.data.metrics for found in runs)
    history = mlflow.MlflowClient().get_metric_history(runs[0].info.run_id, "val/accuracy")
    assert [point.step for point in history] == [0, 1, 2], "the last is the model that is kept"
    assert history[2].value == history[1].value


def stale(folder) -> set[str]:
    """Stages that DVC holds for out of date."""
    return set(json.loads(run_quietly(folder, "dvc", "status", "--json")))


@pytest.mark.core
def test_a_second_run_does_nothing_and_a_change_of_one_configuration_concerns_its_own_stages(first):
    folder, _ = first
    assert stale(folder) == set()
    assert executed(run(folder, "dvc", "repro")) == []
    naive = {"read": "shards", "prefetch": 1}
    write_params(folder, SMALL | {"pipelines": SMALL["pipelines"] | {"naive": naive}})
    assert stale(folder) == {"identities"}, "which says what is out of date besides"
    assert executed(run(folder, "dvc", "repro", "build@naive")) == ["identities", "build@naive"]
    write_params(folder, SMALL)
    assert executed(run(folder, "dvc", "repro")) == [], "going back restores from the run cache"


NOTING = """
import sys
from pathlib import Path

import keras
from tensorflow.python.framework.config import is_op_determinism_enabled as deterministic


def build(input_shape, outputs):
    dense = keras.layers.Dense(outputs)
    network = keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), dense])
    policy, stage = keras.mixed_precision.global_policy().name, Path(sys.argv[0]).stem
    with Path("built.txt").open("a") as file:
        print(stage, policy, deterministic(), float(dense.kernel[0, 0]), file=file)
    return network
"""


@pytest.mark.slow
def test_the_profile_computes_as_the_training_does(first):
    folder, _ = first
    (folder / "my_models.py").write_text(NOTING)
    train = SMALL["train"] | {"mixed_precision": True, "deterministic": True}
    write_params(folder, SMALL | {"model": {"name": "my_models:build"}, "train": train})
    for stage in ("train", "profiling"):
        run(folder, "python", "-m", f"tasks.{stage}", "--pipeline", "naive")
    built = set((folder / "built.txt").read_text().splitlines())
    computed = {line.partition(" ")[2] for line in built}
    assert len(built) == 2 and len(computed) == 1, "a line of each stage, with the same in them"
    assert computed.pop().startswith("mixed_bfloat16 True ")


@pytest.mark.slow
def test_verifying_reads_every_byte(first):
    folder, verify = first[0], ("python", "-m", "tasks.verify")
    assert "OK: all digests match" in run(folder, *verify)
    column = folder / "data" / "snapshot" / "train" / "image.bin"
    shard = next((folder / "data" / "shards").glob("train-*.tfrecord"))
    for path, at in ((column, 0), (shard, -1)):
        path.chmod(0o644)
        flip_bit(path, at)
    said = run(folder, *verify, code=2)
    assert shard.name in said and "image.bin: chunk of rows 0 to" in said, "all in one list"
    flip_bit(column, 0)
    flip_bit(shard, -1)
    run(folder, *verify)


TRAIN = ("tasks.train", "--pipeline", "optimized")


@pytest.mark.slow
def test_a_second_training_of_a_configuration_is_refused_while_one_writes(first):
    folder, out = first[0], first[0] / "runs" / "optimized"
    before = (out / "model.keras").read_bytes()
    with hold_outputs(out, "training optimized"):
        said = run(folder, "python", "-m", *TRAIN, code=2)
    assert "another process is training optimized and writes into runs/optimized" in said
    assert (out / "model.keras").read_bytes() == before
    with hold_outputs(out, "training optimized"):
        pass  # free again


def read_rows(history: Path) -> list[list[str]]:
    return [line.split(",")[:5] for line in history.read_text().splitlines()]


@pytest.mark.core
def test_a_training_that_was_ended_and_killed_ends_alike_and_mlflow_has_each_epoch_once(first):
    """By SIGTERM, as a flow that is canceled ends it; then by kill -9, of which nobody hears."""
    folder, _ = first
    write_params(folder, SMALL | {"train": SMALL["train"] | {"epochs": 6}})
    history = folder / "runs" / "optimized" / "history.csv"
    run_stages(folder, "train@optimized")
    undisturbed = read_rows(history)
    history.unlink()

    seen = set()
    for number, code, status in (
        (signal.SIGTERM, 128 + signal.SIGTERM, "KILLED"),
        (signal.SIGKILL, -signal.SIGKILL, "RUNNING"),
    ):
        output = run(folder, *signaled_at(2, "/at-", number, *TRAIN), code=code)
        assert "Traceback" not in output and not history.exists(), "nothing half-done is visible"
        seen.add(runs_of(folder)[0].info.run_id)
        assert runs_of(folder)[0].info.status == status
    assert "resuming interrupted training" in run(folder, "python", "-m", *TRAIN)
    assert read_rows(history) == undisturbed
    ended = runs_of(folder)[0]
    assert seen == {ended.info.run_id} and ended.info.status == "FINISHED"
    for name in ("train/loss", "val/loss"):
        history = mlflow.MlflowClient().get_metric_history(ended.info.run_id, name)
        steps = sorted(point.step for point in history)
        assert steps[:6] == list(range(6)) and steps[6:] in ([], [6]), name
