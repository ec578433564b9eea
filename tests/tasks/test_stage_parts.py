"""What stages reckon, choose and say by themselves, without what they are made of."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tasks import build
from tasks.train import describe_stop, summarize
from tasks.verify import find_damaged_columns
from tests.support.made_up import made_up
from throughline.config import cli
from throughline.results.build import Difference
from throughline.results.train import TrainResult, TrainThroughput
from throughline.settings import TrainSettings
from throughline.shared.errors import InvalidCode, ObjectStoreFailed

pytestmark = pytest.mark.integration


def test_a_difference_counts_every_example_alike(monkeypatch):
    of_splits = {
        "train": Difference(mean=1.0, max=3.0, examples=30),
        "test": Difference(mean=5.0, max=9.0, examples=10),
    }
    monkeypatch.setattr(build, "measure_difference", lambda split, _: of_splits[split])
    splits = {split: split for split in of_splits}
    assert build._measure_difference(splits, splits) == Difference(mean=2.0, max=9.0, examples=40)


def test_the_classes_of_an_epoch_are_those_of_its_rows():
    labels, classes = np.array([1, 0, 2, 1]), ("a", "b", "c")
    data = SimpleNamespace(shards=SimpleNamespace(classes=classes), memmap=lambda *_: labels)
    pipeline = SimpleNamespace(data=data, split="train")
    found = build.class_frequencies(pipeline, np.array([0, 3, 1, 0]))
    assert found == {"a": 0.25, "b": 0.75, "c": 0.0}


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"accuracy": 0.5, "loss": 2.0}, "test accuracy 0.5000"),
        ({"accuracy": 0.5, "perplexity": 9.0}, "test accuracy 0.5000, test perplexity 9.0000"),
        ({}, "validation accuracy 0.7500"),
    ],
)
def test_a_training_is_summed_up_by_the_test_split_or_else_by_validation(test, said):
    last = {"accuracy": 0.9, "val_accuracy": 0.75}
    result = replace(made_up(TrainResult), metric="accuracy", last_epoch=last, test=test)
    assert summarize(replace(result, throughput=None)) == f"no epoch timed, {said}"
    for warm, where in ((9.0, ""), (4.0, " in its one epoch, which includes the start")):
        rates = TrainThroughput(train_examples_per_s=warm, cold_examples_per_s=4.0)
        summary = summarize(replace(result, throughput=rates))
        assert summary == f"{warm:.0f} examples/s{where}, {said}"


@pytest.mark.parametrize(("rows", "said"), [(3, "within its last epoch"), (2, "after 2 of 3")])
def test_where_a_training_was_stopped_is_said(rows, said):
    stopped = SimpleNamespace(ended_by="train.callbacks", rows=[{}] * rows)
    assert said in describe_stop(stopped, TrainSettings(epochs=3))


@pytest.mark.parametrize("splits", [("train", "test"), ()])
def test_a_store_that_is_away_is_said_once_also_of_what_was_fetched(splits):
    def fail(*_):
        raise ObjectStoreFailed("it is away")

    snapshot = SimpleNamespace(splits=splits, columns=(SimpleNamespace(name="image"),))
    fetched = SimpleNamespace(verify_regions=fail)
    stored = SimpleNamespace(snapshot=snapshot, memmap=fail, fetched=fetched)
    assert [str(one) for one in find_damaged_columns(stored)] == ["it is away"]


@pytest.mark.parametrize(
    ("code", "error"), [(0, InvalidCode), (None, InvalidCode), (3, SystemExit)]
)
def test_own_code_that_ends_a_stage_without_an_error_is_named_with_its_line(code, error):
    with pytest.raises(error) as ended, cli.refuse_early_exit():
        sys.exit(code)
    said = str(ended.value)
    assert said == "3" or re.search(r"test_stage_parts\.py, line \d+: sys\.exit\(code\) ends", said)
