"""Real pipelines against an emulated accelerator: prefetching is not taken for keeping up."""

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


def document(config, *, input_ms=30.0, model_ms=1.0, model=None, seconds=2.0):
    return {
        "data": {"source": "arrays", "path": "unused.npz"},
        "preprocess": ["decode"],
        "augment": [{"benchmarks.sleeping:Sleep": {"ms": input_ms}}],
        "batch_size": 4,
        "pipelines": {"p": config},
        "model": model or {"name": "emulated", "options": {"step_ms": model_ms}},
        "measure": {"rounds": 3, "stall_max_seconds": seconds},
    }


def measured(layout, config, **more):
    params = check(document(config, **more))
    data = open_inputs(params, layout)
    pipeline = open_input_pipeline(params, "p", data, split="train", purpose="train")
    models = build_models_for(params, data)
    loop = TrainingLoop(models, pipeline, params.train)
    return time_training(loop, models, pipeline, train=params.train, measure=params.measure)


@pytest.mark.parametrize("prefetch", [64, "auto"])
def test_what_lies_prepared_hides_no_stall(layout, prefetch):
    state = measured(layout, {**SNAPSHOT, "prefetch": prefetch}, input_ms=30, model_ms=2)
    assert state.stall_pct > 50, (
        "28 of 30 ms are spent waiting; a busy machine makes the model slower"
    )


@pytest.mark.parametrize(
    "config",
    [
        {**SNAPSHOT, "prefetch": 64},
        {**SNAPSHOT, "prefetch": "auto"},
        {"read": "shards", "vectorize": True, "shuffle": {"kind": "none"}, "prefetch": 8},
    ],
    ids=["snapshot", "autotune", "stream"],
)
def test_an_input_that_keeps_up_shows_no_stall(layout, config):
    state = measured(layout, config, input_ms=5, model_ms=25)
    if not state.is_decided:  # a busy machine: as long as it says that a decision takes
        seconds = state.suggested_seconds
        state = measured(layout, config, input_ms=5, model_ms=25, seconds=seconds)
    assert state.side in ("both", "full")
    assert state.stall_interval_pct[0] < 20, "5 of 25 ms, on a machine that may be busy"


def test_a_reference_step_is_the_same_work_whether_the_host_or_the_device_finishes(layout):
    """The network on finished floats: what `postprocess_on: device` adds to a step is no part of
    it.
    """
    shapes = {}
    for finish in ("host", "device"):
        params = check(
            document(
                {**SNAPSHOT, "postprocess_on": finish},
                model={"name": "mlp", "options": {"width": 4}},
            )
        )
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


class Seen(OneAhead):
    """Keeps the loss of a step."""

    loss = float("nan")

    def follow(self, logs, done=lambda: None):
        self.loss = float(logs["loss"])


MLP = {"name": "mlp", "options": {"width": 4}}
ON_DEVICE = {**SNAPSHOT, "snapshot_on": "device", "postprocess_on": "device"}


def opened(layout, config, **train):
    """A loop on the small images, flipped, with a pipeline whose last batch of an epoch has 3."""
    params = check(
        document(config, model=MLP) | {"augment": ["flip"], "batch_size": 7, "train": train}
    )
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
