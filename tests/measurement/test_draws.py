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
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import UnequalConfigurations

pytestmark = pytest.mark.integration

GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}
BUFFER = {"kind": "buffer", "size": 32}
STREAM = {"read": "shards", "shuffle": BUFFER}
UNIFORM = {
    "naive": {"read": "shards", "shuffle": {"kind": "none"}},
    "unordered": {
        "read": "shards",
        "deterministic": False,
        "interleave": {"cycle_length": 3, "parallel": "auto"},
        "map": {"parallel": 4},
        "shuffle": BUFFER,
    },
    "vectorized": {"read": "shards", "vectorize": True, "shuffle": BUFFER},
    "cached_on_disk": {"read": "shards", "cache": {"where": "disk"}, "shuffle": BUFFER},
    "arrays": {"read": "arrays", "shuffle": BUFFER},
    "window": {"read": "snapshot", "shuffle": {"kind": "window", "size": 16}},
    "device": {**GLOBAL, "snapshot_on": "device"},
}


LANE = ("naive", "unordered", "window")  # a stream, one of several threads, and a snapshot


def params_of(config, preprocess=("decode",)):
    data = {"source": "arrays", "path": "unused.npz"}
    steps = {"preprocess": [*preprocess], "augment": ["flip"], "batch_size": 32}
    return check({"data": data, **steps, "pipelines": {"p": config}})


def pipeline_of(layout, config):
    return open_with(params_of(config), layout)


def open_with(params, layout):
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
    params = params_of(UNIFORM["cached_on_disk"], ["decode", resize])
    resized = link_data(layout.root / "data", tmp_path, snapshot=False)
    take_snapshot(params, resized)
    found, _ = check_epoch(open_with(params, resized))
    assert found.examples == found.distinct


def test_a_cut_last_batch_leaves_examples_out_and_no_more(layout):
    pipeline = pipeline_of(layout, GLOBAL)
    cut = dataclasses.replace(pipeline, worker=TrainingWorker(batch_multiple=16))
    assert 0 < cut.examples < pipeline.examples
    found, _ = check_epoch(cut)
    assert (found.examples, found.distinct) == (cut.examples, cut.examples)


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


def test_a_sampler_that_forgets_examples_is_caught(layout, monkeypatch):
    monkeypatch.setattr(EpochOrder, "rows_at", lambda self, positions, epochs: positions // 2)
    with pytest.raises(UnequalConfigurations, match=r"never come and .* come more than once"):
        check_epoch(pipeline_of(layout, GLOBAL))


def test_a_sampler_that_ignores_the_weights_is_caught(layout, monkeypatch):
    monkeypatch.setattr(EpochOrder, "rows_at", lambda self, positions, epochs: positions)
    with pytest.raises(UnequalConfigurations, match="class 0 is drawn"):
        check_epoch(pipeline_of(layout, {**GLOBAL, "sampling": {"0": 30.0}}))


def test_examples_of_another_split_are_caught(layout, monkeypatch):
    pipeline = pipeline_of(layout, STREAM)
    own = np.asarray(pipeline.data.memmap("train", "key"))
    monkeypatch.setattr(type(pipeline.data), "memmap", lambda self, split, name: own[5:])
    with pytest.raises(UnequalConfigurations, match="are not of the train split"):
        draws._streamed_rows(pipeline)
