"""Proofs that examples and draws are equal, and what an evaluation finds."""

import dataclasses
import shutil

import numpy as np
import pytest

from tests.support.prepared import link_data
from tests.support.project import SMALL, run_stages, write_params
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.config.params import check
from throughline.data.columns.index import column_path
from throughline.measurement import draws
from throughline.measurement.draws import check_epoch
from throughline.measurement.equality import digest_example
from throughline.measurement.evaluation import _describe_row, count_confusions, order_by_loss
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.plan.schema import TableColumns
from throughline.shared.errors import UnequalConfigurations

pytestmark = pytest.mark.integration

KEY, LABEL, VALUE = np.int64(3), np.int64(1), np.arange(24, dtype=np.uint8).reshape(6, 4, 1)


@pytest.mark.parametrize(
    ("key", "label", "value"),
    [
        (KEY, LABEL, VALUE.reshape(4, 6, 1)),
        (KEY, LABEL, VALUE.astype(np.int8)),
        (KEY, LABEL, VALUE[::-1]),
        (KEY, np.uint64(1), VALUE),
        (KEY, np.int64(2), VALUE),
        (np.int64(4), LABEL, VALUE),
    ],
)
def test_examples_that_differ_in_anything_have_other_digests(key, label, value):
    assert digest_example(key, label, value) != digest_example(KEY, LABEL, VALUE)


def test_a_configuration_with_a_wrong_label_in_validation_is_not_built(layout, tmp_path, capsys):
    project = link_data(layout.root / "data", tmp_path, snapshot=False)
    shutil.copytree(layout.snapshot, project.snapshot)
    path = column_path(project.snapshot, "validation", "label")
    labels = np.fromfile(path, np.int64)
    labels[-1] = (labels[-1] + 1) % 4
    labels.tofile(path)
    write_params(tmp_path, SMALL)
    with pytest.raises(SystemExit):
        run_stages(tmp_path, "build@optimized")
    said = capsys.readouterr().err
    assert f"the labels of 1 of {len(labels)} delivered examples differ" in said


GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}
BUFFER = {"kind": "buffer", "size": 32}
STREAM = {"read": "shards", "shuffle": BUFFER}


def pipeline_of(layout, config):
    data = {"source": "arrays", "path": "unused.npz"}
    steps = {"preprocess": ["decode"], "augment": ["flip"], "batch_size": 32}
    params = check({"data": data, **steps, "pipelines": {"p": config}})
    return open_input_pipeline(params, "p", open_inputs(params, layout))


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
        (lambda _, positions, epochs: positions // 2, {}, r"lacks \d+ of \d+ .* repeats [1-9]"),
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
    with pytest.raises(UnequalConfigurations, match="the train split does not contain"):
        draws._streamed_rows(pipeline)


def test_every_example_is_counted_in_the_row_of_its_class_of_many_the_most_confused_are_kept():
    confusion = count_confusions(
        np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 2]), ["a", "b", "c"]
    )
    assert confusion.counts == ((1, 1, 0), (0, 1, 0), (1, 0, 1))
    assert (confusion.classes, confusion.left_out) == (("a", "b", "c"), 0)
    truths, predictions = np.array([7, 7, 7, 3, 5, 5]), np.array([3, 3, 7, 3, 5, 5])
    confusion = count_confusions(truths, predictions, [*map(str, range(1000))], most=2)
    assert confusion.counts == ((1, 0), (2, 1)), "in their order"
    assert (confusion.classes, confusion.left_out) == (("3", "7"), 998)


def test_a_loss_that_is_no_number_is_among_the_worst():
    losses = np.array([0.5, np.nan, 2.0, *np.zeros(50)])
    assert order_by_loss(losses)[:3].tolist() == [1, 2, 0]


def test_an_array_of_several_dimensions_is_described_by_its_range():
    columns = TableColumns(names=("x[0]", "x[1]"))
    assert _describe_row(np.array([0.5, 2.0]), columns) == "x[0]: 0.5, x[1]: 2"
    colored = TableColumns(names=("size", "color"), categories=(("blue", "red"),))
    assert _describe_row(np.array([0.5, 1.0]), colored) == "size: 0.5, color: red"
    described = _describe_row(np.arange(6.0).reshape(3, 2), columns)
    assert described == "3×2 values from 0 to 5"
