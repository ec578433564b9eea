"""What a stage writes the others read, value by value; what is of another form is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from made_up import KINDS, folder_of, made_up, write_made_up

from throughline.results.build import BuildResult
from throughline.results.profiling import (
    COMPARED,
    ProfileResult,
    compared_metrics,
    profile_metrics,
)
from throughline.results.snapshot import SnapshotCost
from throughline.results.train import (
    HISTORY,
    TrainResult,
    read_history,
    train_metrics,
    write_history,
)
from throughline.shared.errors import DamagedFile, MissingInput


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.FILE)
def test_what_is_written_is_read_value_by_value(kind, tmp_path):
    write_made_up(kind, tmp_path)
    assert kind.read(folder_of(kind, tmp_path)) == made_up(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.FILE)
def test_a_file_without_one_of_its_values_is_named_with_what_makes_it_again(kind, tmp_path):
    path = write_made_up(kind, tmp_path)
    document = json.loads(path.read_text())
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    assert needed
    for name in needed:
        path.write_text(json.dumps({key: document[key] for key in document if key != name}))
        with pytest.raises(MissingInput) as caught:
            kind.read(folder_of(kind, tmp_path))
        told = str(caught.value)
        stage = kind.STAGE.format(name="fast")
        assert str(path) in told and f"({name}: " in told and f"`dvc repro {stage}`" in told


def test_values_that_are_no_numbers_survive(tmp_path):
    value = dataclasses.replace(made_up(TrainResult), last_epoch={"val_loss": float("inf")})
    value.write(tmp_path)
    assert TrainResult.read(tmp_path) == value


def test_the_cost_of_a_snapshot_is_next_to_its_folder_with_units_in_its_names(tmp_path):
    SnapshotCost(seconds=2.0, examples_per_s=100.0, bytes_per_example=120.0).write(tmp_path)
    assert json.loads((tmp_path / "snapshot.json").read_text()) == {
        "seconds": 2.0,
        "examples_per_s": 100.0,
        "bytes_per_example": 120.0,
    }


def test_reading_results_imports_no_tensorflow():
    imported = "results.comparison, throughline.results.profiling, throughline.reporting.table"
    code = f"import sys, throughline.{imported}\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print({'tensorflow', 'mlflow', 'pandas'} & {*sys.modules})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_the_history_of_a_training_is_read_as_numbers_and_refused_without_any(tmp_path):
    epochs = [{"epoch": 0.0, "val_loss": 1.25}, {"epoch": 1.0, "val_loss": 0.5}]
    write_history(tmp_path, epochs)
    assert read_history(tmp_path) == epochs
    for content in ("epoch,val_loss\n", "epoch,val_loss\n0,high\n", "epoch,val_loss\n0\n"):
        (tmp_path / HISTORY).write_text(content)
        with pytest.raises(
            (DamagedFile, MissingInput), match=rf"history\.csv.*train@{tmp_path.name}"
        ):
            read_history(tmp_path)


def test_the_compared_metrics_are_a_dozen_named_as_in_mlflow_without_what_was_not_measured():
    built, profiled = made_up(BuildResult), made_up(ProfileResult)
    trained = dataclasses.replace(
        made_up(TrainResult),
        metric="accuracy",
        last_epoch={"val_accuracy": 0.75},
        test={"accuracy": 0.5, "loss": 2.0},
    )
    profiled = dataclasses.replace(profiled, stall_pct=0.0)
    logged = train_metrics(built, trained) | profile_metrics(profiled)
    compared = compared_metrics(built, trained, profiled)
    assert {name: logged[name] for name in COMPARED} == {name: compared[name] for name in COMPARED}
    assert set(compared) == {*COMPARED, "verdict", "val/accuracy", "test/accuracy"}
    assert (compared["val/accuracy"], compared["test/accuracy"]) == (0.75, 0.5)
    assert compared["input/stall_pct"] == 0
    without_gpu = dataclasses.replace(
        trained, usage=dataclasses.replace(trained.usage, gpu_utilization_pct_mean=None), test={}
    )
    left = compared_metrics(built, without_gpu, profiled)
    assert set(compared) - set(left) == {"gpu/utilization_pct_mean", "test/accuracy"}
