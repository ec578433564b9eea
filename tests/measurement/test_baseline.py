"""How sure a metric on a held-out series is."""

from __future__ import annotations

import numpy as np
import pytest

from throughline.measurement.baseline import standard_error_in_time, standard_error_of_mean

STEPS, SERIES = 4000, 200


@pytest.mark.parametrize("memory", [0.0, 0.98])
def test_the_error_of_a_series_is_the_spread_of_means_over_many_such_series(memory):
    """Each value is `memory` of the one before and noise; with independent values the error would
    be said ten times too small at 0.98.
    """
    draw = np.random.default_rng(0)
    values = np.zeros((SERIES, STEPS + 500))
    for step in range(1, STEPS + 500):
        values[:, step] = memory * values[:, step - 1] + draw.normal(size=SERIES)
    values = values[:, 500:]
    said = np.median([standard_error_in_time(one) for one in values])
    assert said == pytest.approx(values.mean(axis=1).std(), rel=0.25)


def test_few_distances_that_agree_are_no_certainty():
    assert standard_error_of_mean(np.array([2.0])) == 2.0
    assert standard_error_of_mean(np.array([2.0, 2.0])) == 1.0
    many = np.random.default_rng(0).random(10_000)
    assert standard_error_of_mean(many) == many.std() / 100


def test_the_error_of_what_never_varies_or_swings_is_that_of_independent_values():
    assert standard_error_in_time(np.full(9, 2.5)) == 0
    assert standard_error_in_time(np.zeros(1)) == 0
    swinging = np.resize([1.0, -1.0], 100)
    assert standard_error_in_time(swinging) == pytest.approx(0.1)
