"""The sentence says what is certain, names what is not, and calls nothing the same unchecked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.rows import row
from throughline.reporting.headline import find_measure_again, find_undecided, write_headline
from throughline.reporting.ranking import find_best, find_tied
from throughline.results.comparison import BOTH, list_machines
from throughline.results.train import HeldOut, standard_error

NAIVE = row("naive", 0.25, 75, "input-bound")
FAST = row("optimized", 0.98, 3)


def test_a_winner_ends_the_waiting():
    assert write_headline([NAIVE, FAST]) == (
        "Training waits for its input 75 % of the time. `optimized` ends that: 3.9× as fast (3.7 to"
        " 4.1), same examples, same accuracy."
    )


def test_what_is_left_of_the_waiting_is_said():
    left = row("optimized", 0.5, 30, "input-bound")
    assert " `optimized` brings that to 30 %: 2.0× as fast" in write_headline([NAIVE, left])
    unclear = row("optimized", 0.5, 20, "undecided")
    assert write_headline([NAIVE, unclear]).endswith(
        "75 % of the time. `optimized` is 2.0× as fast (1.9 to 2.1), same examples, same accuracy;"
        " how long it still waits is undecided, 18 to 22 %."
    )


def test_equals_are_named_and_many_are_counted():
    equals = [row(name, 0.98, 5) for name in "abcde"]
    assert write_headline([NAIVE, FAST, *equals[:1]]).endswith("; `a` is as fast within the noise.")
    assert write_headline([NAIVE, FAST, *equals]).endswith(
        "; `a`, `b` and 3 others are as fast within the noise."
    )


@pytest.mark.parametrize(
    ("naive", "reason"),
    [
        (
            row("naive", 0.98, 5),
            "training waits for its input only 5 % of the time, the model takes the rest.",
        ),
        (
            row("naive", 0.98, 60, "input-bound"),
            "training waits for its input 60 % of the time, and none of these configurations"
            " changes that.",
        ),
        (
            row("naive", 0.98, 20, "undecided"),
            "and whether training waits for its input is undecided (18 to 22 % of the time).",
        ),
    ],
)
def test_where_nothing_is_faster_the_reason_is_said(naive, reason):
    assert write_headline([naive, row("best", 0.99, 4)]) == (
        f"No configuration trains faster than `naive` beyond the noise: {reason}"
    )


def test_a_faster_model_is_no_better_input():
    rows = [row("naive", 0.7, 5), FAST]
    assert write_headline(rows).startswith(
        "Training waits for its input 5 % of the time only, and still `optimized` is 1.4× as fast"
    )


@pytest.mark.parametrize(
    ("alone", "sentence"),
    [
        (
            FAST,
            "`optimized` trains 98 examples per second and waits for its input 3 % of the time: its"
            " model takes the rest, so there is nothing to gain from the input.",
        ),
        (
            NAIVE,
            "`naive` waits for its input 75 % of the time: it trains 25 examples per second of the"
            " 100 that its model could take.",
        ),
        (
            row("naive", 0.5, 20, "undecided", disturbed_by="yes (process 9)"),
            "`naive` trains 50 examples per second; whether it waits for its input is undecided (18"
            " to 22 % of the time, disturbed by yes (process 9)).",
        ),
    ],
)
def test_one_configuration_is_compared_with_none(alone, sentence):
    assert write_headline([alone]) == sentence


def test_a_disturbed_comparison_still_says_what_is_certain():
    disturbed = [
        row(name, 0.5, 40, "undecided", spread=0.7, disturbed_by="yes (process 9)")
        for name in ("a", "b")
    ]
    rows = [NAIVE, row("snapshot", 0.8, 5), *disturbed]
    assert write_headline(rows) == (
        "Training waits for its input 75 % of the time. `snapshot` ends that: 3.2× as fast (3.0 to"
        " 3.4), same examples, same accuracy; whether `a` and `b` are faster than `naive` is"
        " undecided, disturbed by yes (process 9)."
    )
    assert find_undecided(rows) == find_measure_again(rows) == ["a", "b"]


def test_what_was_disturbed_does_not_outrank_what_is_certain():
    noisy = row("noisy", 0.9, 1, spread=3)
    rows = [NAIVE, row("snapshot", 0.8, 5), noisy]
    assert find_best(rows).pipeline == "snapshot" and "naive" not in find_tied(rows)


def test_where_nothing_is_certain_the_span_is_said():
    noisy = row("noisy", 0.3, 50, "undecided", spread=0.3)
    sentence = write_headline([NAIVE, noisy])
    assert sentence.startswith("Whether anything trains faster than `naive` is undecided: `noisy`")
    assert find_measure_again([NAIVE, noisy]) == ["noisy"]


def test_a_narrow_tie_is_not_undecided_and_what_was_disturbed_is_measured_again():
    rows = [NAIVE, FAST, row("a", 0.97, 4), row("b", 0.6, 30, disturbed_by="yes (process 9)")]
    assert find_undecided(rows) == [] and find_measure_again(rows) == ["b"]


def test_an_open_verdict_is_measured_again_and_more_waiting_is_not_called_less():
    rows = [NAIVE, row("snapshot", 0.8, 12, "undecided")]
    assert find_undecided(rows) == [] and find_measure_again(rows) == ["snapshot"]
    rows = [NAIVE, row("snapshot", 0.8, 80, "input-bound")]
    assert write_headline(rows).startswith(
        "Training waits for its input 75 % of the time. `snapshot` is 3.2× as fast"
    )


def test_rates_of_different_machines_are_not_compared():
    elsewhere = replace(FAST, machine="64 cores")
    assert write_headline([NAIVE, elsewhere]) == (
        "Which configuration trains fastest is undecided: they were measured on different machines."
    )
    both = [replace(each, machine=f"4 cores{BOTH}64 cores") for each in (NAIVE, FAST)]
    assert list(list_machines(both)) == ["4 cores", "64 cores"]


def test_examples_and_quality_are_the_same_only_where_they_are():
    rough = replace(FAST, difference_mean=0.513, difference_max=9.0)
    assert "examples whose pixels differ by 0.51 of 256 levels on average, same accuracy" in (
        write_headline([NAIVE, rough])
    )
    worse = replace(FAST, val_metric=0.7)
    assert write_headline([NAIVE, worse]).endswith("same examples, accuracy 0.7 instead of 0.9.")
    errors = [
        replace(each, metric="mae", test_metric=error)
        for each, error in ((NAIVE, 0.312), (FAST, 0.301))
    ]
    assert write_headline(errors).endswith("same examples, mae 0.301 instead of 0.312.")


def test_tokens_of_few_windows_show_that_an_accuracy_is_another():
    windows = HeldOut(
        split="test",
        examples=40,
        constant_metric=0.1,
        constant_stderr=standard_error(0.1, 20_000),
    )
    better, worse = (
        replace(each, held_out=windows, test_metric=value)
        for each, value in ((NAIVE, 0.30), (FAST, 0.12))
    )
    assert write_headline([better, worse]).endswith("accuracy 0.12 instead of 0.3.")


def test_examples_that_are_drawn_by_class_are_not_called_the_same():
    drawn = replace(FAST, drawn_by_class=True)
    said = write_headline([NAIVE, drawn])
    assert "the same data, drawn by class in `optimized`, same accuracy" in said
    said = write_headline([replace(NAIVE, drawn_by_class=True), drawn])
    assert "the same data, drawn by class in `naive` and `optimized`, same" in said


def test_where_a_model_became_worse_the_smaller_shuffle_is_named():
    measured = {"metric": "mae", "examples": 5000}
    naive = replace(NAIVE, **measured, val_metric=4.929, mixed_examples=250)
    fast = replace(FAST, **measured, val_metric=0.2456, mixed_examples=5000)
    assert write_headline([naive, fast]).endswith(
        "mae 0.2456 instead of 4.929 (`naive` mixes 250 of 5,000 examples at a time)."
    )
    alike = replace(fast, mixed_examples=250)
    assert write_headline([naive, alike]).endswith("mae 0.2456 instead of 4.929.")
