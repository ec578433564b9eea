"""Which classes are shown as confused."""

from __future__ import annotations

import numpy as np
import pytest

from throughline.measurement.evaluation import _describe_row, _keep_worst, count_confusions
from throughline.plan.schema import TableColumns

pytestmark = pytest.mark.integration


def test_every_example_is_counted_in_the_row_of_its_class_of_many_the_most_confused_are_kept():
    truths, predictions = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 2])
    confusion = count_confusions(truths, predictions, ["a", "b", "c"])
    assert confusion.counts == ((1, 1, 0), (0, 1, 0), (1, 0, 1))
    assert (confusion.classes, confusion.left_out) == (("a", "b", "c"), 0)
    # Of many classes the most confused are kept, in their order.
    truths = np.array([7, 7, 7, 3, 5, 5])
    predictions = np.array([3, 3, 7, 3, 5, 5])
    names = [str(number) for number in range(1000)]
    confusion = count_confusions(truths, predictions, names, most=2)
    assert confusion.classes == ("3", "7")
    assert confusion.counts == ((1, 0), (2, 1))
    assert confusion.left_out == 998


def test_a_loss_that_is_no_number_is_among_the_worst():
    losses = np.array([0.5, np.nan, 2.0, *np.zeros(50)])
    worst = _keep_worst(None, {"losses": losses, "keys": np.arange(len(losses))})
    assert worst["keys"][:3].tolist() == [1, 2, 0]


def test_an_array_of_several_dimensions_is_described_by_its_range():
    columns = TableColumns(names=("x[0]", "x[1]"))
    assert _describe_row(np.array([0.5, 2.0]), columns) == "x[0]: 0.5, x[1]: 2"
    colored = TableColumns(names=("size", "color"), categories=(("blue", "red"),))
    assert _describe_row(np.array([0.5, 1.0]), colored) == "size: 0.5, color: red"
    described = _describe_row(np.arange(6.0).reshape(3, 2), columns)
    assert described == "3×2 values from 0 to 5"
