"""What a stage writes the others read, value by value; what is of another form is refused."""

import json
import math
from dataclasses import asdict, fields, replace

import pytest

from tests.support.made_up import KINDS, folder_of, made_up, write_made_up
from throughline.results.profiling import Breakdown
from throughline.results.race import COMPARED, Raced, compared_metrics, race_metrics
from throughline.results.train import (
    HISTORY,
    HeldOut,
    TrainResult,
    beats_constant,
    describe_weakness,
    read_history,
    train_metrics,
    write_history,
)
from throughline.shared.errors import DamagedFile, MissingInput


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.FILE)
def test_what_is_written_is_read_and_without_one_of_its_values_it_is_named(kind, tmp_path):
    path, folder = write_made_up(kind, tmp_path), folder_of(kind, tmp_path)
    assert kind.read(folder) == made_up(kind)
    document, stage = json.loads(path.read_text()), kind.STAGE.format(name="fast")
    needed = [one.name for one in fields(kind) if one.default is one.default_factory]
    assert needed
    for name in needed:
        path.write_text(json.dumps({key: document[key] for key in document if key != name}))
        with pytest.raises(MissingInput) as caught:
            kind.read(folder)
        text = str(caught.value)
        assert str(path) in text and f"({name}: " in text and f"`dvc repro {stage}`" in text


def test_values_that_are_no_numbers_survive_also_as_an_earlier_program_wrote_them(tmp_path):
    value = replace(
        made_up(TrainResult),
        last_epoch={"val_loss": float("inf"), "val_mae": float("-inf"), "loss": float("nan")},
        cpu_seconds_per_1k_examples=float("inf"),
    )
    value.write(tmp_path)
    assert repr(TrainResult.read(tmp_path)) == repr(value)
    assert "NaN," not in TrainResult.path(tmp_path).read_text(), "which JSON does not have"
    TrainResult.path(tmp_path).write_text(json.dumps(asdict(value)))
    assert repr(TrainResult.read(tmp_path)) == repr(value)


def test_the_history_of_a_training_is_read_as_numbers_and_refused_without_any(tmp_path):
    epochs = [{"epoch": 0.0, "val_loss": 1.25}, {"epoch": 1.0, "val_loss": 0.5, "train_auc": 0.5}]
    write_history(tmp_path, epochs)
    assert read_history(tmp_path) == epochs, "also metrics that a callback logs every few epochs"
    for content in ("epoch,val_loss\n", "epoch,val_loss\n0,high\n", "epoch,val_loss\n0\n"):
        (tmp_path / HISTORY).write_text(content)
        said = rf"history\.csv.*train@{tmp_path.name}"
        with pytest.raises((DamagedFile, MissingInput), match=said):
            read_history(tmp_path)


def test_the_compared_metrics_are_a_dozen_named_as_in_mlflow_without_what_was_not_measured():
    breakdown, raced = made_up(Breakdown), made_up(Raced)
    trained = replace(
        made_up(TrainResult),
        metric="accuracy",
        last_epoch={"val_accuracy": 0.75},
        test={"accuracy": 0.5, "loss": 2.0},
    )
    raced = replace(raced, stall_pct=0.0)
    logged = train_metrics(trained) | race_metrics(raced, breakdown)
    compared = compared_metrics(trained, raced, breakdown)
    assert {name: logged[name] for name in COMPARED} == {name: compared[name] for name in COMPARED}
    assert set(compared) == {*COMPARED, "verdict", "val/accuracy", "test/accuracy"}
    assert (compared["val/accuracy"], compared["test/accuracy"]) == (0.75, 0.5)
    assert compared["input/stall_pct"] == 0
    usage = replace(trained.usage, gpu_utilization_pct_mean=None)
    left = compared_metrics(replace(trained, usage=usage, test={}), raced, breakdown)
    assert set(compared) - set(left) == {"gpu/utilization_pct_mean", "test/accuracy"}


@pytest.mark.parametrize("share", [0.1, 1 / 3, 0.4, 0.9])
def test_an_accuracy_is_no_chance_by_the_exact_binomial_test(share):
    for examples in (2, 3, 15, 40):
        tail, stderr = 0.0, math.sqrt(share * (1 - share) / examples)
        for right in reversed(range(examples + 1)):
            tail += math.comb(examples, right) * share**right * (1 - share) ** (examples - right)
            found = beats_constant("accuracy", right / examples, constant=share, stderr=stderr)
            assert found == (right > share * examples and tail < 0.05), (right, examples)


def test_few_right_answers_of_few_examples_are_called_what_they_are():
    held_out = HeldOut(split="test", examples=15, constant_metric=0.4, constant_stderr=0.1265)
    result = replace(made_up(TrainResult), metric="accuracy", held_out=held_out)
    assert describe_weakness(replace(result, test={"accuracy": 10 / 15})) is None
    said = describe_weakness(replace(result, test={"accuracy": 8 / 15})) or ""
    assert "is not better, beyond chance" in said
