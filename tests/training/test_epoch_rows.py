"""The row of an epoch says what the epoch was, as a checkpoint and MLflow hold it, too."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from throughline.shared.errors import UnknownModel
from throughline.shared.files import dump_json, read_json
from throughline.training.epoch_rows import (
    describe_row,
    make_row,
    name_metrics,
    read_logs,
    read_rate,
    read_row,
)

pytestmark = pytest.mark.integration

LOGS = {"accuracy": 0.5, "loss": 1.0, "val_loss": float("nan"), "val_accuracy": 0.25}


def make(logs=LOGS):
    return make_row(2, logs, examples_per_s=10.0, learning_rate=0.1)


def test_training_comes_before_validation_and_the_loss_first():
    assert [*make()] == [
        *("epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy"),
        *("examples_per_s", "learning_rate"),
    ]
    assert [*name_metrics(make())] == ["train/loss", "train/accuracy", "val/loss", "val/accuracy"]
    assert describe_row(make()) == "loss 1.0000, accuracy 0.5000, validation accuracy 0.2500"


@pytest.mark.parametrize("value", [[1, 2], "good"], ids=str)
def test_what_is_no_number_is_named(value):
    said = rf"puts '{re.escape(str(value))}' into the logs of an epoch as 'mine'"
    with pytest.raises(UnknownModel, match=said):
        make({**LOGS, "mine": value})


def test_a_row_is_the_same_after_a_checkpoint_and_its_logs_are_those_it_was_made_of(tmp_path):
    np.testing.assert_equal(read_logs(make()), LOGS)
    assert make({**LOGS, "learning_rate": 9.0})["learning_rate"] == 0.1
    (tmp_path / "row.json").write_text(dump_json(make()))
    row = read_row(read_json(tmp_path / "row.json"))
    np.testing.assert_equal(row, make())
    assert isinstance(row["epoch"], int)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rate_is_that_of_a_step_as_its_schedule_computes_it(wrapped):
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, end_learning_rate=0.0)
    inner = keras.optimizers.SGD(schedule)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if wrapped else inner
    optimizer.build([keras.Variable(np.ones(2))])
    inner.iterations.assign(5)
    assert read_rate(optimizer, ahead=-1) == pytest.approx(0.6), "of the last step"
    assert read_rate(optimizer, ahead=2) == pytest.approx(0.3)


def test_where_gradients_are_added_up_a_rate_is_still_that_of_the_step():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, end_learning_rate=0.0)
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=4)
    optimizer.build([keras.Variable(np.ones(2))])
    optimizer._iterations.assign(8)
    assert read_rate(optimizer, ahead=0) == pytest.approx(float(optimizer.learning_rate))
    assert read_rate(optimizer, ahead=-1) == pytest.approx(0.3)


def test_a_rate_that_is_a_variable_is_that_of_now_and_no_optimizer_has_none():
    optimizer = keras.optimizers.SGD(0.25)
    assert read_rate(optimizer, ahead=-1) == read_rate(optimizer, ahead=3) == 0.25
    assert np.isnan(read_rate(None, ahead=0))
