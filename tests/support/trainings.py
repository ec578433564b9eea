"""Small trainings, that can be stopped after any step, for the tests."""

import copy

import keras
import numpy as np
import pytest

from tests.support.project import ROOT, SMALL
from throughline.assembly.fingerprint import training_fingerprint
from throughline.assembly.inputs import open_inputs
from throughline.assembly.model import build_models_for, configure_process
from throughline.assembly.training import open_split_pipelines, train
from throughline.config.params import check
from throughline.config.params_file import apply_overrides, read_yaml
from throughline.tracking.recorder import Recorder, RunKey
from throughline.training.checkpoint_store import CheckpointStore
from throughline.training.checkpoints import CheckpointCallback


def params_of(*overrides):
    presets = read_yaml(ROOT / "infra" / "presets" / "images.yaml")["pipelines!"]
    del presets["service"]  # which `deterministic` refuses
    document = {**copy.deepcopy(SMALL), "batch_size": 25, "pipelines": presets}
    document["train"] = {**SMALL["train"], "epochs": 3, "checkpoint_every": "1 step"}
    document["augment"] = ["flip", {"brightness": {"delta": 0.1}}]
    apply_overrides(document, overrides)
    return check(document)


class Stop(Exception):
    """What ends a training in its midst."""


class Stopping(CheckpointCallback):
    """Progress that raises after so many steps, when their checkpoint is on disk, and notes whether
    validation is measured.
    """

    steps_left = 10**9
    latest = None

    def on_test_batch_begin(self, batch, logs=None):
        Stopping.latest = self
        assert not self._monitor.running

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Stop


def train_once(params, layout, folder, *, stop_after=10**9, pipeline="optimized"):
    """Train until the end or so many steps; returns the outcome, and the models."""
    keras.utils.clear_session()
    configure_process(params.train)
    data = open_inputs(params, layout)
    pipelines = open_split_pipelines(params, pipeline, data, address="")
    models = build_models_for(params, data)
    recorder = Recorder(RunKey(dataset="arrays", pipeline=pipeline, data_digest="d"))
    recorder.sent = False  # no store is needed here
    store = CheckpointStore(folder, training_fingerprint(params, pipeline, data))
    progress = Stopping(pipelines.train, store, params.train, recorder)
    progress.steps_left = stop_after
    return train(models, pipelines, progress, settings=params.train), models


def run(params, layout, folder, *, stop_after=10**9, pipeline="optimized"):
    """Train until the end or so many steps; returns the rows, and weights and steps' losses."""
    trained, models = train_once(params, layout, folder, stop_after=stop_after, pipeline=pipeline)
    rows = [
        {name: value for name, value in row.items() if name != "examples_per_s"}
        for row in trained.rows
    ]
    return rows, [*map(np.asarray, [*models.network.get_weights(), trained.losses])]


def run_with_stops(params, layout, folder, *stops, pipeline="optimized"):
    """The same, stopped after each of these numbers of steps to go on from there."""
    for steps in stops:
        with pytest.raises(Stop):
            run(params, layout, folder, stop_after=steps, pipeline=pipeline)
    return run(params, layout, folder, pipeline=pipeline)


def validate(models, params, layout):
    """The loss and the accuracy of the validation split, computed from predictions."""
    data = open_inputs(params, layout)
    inputs = np.asarray(data.memmap("validation", data.shards.schema.input.name))
    labels = np.asarray(data.memmap("validation", "label"))
    logits = models.full_model.predict(inputs, verbose=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)
    return float(loss), float((logits.argmax(axis=-1) == labels).mean())


def assert_same(trained, other):
    (rows, weights), (other_rows, other_weights) = trained, other
    assert rows == other_rows
    assert all(np.array_equal(one, same) for one, same in zip(weights, other_weights, strict=True))
