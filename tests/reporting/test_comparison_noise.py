"""What chance makes of equal configurations is no difference, however many are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from tests.support.made_up import made_up
from tests.support.rows import row
from throughline.reporting.comparison_noise import critical_value
from throughline.reporting.ranking import find_tied, find_winners, ratio_interval
from throughline.results.profiling import RoundTimes


def draw_rows(draw, count, rounds, *, uneven=False):
    """Configurations of the same speed, each with noise of its own where that is `uneven`."""
    spreads = 0.05 * 2 ** (draw.normal(size=count) if uneven else np.zeros(count))
    return [
        row(name, relative_rates=tuple(draw.lognormal(np.log(0.5), spread, rounds)))
        for name, spread in zip(["naive", *"abcdefgh"], spreads, strict=False)
    ]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("count", "rounds", "uneven"),
    slow_but_first([(7, 3, True), (7, 3, False), (5, 9, True), (5, 9, False)]),
)
def test_of_equal_configurations_none_is_called_faster_in_19_of_20_comparisons(
    count, rounds, uneven
):
    draw = np.random.default_rng(count * rounds)
    wrong = 0
    for _ in range(100):
        rows = draw_rows(draw, count, rounds, uneven=uneven)
        wrong += bool(find_winners(rows)) or len(find_tied(rows)) < count
    assert wrong <= 11, "5 of 100 but for the chance of 100 comparisons"


@pytest.mark.integration
def test_a_difference_that_is_more_than_noise_is_found():
    draw = np.random.default_rng(1)
    found = 0
    for _ in range(20):
        rows = draw_rows(draw, 7, 6)
        fast = tuple(1.3 * rate for rate in rows[3].relative_rates)
        rows[3] = row("c", relative_rates=fast)
        found += find_tied(rows) == ["c"]
    assert found >= 18


def test_more_rounds_and_fewer_configurations_need_less():
    rates = [tuple(each.relative_rates) for each in draw_rows(np.random.default_rng(2), 7, 9)]
    few = critical_value(tuple(each[:3] for each in rates))
    assert few > critical_value(tuple(rates)) > critical_value(tuple(rates[:2])) > 1.9


def test_what_both_sides_only_enclose_wins_nothing_however_many_rounds_there_are():
    base = row("naive", 0.55, relative_rates=(0.55,) * 12)
    rates = (1.0, 0.5) * 12
    rounds = replace(
        made_up(RoundTimes), side="undecided", round_full_ms=(10.0,), round_drained_ms=(20.0,)
    )
    certain, enclosed = (
        row("a", 0.75, relative_rates=rates, rate_doubt=doubt) for doubt in (0.0, rounds.rate_doubt)
    )
    assert find_winners([base, certain]) == [certain]
    assert find_winners([base, enclosed]) == []
    assert replace(rounds, side="full").rate_doubt == 0


def test_one_round_decides_nothing():
    rows = [row("naive", 0.1, relative_rates=(0.1,)), row("a", 0.9, relative_rates=(0.9,))]
    assert ratio_interval(rows[1], rows[0], among=rows) == (0.0, np.inf)
    assert not find_winners(rows)
