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
OPEN = [
    row(name, 0.5, 40, "undecided", spread=0.7, disturbed_by="yes (process 9)") for name in "ab"
]
SENTENCES = {
    "a winner ends the waiting": (
        [NAIVE, FAST],
        "Training waits for its input 75 % of the time. `optimized` ends that: 3.9× as fast (3.7 to"
        " 4.1), same examples, same accuracy.",
    ),
    "a winner leaves some of it": (
        [NAIVE, row("optimized", 0.5, 30, "input-bound")],
        "Training waits for its input 75 % of the time. `optimized` brings that to 30 %: 2.0× as"
        " fast (1.9 to 2.1), same examples, same accuracy.",
    ),
    "a winner may leave some of it": (
        [NAIVE, row("optimized", 0.5, 20, "undecided")],
        "Training waits for its input 75 % of the time. `optimized` is 2.0× as fast (1.9 to 2.1),"
        " same examples, same accuracy; how long it still waits is undecided, 18 to 22 %.",
    ),
    "a winner waits longer": (
        [NAIVE, row("optimized", 0.8, 80, "input-bound")],
        "Training waits for its input 75 % of the time. `optimized` is 3.2× as fast (3.0 to 3.4),"
        " same examples, same accuracy.",
    ),
    "a faster model is no better input": (
        [row("naive", 0.7, 5), FAST],
        "Training waits for its input 5 % of the time only, and still `optimized` is 1.4× as fast"
        " (1.4 to 1.4), same examples, same accuracy.",
    ),
    "equals are named": (
        [NAIVE, FAST, row("a", 0.98, 5)],
        "Training waits for its input 75 % of the time. `optimized` ends that: 3.9× as fast (3.7 to"
        " 4.1), same examples, same accuracy; `a` is as fast within the noise.",
    ),
    "what is open is named with who disturbed it": (
        [NAIVE, row("snapshot", 0.8, 5), *OPEN],
        "Training waits for its input 75 % of the time. `snapshot` ends that: 3.2× as fast (3.0 to"
        " 3.4), same examples, same accuracy; whether `a` and `b` are faster than `naive` is"
        " undecided, disturbed by yes (process 9).",
    ),
    "nothing is faster, for the model takes the time": (
        [row("naive", 0.98, 5), row("best", 0.99, 4)],
        "No configuration trains faster than `naive` beyond the noise: training waits for its input"
        " only 5 % of the time, the model takes the rest.",
    ),
    "nothing is faster, and training waits": (
        [row("naive", 0.98, 60, "input-bound"), row("best", 0.99, 4)],
        "No configuration trains faster than `naive` beyond the noise: training waits for its input"
        " 60 % of the time, and none of these configurations changes that.",
    ),
    "nothing is faster, and training may wait": (
        [row("naive", 0.98, 20, "undecided"), row("best", 0.99, 4)],
        "No configuration trains faster than `naive` beyond the noise: and whether training waits"
        " for its input is undecided (18 to 22 % of the time).",
    ),
    "nothing is certain": (
        [NAIVE, row("noisy", 0.3, 50, "undecided", spread=0.3)],
        "Whether anything trains faster than `naive` is undecided: `noisy` is 0.7 to 2.2× as fast.",
    ),
    "machines differ": (
        [NAIVE, replace(FAST, machine="64 cores")],
        "Which configuration trains fastest is undecided: they were measured on different"
        " machines.",
    ),
    "one that waits for nothing": (
        [FAST],
        "`optimized` trains 98 examples per second and waits for its input 3 % of the time: its"
        " model takes the rest, so there is nothing to gain from the input.",
    ),
    "one that waits": (
        [NAIVE],
        "`naive` waits for its input 75 % of the time: it trains 25 examples per second of the 100"
        " that its model could take.",
    ),
    "one that may wait": (
        [row("naive", 0.5, 20, "undecided", disturbed_by="yes (process 9)")],
        "`naive` trains 50 examples per second; whether it waits for its input is undecided (18 to"
        " 22 % of the time, disturbed by yes (process 9)).",
    ),
}


@pytest.mark.parametrize(("rows", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_of_each_outcome(rows, sentence):
    assert write_headline(rows) == sentence


def test_many_equals_are_counted():
    equals = [row(name, 0.98, 5) for name in "abcde"]
    assert write_headline([NAIVE, FAST, *equals]).endswith(
        "; `a`, `b` and 3 others are as fast within the noise."
    )


def test_what_was_disturbed_does_not_outrank_what_is_certain():
    rows = [NAIVE, row("snapshot", 0.8, 5), row("noisy", 0.9, 1, spread=3)]
    assert find_best(rows).pipeline == "snapshot" and "naive" not in find_tied(rows)


@pytest.mark.parametrize(
    ("others", "undecided", "again"),
    [
        (OPEN, ["a", "b"], ["a", "b"]),
        ([row("a", 0.97, 4), row("b", 0.6, 30, disturbed_by="yes")], [], ["b"]),
        ([row("a", 0.8, 12, "undecided")], [], ["a"]),
    ],
    ids=["open gains", "a narrow tie, and one that was disturbed", "an open verdict"],
)
def test_what_is_open_or_was_disturbed_is_measured_again(others, undecided, again):
    rows = [NAIVE, FAST, *others]
    assert (find_undecided(rows), find_measure_again(rows)) == (undecided, again)


def test_a_comparison_that_was_continued_elsewhere_lists_both_machines():
    both = [replace(each, machine=f"4 cores{BOTH}64 cores") for each in (NAIVE, FAST)]
    assert list(list_machines(both)) == ["4 cores", "64 cores"]


WINDOWS = HeldOut(
    split="test", examples=40, constant_metric=0.1, constant_stderr=standard_error(0.1, 20_000)
)
OF_ERRORS = {"metric": "mae", "examples": 5000}


@pytest.mark.parametrize(
    ("naive", "fast", "end"),
    [
        ({}, {"val_metric": 0.7}, "same examples, accuracy 0.7 instead of 0.9."),
        (
            {"held_out": WINDOWS, "test_metric": 0.30},
            {"held_out": WINDOWS, "test_metric": 0.12},
            "accuracy 0.12 instead of 0.3.",
        ),
        (
            {**OF_ERRORS, "val_metric": 4.929, "mixed_examples": 250},
            {**OF_ERRORS, "val_metric": 0.2456, "mixed_examples": 5000},
            "mae 0.2456 instead of 4.929 (`naive` mixes 250 of 5,000 examples at a time).",
        ),
        (
            {**OF_ERRORS, "val_metric": 4.929, "mixed_examples": 250},
            {**OF_ERRORS, "val_metric": 0.2456, "mixed_examples": 250},
            "mae 0.2456 instead of 4.929.",
        ),
        (
            {},
            {"difference_mean": 0.513, "difference_max": 9.0},
            "examples whose pixels differ by 0.51 of 256 levels on average, same accuracy.",
        ),
        (
            {"drawn_by_class": True},
            {"drawn_by_class": True},
            "the same data, drawn by class in `naive` and `optimized`, same accuracy.",
        ),
    ],
    ids=["accuracy", "tokens of few windows", "shuffle", "same shuffle", "pixels", "drawn"],
)
def test_examples_and_quality_are_the_same_only_where_they_are(naive, fast, end):
    said = write_headline([replace(NAIVE, **naive), replace(FAST, **fast)])
    assert said.endswith(f", {end}")
