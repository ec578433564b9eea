"""A training that is interrupted after any step goes on with the very losses and weights of one that never stopped."""

from __future__ import annotations

import copy

import keras
import numpy as np
import pytest
from project import ROOT, SMALL
from ruamel.yaml import YAML

from tasks.assembly import open_inputs
from tasks.checkpoints import Progress
from tasks.data.shards import read_shard_index
from tasks.evidence.tracking import Identity, Recorder
from tasks.modelling import models_of
from tasks.params import apply_overrides, check
from tasks.snapshot import snapshot
from tasks.stage import Layout
from tasks.train import feeds_of, prepare, train, work_key


@pytest.fixture(scope="module")
def layout(arrays):
    snapshot(read_shard_index(arrays / "shards"), arrays / "shards", arrays / "snapshot", preprocess=check(SMALL).preprocess)
    root = arrays.parent / "resume"
    root.mkdir(exist_ok=True)
    (root / "data").symlink_to(arrays)
    return Layout(root)


def params_of(*overrides):
    presets = YAML(typ="safe").load((ROOT / "infra" / "presets" / "images.yaml").read_text())["pipelines!"]
    document = {**copy.deepcopy(SMALL), "batch_size": 25, "shard": {"compression": "both"}, "pipelines": presets}
    document["train"] = {**SMALL["train"], "epochs": 3, "checkpoint_every": "1 step"}
    document["augment"] = ["flip", {"brightness": {"delta": 0.1}}]
    apply_overrides(document, overrides)
    return check(document)


class Stop(Exception):
    """What ends a training in its midst."""


class Stopping(Progress):
    """Progress that raises after so many steps, when their checkpoint is on disk."""

    steps_left = 10**9

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Stop


def run(params, layout, folder, *, stop_after=10**9, pipeline="optimized"):
    """Train until the end or so many steps; returns the rows and the weights."""
    keras.utils.clear_session()
    prepare(params.train)
    stored = open_inputs(params, layout)
    feeds, models = feeds_of(params, pipeline, stored, address=""), models_of(params, stored)
    recorder = Recorder(Identity(data_set="arrays", pipeline=pipeline, data_digest="d"))
    progress = Stopping(feeds.train, folder, work_key(params, pipeline, stored), params.train, recorder)
    progress.steps_left = stop_after
    trained = train(models, feeds, progress, settings=params.train)
    rows = [{name: value for name, value in row.items() if name != "examples_per_s"} for row in trained.rows]
    return rows, [np.asarray(weight) for weight in models.network.get_weights()]


@pytest.mark.parametrize("pipeline", ["optimized", "snapshot", "device_resident"])
def test_stopping_after_any_step_changes_nothing(layout, tmp_path, pipeline):
    params = params_of()
    rows, weights = run(params, layout, tmp_path / "undisturbed", pipeline=pipeline)
    steps = 5  # 120 examples by 25
    for stop_after in (1, steps - 1, steps, steps + 2, 3 * steps - 1) if pipeline == "optimized" else (steps + 2,):
        folder = tmp_path / f"stopped-{stop_after}"
        with pytest.raises(Stop):
            run(params, layout, folder, stop_after=stop_after, pipeline=pipeline)
        again, same_weights = run(params, layout, folder, pipeline=pipeline)
        assert again == rows
        assert all(np.array_equal(one, other) for one, other in zip(weights, same_weights, strict=True))


def test_resuming_twice_is_like_not_stopping(layout, tmp_path):
    params = params_of()
    rows, _ = run(params, layout, tmp_path / "undisturbed")
    for _ in range(2):
        with pytest.raises(Stop):
            run(params, layout, tmp_path / "stopped", stop_after=4)
    assert run(params, layout, tmp_path / "stopped")[0] == rows


@pytest.mark.parametrize("pipeline", ["naive", "cache_memory"])
def test_a_stream_goes_on_from_the_last_whole_epoch_as_if_it_had_not_stopped(layout, tmp_path, pipeline):
    rows, _ = run(params_of(), layout, tmp_path / "undisturbed", pipeline=pipeline)
    with pytest.raises(Stop):
        run(params_of(), layout, tmp_path / "stopped", stop_after=7, pipeline=pipeline)
    assert run(params_of(), layout, tmp_path / "stopped", pipeline=pipeline)[0] == rows


CHANGES = ("augment=[flip, {brightness: {delta: 0.2}}]", "finish=[{rescale: {offset: 0.5}}]", "train.seed=1", "batch_size=24")


@pytest.mark.parametrize("change", [*CHANGES, "model.options.width=9", "pipelines.optimized.prefetch=3"])
def test_other_work_never_goes_on_from_a_checkpoint(layout, change):
    stored = open_inputs(params_of(), layout)
    assert work_key(params_of(change), "optimized", stored) != work_key(params_of(), "optimized", stored)


def test_how_often_checkpoints_are_kept_is_no_other_work(layout):
    stored = open_inputs(params_of(), layout)
    assert work_key(params_of("train.checkpoint_every=2 epochs"), "optimized", stored) == work_key(params_of(), "optimized", stored)
