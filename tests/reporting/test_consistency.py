"""What is said of configurations whose figures contradict each other."""

from __future__ import annotations

import pytest

from tests.support.rows import row
from throughline.reporting.consistency import keep_consistent
from throughline.reporting.headline import find_undecided, write_headline
from throughline.reporting.ranking import find_best, find_tied, ratio_interval, relative_rate


@pytest.mark.parametrize(
    ("relative", "more", "rate", "cause"),
    [
        (0.9, {}, 90, ""),
        (1.02, {}, 100, ""),  # within the noise: the ceiling is shown
        (1.5, {}, 100, "its model alone takes 100"),
        (3.0, {"input_examples_per_s": 60.0}, 60, "its input alone made 60"),
        (0.9, {"warm_examples_per_s": 30.0, "warm_steps": 400}, 30, "its epochs trained 30"),
        (0.9, {"warm_examples_per_s": 85.0, "warm_steps": 400}, 90, ""),  # within the drift
        (0.9, {"warm_examples_per_s": 30.0, "warm_steps": 5}, 90, ""),  # mostly begin and end
    ],
)
def test_no_rate_passes_its_ceilings_or_what_its_epochs_show(relative, more, rate, cause):
    kept = keep_consistent(row("a", relative, **more), reference=100.0, model_ceiling=100.0)
    assert relative_rate(kept) * 100 == pytest.approx(rate)
    assert cause in kept.contradiction and bool(cause) == bool(kept.contradiction)
    assert (kept.verdict == "undecided") == bool(cause) == (kept.rate_doubt > 0)


def test_a_contradicted_configuration_is_neither_best_nor_tied_nor_praised():
    """The case of a program that was busy while one of four was timed."""
    more = {"input_examples_per_s": 21_941.0, "warm_examples_per_s": 19_346.0, "warm_steps": 400}
    rows = [
        row("naive", 164.70, 50, "input-bound", input_examples_per_s=17_000.0),
        row("map_parallel", 551.16, 20, "undecided", **more),
        row("optimized", 560.0, 5, input_examples_per_s=90_000.0),
    ]
    kept = [keep_consistent(each, reference=100.0, model_ceiling=60_000.0) for each in rows]
    assert find_best(kept).pipeline == "optimized" and find_tied(kept) == ["optimized"]
    assert find_undecided(kept) == ["map_parallel"]
    low, high = ratio_interval(kept[1], kept[0], among=kept)
    assert low < 1 < high
    assert write_headline(kept).endswith(
        "whether `map_parallel` is faster than `naive` is undecided (measured at 55,116 examples/s,"
        " while its epochs trained 19,346 at another moment)."
    )
