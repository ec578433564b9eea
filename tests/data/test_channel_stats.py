"""Mean and deviation are those of all values, however the data is cut into pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from throughline.data.columns.channel_stats import Moments, compute_moments, merge_moments

PIXELS = np.array([[[0, 10]], [[2, 10]], [[4, 40]]], np.uint8)  # three images of one pixel
EXPECTED = Moments(count=3, mean=(2.0, 20.0), sum_sq_dev=(8.0, 600.0))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_moments_are_per_channel_over_all_other_axes(dtype):
    assert compute_moments(PIXELS.astype(dtype)) == EXPECTED


@pytest.mark.parametrize("cuts", [[], [1], [3], [1, 2, 3]])
def test_pieces_of_any_size_give_the_statistics_of_the_whole(cuts):
    values = np.array([[1.0], [2.0], [3.0], [6.0]])
    merged = merge_moments(compute_moments(part) for part in np.split(values, cuts))
    assert merged.mean == pytest.approx((3.0,))
    assert merged.deviation == pytest.approx((math.sqrt(14 / 4),))


def test_small_deviations_of_large_values_are_not_lost():
    values = np.array([[1e9 - 1], [1e9 + 1]])
    merged = merge_moments(compute_moments(values[place : place + 1]) for place in (0, 1))
    assert merged.deviation == (1.0,)


def test_no_values_have_mean_and_deviation_zero():
    merged = merge_moments([])
    assert (merged.mean, merged.deviation) == ((0.0,), (0.0,))
