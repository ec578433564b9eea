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
MLP = {"name": "mlp", "options": {"width": 4}}


class Seen(OneAhead):
    """Keeps the loss of a step."""

    loss = float("nan")

    def follow(self, logs, done=lambda: None):
        self.loss = float(logs["loss"])


def document(config, model, **more):
    return {
        "data": {"source": "arrays", "path": "unused.npz"},
        "preprocess": ["decode"],
        "augment": ["flip"],
        "batch_size": 7,
        "pipelines": {"p": config},
        "model": model,
        "measure": {"rounds": 3, "stall_max_seconds": 0.5},
        **more,
    }


def test_a_reference_step_is_the_same_work_whether_the_host_or_the_device_finishes(layout):
    """The network on finished floats: what `postprocess_on: device` adds to a step is no part of
    it.
    """
    shapes = {}
    for finish in ("host", "device"):
        params = check(document({**SNAPSHOT, "postprocess_on": finish}, MLP))
        data = open_inputs(params, layout)
        pipeline = open_input_pipeline(params, "p", data, split="train", purpose="train")
        keras.utils.set_random_seed(0)
        models = build_models_for(params, data)
        seen = Seen()
        make_reference_step(models, pipeline, params.train, seen)()
        shapes[finish] = (seen.loss, pipeline.dataset().element_spec[0].dtype)
    assert [str(dtype)[9:14] for _, dtype in shapes.values()] == ["float", "uint8"]
    assert shapes["host"][0] == pytest.approx(shapes["device"][0], rel=1e-4), (
        "the same weights and examples, finished by the same op"
    )


def test_texts_are_compared_by_batches_that_no_configuration_has_chosen(tmp_path_factory):
    """Packed rows hold several texts each: as many steps a second are more examples a second."""
    texts = prepare_texts(tmp_path_factory.mktemp("texts"))
    measure, batches = {"rounds": 3, "stall_max_seconds": 0.5}, []
    for batch in ({"tokens": 256}, None, {"pack": 64}):
        params = params_of({**SNAPSHOT, "batch": batch}, measure=measure)
        data = open_inputs(params, texts)
        pipeline = open_input_pipeline(params, "p", data, split="train", purpose="train")
        plain = batch_plainly(pipeline)
        batches.append([tokens.numpy().tolist() for tokens, _ in plain.dataset().take(3)])
    assert batches[0] == batches[1] == batches[2]
    models = build_models_for(params, data)
    loop = TrainingLoop(models, pipeline, params.train)
    state = time_training(loop, models, pipeline, train=params.train, measure=params.measure)
    assert state.examples_ratio == pipeline.examples_per_step / params.batch_size > 1


ON_DEVICE = {**SNAPSHOT, "snapshot_on": "device", "postprocess_on": "device"}


def opened(layout, config, **train):
    """A loop on the small images, flipped, with a pipeline whose last batch of an epoch has 3."""
    params = check(document(config, MLP, train=train))
    data = open_inputs(params, layout)
    pipeline = open_input_pipeline(params, "p", data, split="train", purpose="train")
    models = build_models_for(params, data)
    return TrainingLoop(models, pipeline, params.train), models, pipeline, params


@pytest.mark.parametrize(
    "config", [{"read": "shards"}, SNAPSHOT, ON_DEVICE], ids=["stream", "snapshot", "device"]
)
def test_a_batch_of_the_size_of_the_last_one_is_met_before_anything_is_timed(layout, config):
    loop, _, pipeline, _ = opened(layout, config, jit_compile="device" not in str(config))
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
    loop, models, pipeline, params = opened(layout, ON_DEVICE, optimizer="sgd")
    state = time_training(loop, models, pipeline, train=params.train, measure=params.measure)
    assert state.model_step_ms > 0 and state.rounds
    assert 0 < state.held_ms < float("inf")
