"""One real epoch of the plan that trains: every example of the split, each as often as it should
come.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support.prepared import link_data, take_snapshot
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.config.params import check
from throughline.measurement import draws
from throughline.measurement.draws import check_epoch
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.shared.errors import UnequalConfigurations

pytestmark = pytest.mark.integration

GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}
BUFFER = {"kind": "buffer", "size": 32}
STREAM = {"read": "shards", "shuffle": BUFFER}
UNIFORM = {
    "naive": {"read": "shards", "shuffle": {"kind": "none"}},
    "unordered": {
        **{**STREAM, "deterministic": False, "map": {"parallel": 4}},
        "interleave": {"cycle_length": 3, "parallel": "auto"},
    },
    "vectorized": {**STREAM, "vectorize": True},
    "cached_on_disk": {**STREAM, "cache": {"where": "disk"}},
    "arrays": {"read": "arrays", "shuffle": BUFFER},
    "window": {"read": "snapshot", "shuffle": {"kind": "window", "size": 16}},
    "device": {**GLOBAL, "snapshot_on": "device"},
}
LANE = ("naive", "unordered", "window")  # a stream, one of several threads, and a snapshot


def params_of(config, preprocess=()):
    data = {"source": "arrays", "path": "unused.npz"}
    steps = {"preprocess": ["decode", *preprocess], "augment": ["flip"], "batch_size": 32}
    return check({"data": data, **steps, "pipelines": {"p": config}})


def pipeline_of(layout, config, *preprocess):
    params = params_of(config, preprocess)
    data = open_inputs(params, layout)
    return open_input_pipeline(params, "p", data, split="train", purpose="train")


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name in LANE else pytest.mark.slow)
        for name, config in UNIFORM.items()
    ],
)
def test_an_epoch_draws_every_example_once(layout, config):
    pipeline = pipeline_of(layout, config)
    found, rows = check_epoch(pipeline)
    assert found.examples == found.distinct == pipeline.examples and found.most_often == 1
    assert sorted(rows) == list(range(pipeline.examples))


@pytest.mark.slow
def test_keys_have_no_size_in_a_cache_after_several_ops(layout, tmp_path):
    resize = {"resize": {"height": 6, "width": 6}}
    resized = link_data(layout.root / "data", tmp_path, snapshot=False)
    take_snapshot(params_of(STREAM, [resize]), resized)
    found, _ = check_epoch(pipeline_of(resized, UNIFORM["cached_on_disk"], resize))
    assert found.examples == found.distinct


def test_the_rows_are_those_that_training_gets_in_its_order(layout):
    pipeline = pipeline_of(layout, STREAM)
    keyed = dataclasses.replace(pipeline, with_keys=True)
    delivered = np.concatenate([batch["key"] for batch in keyed.dataset().as_numpy_iterator()])
    _, rows = check_epoch(pipeline)
    np.testing.assert_array_equal(np.asarray(pipeline.data.memmap("train", "key"))[rows], delivered)


@pytest.mark.parametrize("read", [GLOBAL, STREAM], ids=["snapshot", "stream"])
def test_classes_come_as_often_as_their_weights_say(layout, read):
    pipeline = pipeline_of(layout, {**read, "sampling": {"0": 3.0}})
    _, rows = check_epoch(pipeline)
    labels = np.bincount(np.asarray(pipeline.data.memmap("train", "label"))[rows], minlength=4)
    assert labels[0] > 1.5 * labels[1:].mean()


@pytest.mark.parametrize(
    ("rows_at", "more", "said"),
    [
        (lambda _, positions, epochs: positions // 2, {}, "never come and .* come more than once"),
        (lambda _, positions, epochs: positions, {"sampling": {"0": 30.0}}, "class 0 is drawn"),
    ],
    ids=["forgets examples", "ignores the weights"],
)
def test_a_sampler_that_draws_otherwise_is_caught(layout, monkeypatch, rows_at, more, said):
    monkeypatch.setattr(EpochOrder, "rows_at", rows_at)
    with pytest.raises(UnequalConfigurations, match=said):
        check_epoch(pipeline_of(layout, GLOBAL | more))


def test_examples_of_another_split_are_caught(layout, monkeypatch):
    pipeline = pipeline_of(layout, STREAM)
    own = np.asarray(pipeline.data.memmap("train", "key"))
    monkeypatch.setattr(type(pipeline.data), "memmap", lambda self, split, name: own[5:])
    with pytest.raises(UnequalConfigurations, match="are not of the train split"):
        draws._streamed_rows(pipeline)
