"""A training that is interrupted after any step goes on as one that never stopped, bit for bit."""

import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.texts import params_of as text_params
from tests.support.texts import prepare_texts
from tests.support.trainings import (
    Stop,
    Stopping,
    assert_same,
    params_of,
    run,
    run_with_stops,
    train_once,
    validate,
)
from throughline.assembly.fingerprint import training_fingerprint
from throughline.assembly.inputs import open_inputs
from throughline.data.columns.index import INDEX
from throughline.shared.errors import UnknownModel

pytestmark = pytest.mark.integration

STEPS = 5  # of an epoch: 120 examples by 25
USUAL = ("train.epochs=2", "train.schedule=cosine")


@pytest.fixture(scope="session")
def undisturbed(layout, tmp_path_factory):
    """A function from a configuration to the rows and weights of a training that never stops."""

    @cache
    def train_undisturbed(pipeline):
        folder = tmp_path_factory.mktemp("undisturbed")
        return run(params_of(*USUAL), layout, folder, pipeline=pipeline)

    return train_undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "count", "stop_after"),
    [
        *(("snapshot", 1, 7), ("optimized", 1, 7), ("snapshot", 1, 4), ("device_resident", 1, 7)),
        ("cache_memory", 1, 7),  # a stream, which goes on from the last whole epoch
        *(("optimized", 2, 4), ("device_resident", 4, 1)),  # the last one of an epoch is one step
    ],
)
def test_stopping_after_any_step_changes_nothing(
    layout, undisturbed, tmp_path, pipeline, count, stop_after
):
    """Stopped after so many executions of `count` steps."""
    params = params_of(*USUAL, f"train.steps_per_execution={count}")
    resumed = run_with_stops(params, layout, tmp_path, stop_after, pipeline=pipeline)
    assert_same(resumed, undisturbed(pipeline))


@pytest.mark.slow
def test_packed_rows_of_texts_resume_in_mid_epoch(tmp_path):
    layout = prepare_texts(tmp_path / "texts")
    packed = {"read": "snapshot", "shuffle": {"kind": "global"}, "batch": {"pack": 64}}
    train = {"epochs": 2, "checkpoint_every": "1 step", "deterministic": True}
    params = text_params(packed, train={**train, "schedule": "constant"})
    undisturbed = run(params, layout, tmp_path / "undisturbed", pipeline="p")
    assert_same(run_with_stops(params, layout, tmp_path / "stopped", 3, pipeline="p"), undisturbed)
    rows, _ = undisturbed
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


ELSEWHERE = {}  # what a callback sets that is none of its own attributes


def own(name):
    """The name in params.yaml of something in this file."""
    return f"{__name__}:{name}"


def halve(*variables):
    for variable in variables:
        variable.assign(variable * 0.5)


class Slower(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen % 4 == 0:
            halve(self.model.optimizer.learning_rate)


class Crashing(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        if not ELSEWHERE.get("calm"):
            raise RuntimeError("a crash")
        ELSEWHERE["logs"] = {**logs}


class Cutting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = int(self.model.optimizer.iterations) == 7


class Drawing(keras.layers.Layer):
    def call(self, value, training=None):
        return tf.nn.dropout(value, 0.5) if training else value


def draw(input_shape, outputs):
    flat = [keras.Input(input_shape), keras.layers.Flatten(), Drawing()]
    return keras.Sequential([*flat, keras.layers.Dense(outputs)])


class Halving(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate = 0.5
        halve(*self.model.trainable_variables)

    def on_epoch_begin(self, epoch, logs=None):
        halve(self.model.optimizer.learning_rate, *self.model.trainable_variables)
        ELSEWHERE["epoch"] = epoch

    def on_train_batch_end(self, batch, logs=None):
        ELSEWHERE["epoch"]

    def on_epoch_end(self, epoch, logs=None):
        logs["mine"] = epoch


class Mapped(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred)

    def result(self):
        return {"low": super().result(), "high": super().result() + 1}


class Ending(keras.callbacks.Callback):
    """Ends the training before its first epoch."""

    last = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.model.stop_training = epoch == self.last


class EndingLater(Ending):
    last = 1


class Locking(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.lock = threading.Lock()


@pytest.mark.slow
def test_what_callbacks_do_as_an_epoch_begins_is_done_once(layout, tmp_path):
    own_ones = f"train.callbacks=[{own('Halving')}]", f"train.metrics=[auto, {own('Mapped')}]"
    params = params_of("train.epochs=2", *own_ones)
    rows, weights = run(params, layout, tmp_path / "undisturbed")
    told = [(row["learning_rate"], row["train_mine"]) for row in rows]
    assert told == [(0.25, 0.0), (0.125, 1.0)]
    for row in rows:
        for split in ("train", "val"):  # a metric that gives several numbers
            assert row[f"{split}_high"] == pytest.approx(row[f"{split}_low"] + 1)
    with pytest.raises(Stop):
        run(params, layout, tmp_path / "stopped", stop_after=STEPS + 2)
    ELSEWHERE.clear()
    assert_same(run(params, layout, tmp_path / "stopped"), (rows, weights))


@pytest.mark.slow
def test_a_callback_ends_a_training_before_an_epoch_or_within_one(layout, undisturbed, tmp_path):
    def ended(name):
        params = params_of(*USUAL, f"train.callbacks=[{own(name)}]")
        return train_once(params, layout, tmp_path / name, pipeline="snapshot")[0]

    (row,), (first, _) = ended("EndingLater").rows, undisturbed("snapshot")[0]
    assert {**row, "examples_per_s": None} == {**first, "examples_per_s": None}
    cut = ended("Cutting")
    assert (len(cut.rows), cut.steps, cut.ended_by) == (2, 7, "train.callbacks")
    with pytest.raises(UnknownModel, match=r"train\.callbacks: .* before its first epoch"):
        ended("Ending")


EARLY = "{monitor: val_loss, patience: 1, min_delta: 9, restore_best: true}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stopping", "epochs", "by"), [("null", 4, ""), (EARLY, 2, "train.early_stopping")]
)
def test_a_finished_training_trains_no_step_again(layout, tmp_path, capsys, stopping, epochs, by):
    more = "train.epochs=4", "train.checkpoint_every=3 epochs", f"train.early_stopping={stopping}"
    params = params_of(*USUAL, *more, f"train.callbacks=[{own('Crashing')}]")
    ELSEWHERE.clear()
    with pytest.raises(RuntimeError, match="a crash"):
        run(params, layout, tmp_path / "crashed")
    ELSEWHERE["calm"] = True

    def finish(folder):
        trained, models = train_once(params, layout, tmp_path / folder)
        losses = [row["val_loss"] for row in trained.rows]
        last = trained.result.last_epoch["val_loss"]
        assert validate(models, params, layout)[0] == pytest.approx(last, rel=1e-4)
        assert (last == losses[0]) is bool(by), "the best epoch's weights are kept"
        told = (trained.steps, trained.ended_by), losses, last, trained.result.test
        return trained.result, told, ELSEWHERE["logs"], models.network.get_weights()

    _, told, logs, weights = finish("undisturbed")
    assert told[0] == (STEPS * epochs, by)
    capsys.readouterr()
    resumed, same, same_logs, same_weights = finish("crashed")
    assert "has no step left" in capsys.readouterr().out
    assert resumed.step is None and resumed.throughput
    assert same == told and same_logs == pytest.approx(logs)
    assert all(map(np.array_equal, same_weights, weights))


@pytest.mark.slow
def test_tracing_and_validation_are_not_measured(layout, tmp_path):
    run(params_of(*USUAL), layout, tmp_path)
    assert Stopping.latest.measured_steps == 2 * STEPS - 1, "all but the one that is traced"


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_rate_of_an_epoch_is_that_of_its_last_step(layout, tmp_path, count):
    linear = ("train.schedule=linear", f"train.steps_per_execution={count}")
    rows, _ = run(params_of("train.epochs=2", "train.learning_rate=1.0", *linear), layout, tmp_path)
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.6, 0.1])


@pytest.mark.slow
def test_a_layer_that_draws_by_a_state_of_tensorflow_keeps_no_checkpoints(layout, tmp_path, capsys):
    params = params_of("train.epochs=1", f"model={{name: '{own('draw')}'}}")
    run(params, layout, tmp_path / "kept")
    said = capsys.readouterr().out
    assert said.count("no checkpoints are kept, so an interrupted training begins again") == 1
    assert "a state that no checkpoint holds (RandomUniform)" in said
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_callbacks_and_early_stopping_go_on_as_if_they_had_not_stopped(layout, tmp_path):
    # Better by more than ever happens: it ends after the second epoch that is not.
    stopping = "train.early_stopping={monitor: val_loss, patience: 2, min_delta: 9}"
    params = params_of("train.epochs=6", f"train.callbacks=[{own('Slower')}]", stopping)
    undisturbed = run(params, layout, tmp_path / "undisturbed")
    rows, _ = undisturbed
    assert len(rows) == 3 < params.train.epochs, "ended early"
    rates = [row["learning_rate"] for row in rows]
    assert rates == pytest.approx([0.005, 0.0025, 0.00125]), "halved after each fourth step"
    # In the first epoch, and in the third, when one was no better than the best.
    assert_same(run_with_stops(params, layout, tmp_path / "stopped", 2, 10), undisturbed)


def changed_parts(before, after):
    return [part for part in before if before[part] != after[part]]


@pytest.mark.slow
def test_other_work_never_goes_on_from_a_checkpoint(layout, tmp_path, monkeypatch):
    data = open_inputs(params_of(), layout)

    def changed(*overrides, data=data, **needs):
        found = training_fingerprint(params_of(*overrides), "optimized", data, needs=needs)
        return changed_parts(before, found)

    before = training_fingerprint(params_of(), "optimized", data)
    assert changed("train.checkpoint_every=2 epochs") == [], "the same work"
    for change in (
        "augment=[flip, {brightness: {delta: 0.2}}]",
        "train.seed=1",
        "model.options.width=9",
        "pipelines.optimized.prefetch=3",
    ):
        assert changed(change), change
    assert changed(files={"weights.npy": "d"}) == ["files"], "that own code needs"
    assert changed(libraries={"scipy": "1"}) == ["versions"]
    index = (data.snapshot_folder / INDEX).read_text()
    (tmp_path / INDEX).write_text(f"{index} ")
    assert changed(data=replace(data, snapshot_folder=tmp_path)) == ["data"]
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0" if name == "keras" else real(name))
    assert changed() == ["versions"]


def test_edited_code_of_a_model_is_other_work(layout, tmp_path, monkeypatch):
    block = "import keras\nfrom keras.layers import Dense\n\n\ndef block(shape, outputs):\n"
    block += "    return keras.Sequential([keras.Input(shape), Dense(outputs, 'relu')])\n"
    (tmp_path / "own_model.py").write_text("from own_blocks import block as build\n")
    (tmp_path / "own_blocks.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    params = params_of("model.name=own_model:build", "model.options={}")
    data = open_inputs(params_of(), layout)
    before = training_fingerprint(params, "optimized", data)
    (tmp_path / "own_blocks.py").write_text(block.replace("relu", "sigmoid"))
    assert changed_parts(before, training_fingerprint(params, "optimized", data)) == ["code"]


@pytest.mark.slow
def test_a_callback_that_holds_what_cannot_be_stored_ends_no_training(layout, tmp_path, capsys):
    params = params_of("train.epochs=2", f"train.callbacks=[{own('Locking')}]")
    rows, _ = run(params, layout, tmp_path / "kept")
    assert len(rows) == 2
    said = capsys.readouterr().out
    assert "no checkpoint could be written (TypeError: Locking.lock: cannot pickle" in said


@pytest.mark.slow
def test_an_unwritable_checkpoint_leaves_the_earlier_one(layout, undisturbed, small_disk, capsys):
    params, folder = params_of(*USUAL), small_disk / "kept"

    def list_kept():
        return sorted(path.name for path in folder.glob("*/at-*"))

    with pytest.raises(Stop):
        run(params, layout, folder, stop_after=STEPS + 1)
    kept = list_kept()
    with suppress(OSError), (small_disk / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    with pytest.raises(Stop):
        run(params, layout, folder, stop_after=2)
    assert "no checkpoint could be written (no space is left)" in capsys.readouterr().out
    assert list_kept() == kept
    # Still without space, from the earlier one.
    assert_same(run(params, layout, folder), undisturbed("optimized"))
