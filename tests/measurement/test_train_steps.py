"""The steps that are timed: the training's own, and references that do the same work whatever the
configuration.
"""

from __future__ import annotations

import keras
import pytest

from tests.support.texts import params_of, prepare_texts
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.config.params import check
from throughline.measurement.train_steps import (
    TrainingLoop,
    batch_plainly,
    make_reference_step,
    time_training,
)
from throughline.training.one_ahead import OneAhead

pytestmark = pytest.mark.slow
SNAPSHOT = {"read": "snapshot", "shuffle": {"kind": "global"}}


class Seen(OneAhead):
    """Keeps the loss of a step."""

    loss = float("nan")

    def follow(self, logs, done=lambda: None):
        self.loss = float(logs["loss"])


MEASURE = {"rounds": 3, "stall_max_seconds": 0.5}


def opened(layout, config, **train):
    """The small images, flipped, in batches of 7: the last of an epoch has 3."""
    data = {"source": "arrays", "path": "unused.npz"}
    ops = {"preprocess": ["decode"], "augment": ["flip"], "batch_size": 7}
    model = {"name": "mlp", "options": {"width": 4}}
    run = {"pipelines": {"p": config}, "model": model, "measure": MEASURE, "train": train}
    return open_with(check({"data": data, **ops, **run}), layout)


def open_with(params, layout):
    data = open_inputs(params, layout)
    pipeline = open_input_pipeline(params, "p", data, split="train", purpose="train")
    keras.utils.set_random_seed(0)
    return build_models_for(params, data), pipeline, params


def test_a_reference_step_is_the_same_work_whether_the_host_or_the_device_finishes(layout):
    """The network on finished floats, without what `postprocess_on: device` adds to a step."""
    losses, dtypes = [], []
    for finish in ("host", "device"):
        models, pipeline, params = opened(layout, {**SNAPSHOT, "postprocess_on": finish})
        seen = Seen()
        make_reference_step(models, pipeline, params.train, seen)()
        losses.append(seen.loss)
        dtypes.append(pipeline.dataset().element_spec[0].dtype.name)
    assert dtypes == ["float32", "uint8"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "the same weights, examples and op"


def test_texts_are_compared_by_batches_that_no_configuration_has_chosen(tmp_path_factory):
    """Packed rows hold several texts each: as many steps a second are more examples a second."""
    texts, batches = prepare_texts(tmp_path_factory.mktemp("texts")), []
    for batch in ({"tokens": 256}, None, {"pack": 64}):
        params = params_of({**SNAPSHOT, "batch": batch}, measure=MEASURE)
        models, pipeline, _ = open_with(params, texts)
        plain = batch_plainly(pipeline)
        batches.append([tokens.numpy().tolist() for tokens, _ in plain.dataset().take(3)])
    assert batches[0] == batches[1] == batches[2]
    loop = TrainingLoop(models, pipeline, params.train)
    state = time_training(loop, models, pipeline, train=params.train, measure=params.measure)
    assert state.examples_ratio == pipeline.examples_per_step / params.batch_size > 1


ON_DEVICE = {**SNAPSHOT, "snapshot_on": "device", "postprocess_on": "device"}


@pytest.mark.parametrize(
    "config", [{"read": "shards"}, SNAPSHOT, ON_DEVICE], ids=["stream", "snapshot", "device"]
)
def test_a_batch_of_the_size_of_the_last_one_is_met_before_anything_is_timed(layout, config):
    models, pipeline, params = opened(layout, config, jit_compile="device" not in str(config))
    loop = TrainingLoop(models, pipeline, params.train)
    batch = next(loop._last_batch())
    if config is ON_DEVICE:
        batch = pipeline.gather_fn()(batch)
    expected = pipeline.examples % 7
    assert expected and batch[1].shape[0] == expected
    loop.ahead = Seen()
    loop.start()
    loop.step()
    assert loop.ahead.loss > 0


def test_what_training_gathers_is_there_for_the_model_alone(layout):
    models, pipeline, params = opened(layout, ON_DEVICE, optimizer="sgd")
    loop = TrainingLoop(models, pipeline, params.train)
    state = time_training(loop, models, pipeline, train=params.train, measure=params.measure)
    assert state.model_step_ms > 0 and state.rounds and 0 < state.held_ms < float("inf")
