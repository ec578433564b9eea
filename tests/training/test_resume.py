"""A training that is interrupted after any step goes on with the very losses and weights of one
that never stopped.
"""

from __future__ import annotations

import copy

import keras
import numpy as np
import pytest
from project import ROOT, SMALL
from ruamel.yaml import YAML

from tasks.assembly.inputs import open_inputs
from tasks.assembly.model import build_models_for
from tasks.data.shards import read_shard_index
from tasks.layout import Layout
from tasks.params import check
from tasks.params_file import apply_overrides
from tasks.snapshot import snapshot
from tasks.tracking.recorder import Recorder, RunKey
from tasks.train import configure_process, open_split_pipelines, train, training_fingerprint
from tasks.training.checkpoint_store import CheckpointStore
from tasks.training.checkpoints import CheckpointCallback

pytestmark = pytest.mark.integration

STEPS = 5  # of an epoch: 120 examples by 25


@pytest.fixture(scope="module")
def layout(arrays):
    snapshot(
        read_shard_index(arrays / "shards"),
        arrays / "shards",
        arrays / "snapshot",
        preprocess=check(SMALL).preprocess,
    )
    root = arrays.parent / "resume"
    root.mkdir(exist_ok=True)
    (root / "data").symlink_to(arrays)
    return Layout(root)


def params_of(*overrides):
    presets = YAML(typ="safe").load((ROOT / "infra" / "presets" / "images.yaml").read_text())[
        "pipelines!"
    ]
    document = {
        **copy.deepcopy(SMALL),
        "batch_size": 25,
        "shard": {"compression": "both"},
        "pipelines": presets,
    }
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


def run(params, layout, folder, *, stop_after=10**9, pipeline="optimized"):
    """Train until the end or so many steps; returns the rows and the weights."""
    keras.utils.clear_session()
    configure_process(params.train)
    data = open_inputs(params, layout)
    pipelines, models = (
        open_split_pipelines(params, pipeline, data, address=""),
        build_models_for(params, data),
    )
    recorder = Recorder(RunKey(data_set="arrays", pipeline=pipeline, data_digest="d"))
    recorder.sent = False  # no store is needed here
    store = CheckpointStore(folder, training_fingerprint(params, pipeline, data))
    progress = Stopping(pipelines.train, store, params.train, recorder)
    progress.steps_left = stop_after
    trained = train(models, pipelines, progress, settings=params.train)
    rows = [
        {name: value for name, value in row.items() if name != "examples_per_s"}
        for row in trained.rows
    ]
    return rows, [np.asarray(weight) for weight in models.network.get_weights()]


@pytest.fixture(scope="module")
def undisturbed(layout, tmp_path_factory):
    """Returns the rows and weights of a training that never stops, each made once."""
    finished = {}

    def of(*overrides, pipeline="optimized"):
        if (pipeline, *overrides) not in finished:
            finished[pipeline, *overrides] = run(
                params_of(*overrides),
                layout,
                tmp_path_factory.mktemp("undisturbed"),
                pipeline=pipeline,
            )
        return finished[pipeline, *overrides]

    return of


@pytest.mark.integration
def test_tracing_and_validation_are_not_measured(layout, tmp_path):
    run(params_of(), layout, tmp_path)
    assert Stopping.latest.measured_steps == 3 * 5 - 1, "all but the step that is traced first"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("pipeline", "stop_after"),
    [
        *(
            (name, STEPS + 2)
            for name in ("optimized", "snapshot", "device_resident", "shards_global")
        ),
        *(
            pytest.param("optimized", steps, marks=pytest.mark.slow)
            for steps in (1, STEPS - 1, STEPS, 3 * STEPS - 1)
        ),
    ],
)
def test_stopping_after_any_step_changes_nothing(
    layout, undisturbed, tmp_path, pipeline, stop_after
):
    params = params_of()
    rows, weights = undisturbed(pipeline=pipeline)
    with pytest.raises(Stop):
        run(params, layout, tmp_path, stop_after=stop_after, pipeline=pipeline)
    again, same_weights = run(params, layout, tmp_path, pipeline=pipeline)
    assert again == rows
    assert all(np.array_equal(one, other) for one, other in zip(weights, same_weights, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["optimized", "naive", "device_resident"])
def test_several_steps_per_execution_change_nothing(layout, undisturbed, tmp_path, pipeline):
    rows, weights = undisturbed("train.schedule=cosine", pipeline=pipeline)
    for count in (2, 4, 8) if pipeline == "optimized" else (4,):
        params = params_of("train.schedule=cosine", f"train.steps_per_execution={count}")
        same, same_weights = run(params, layout, tmp_path / f"{count}", pipeline=pipeline)
        assert same == rows
        assert all(
            np.array_equal(one, other) for one, other in zip(weights, same_weights, strict=True)
        )


@pytest.mark.slow
@pytest.mark.parametrize(("count", "stop_after"), [(2, 4), (2, 5), (4, 1), (4, 3), (8, 2)])
def test_several_steps_per_execution_resume_in_mid_epoch(
    layout, undisturbed, tmp_path, count, stop_after
):
    params = params_of("train.schedule=cosine", f"train.steps_per_execution={count}")
    rows, _ = undisturbed("train.schedule=cosine")
    with pytest.raises(Stop):
        run(params, layout, tmp_path / "stopped", stop_after=stop_after)
    assert run(params, layout, tmp_path / "stopped")[0] == rows


@pytest.mark.integration
def test_resuming_twice_is_like_not_stopping(layout, undisturbed, tmp_path):
    params = params_of()
    rows, _ = undisturbed()
    for _ in range(2):
        with pytest.raises(Stop):
            run(params, layout, tmp_path / "stopped", stop_after=4)
    assert run(params, layout, tmp_path / "stopped")[0] == rows


@pytest.mark.integration
@pytest.mark.parametrize("pipeline", ["naive", "cache_memory"])
def test_a_stream_goes_on_from_the_last_whole_epoch_as_if_it_had_not_stopped(
    layout, undisturbed, tmp_path, pipeline
):
    rows, _ = undisturbed(pipeline=pipeline)
    with pytest.raises(Stop):
        run(params_of(), layout, tmp_path / "stopped", stop_after=7, pipeline=pipeline)
    assert run(params_of(), layout, tmp_path / "stopped", pipeline=pipeline)[0] == rows


CHANGES = (
    "augment=[flip, {brightness: {delta: 0.2}}]",
    "postprocess=[{rescale: {offset: 0.5}}]",
    "train.seed=1",
    "batch_size=24",
)


@pytest.mark.parametrize(
    "change", [*CHANGES, "model.options.width=9", "pipelines.optimized.prefetch=3"]
)
def test_other_work_never_goes_on_from_a_checkpoint(layout, change):
    data = open_inputs(params_of(), layout)
    assert training_fingerprint(params_of(change), "optimized", data) != training_fingerprint(
        params_of(), "optimized", data
    )


def test_how_often_checkpoints_are_kept_is_no_other_work(layout):
    data = open_inputs(params_of(), layout)
    assert training_fingerprint(
        params_of("train.checkpoint_every=2 epochs"), "optimized", data
    ) == training_fingerprint(params_of(), "optimized", data)


def test_edited_code_of_a_model_is_other_work(layout, tmp_path, monkeypatch):
    text = (
        "import own_blocks\n\n\ndef build(input_shape, outputs):\n    return"
        " own_blocks.block(input_shape, outputs)\n"
    )
    blocks = (
        "import keras\n\n\ndef block(shape, outputs):\n    return"
        " keras.Sequential([keras.Input(shape), keras.layers.Dense(outputs, 'relu')])\n"
    )
    (tmp_path / "own_model.py").write_text(text)
    (tmp_path / "own_blocks.py").write_text(blocks)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    params, data = (
        params_of("model.name=own_model:build", "model.options={}"),
        open_inputs(params_of(), layout),
    )
    before = training_fingerprint(params, "optimized", data)
    (tmp_path / "own_blocks.py").write_text(blocks.replace("relu", "sigmoid"))
    after = training_fingerprint(params, "optimized", data)
    assert [part for part in before if before[part] != after[part]] == ["code"]


def test_another_version_of_keras_is_other_work(layout, monkeypatch):
    data = open_inputs(params_of(), layout)
    before = training_fingerprint(params_of(), "optimized", data)
    monkeypatch.setattr(keras, "__version__", "0.0")
    after = training_fingerprint(params_of(), "optimized", data)
    assert [part for part in before if before[part] != after[part]] == ["versions"]


@pytest.mark.integration
def test_a_checkpoint_that_cannot_be_written_ends_nothing_and_leaves_the_earlier_one(
    layout, undisturbed, small_disk, capsys
):
    rows, weights = undisturbed()
    folder = small_disk / "kept"
    with pytest.raises(Stop):
        run(params_of(), layout, folder, stop_after=7)
    kept = sorted(path.name for path in folder.glob("*/at-*"))
    with (
        pytest.raises(OSError, match="No space"),
        (small_disk / "rest").open("wb", buffering=0) as rest,
    ):
        while True:
            rest.write(bytes(4096))
    with pytest.raises(Stop):
        run(params_of(), layout, folder, stop_after=3)
    assert "no checkpoint could be written (no space is left)" in capsys.readouterr().out
    assert sorted(path.name for path in folder.glob("*/at-*")) == kept
    # Still without space, from the earlier one.
    again, same_weights = run(params_of(), layout, folder)
    assert again == rows
    for weight, same in zip(weights, same_weights, strict=True):
        np.testing.assert_array_equal(weight, same)
