"""Which classes are shown as confused."""

from __future__ import annotations

import numpy as np
import pytest

from throughline.measurement.evaluation import _keep_worst, count_confusions

pytestmark = pytest.mark.integration


def test_every_example_is_counted_in_the_row_of_its_class():
    truths, predictions = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 2])
    confusion = count_confusions(truths, predictions, ["a", "b", "c"])
    assert confusion.counts == ((1, 1, 0), (0, 1, 0), (1, 0, 1))
    assert (confusion.classes, confusion.left_out) == (("a", "b", "c"), 0)


def test_of_many_classes_the_most_confused_are_kept_in_their_order():
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
