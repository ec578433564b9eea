"""The sentence says what is certain, names what is not, and calls nothing the same unchecked."""

from __future__ import annotations

import pytest

from tests.support.races import race_result, raced
from tests.support.rows import row
from throughline.reporting.headline import write_headline
from throughline.reporting.ranking import Ranking
from throughline.results.train import HeldOut, standard_error


def headline_of(result, **rows):
    """The sentence about a race; `rows` are fields of the rows of its configurations."""
    shown = {name: row(name, **rows.get(name, {})) for name in result.configurations}
    return write_headline(Ranking(result), shown)


NAIVE = raced(25.0, 75, "input-bound")
FAST = raced(98.0, 3)
WAITS = "Training waits for its input 75 % of the time."
ENDS = "`optimized` ends that: 3.9× as fast (3.9 to 3.9), same examples, same accuracy"
SENTENCES = {
    "a winner ends the waiting": ({"naive": NAIVE, "optimized": FAST}, f"{WAITS} {ENDS}."),
    "a winner leaves some of it": (
        {"naive": NAIVE, "optimized": raced(50.0, 30, "input-bound")},
        f"{WAITS} `optimized` brings that to 30 %: 2.0× as fast (2.0 to 2.0), same examples, same"
        " accuracy.",
    ),
    "a winner may leave some of it": (
        {"naive": NAIVE, "optimized": raced(50.0, 20, "undecided")},
        f"{WAITS} `optimized` is 2.0× as fast (2.0 to 2.0), same examples, same accuracy; how long"
        " it still waits is undecided, 18 to 22 %.",
    ),
    "a winner waits longer": (
        {"naive": NAIVE, "optimized": raced(80.0, 80, "input-bound")},
        f"{WAITS} `optimized` is 3.2× as fast (3.2 to 3.2), same examples, same accuracy.",
    ),
    "a faster model is no better input": (
        {"naive": raced(70.0, 5), "optimized": FAST},
        "Training waits for its input 5 % of the time only, and still `optimized` is 1.4× as fast"
        " (1.4 to 1.4), same examples, same accuracy.",
    ),
    "equals are named": (
        {"naive": NAIVE, "optimized": FAST, "a": raced(98.0, 5)},
        f"{WAITS} {ENDS}; `a` is as fast within the noise.",
    ),
    "many equals are counted": (
        {"naive": NAIVE, "optimized": FAST, **dict.fromkeys("abcde", FAST)},
        f"{WAITS} {ENDS}; `a`, `b` and 3 others are as fast within the noise.",
    ),
    "what is open is named": (
        {"naive": NAIVE, "snapshot": raced(80.0, 5), "open": raced(30.0, 40, "undecided")},
        f"{WAITS} `snapshot` ends that: 3.2× as fast (3.2 to 3.2), same examples, same accuracy;"
        " whether `open` is faster than `naive` is undecided.",
    ),
    "what contradicts itself is not spoken of": (
        {"naive": NAIVE, "optimized": FAST, "odd": raced(300.0, 0, "undecided", contradiction="x")},
        f"{WAITS} {ENDS}.",
    ),
    "a baseline that contradicts itself": (
        {"naive": raced(25.0, 75, "undecided", contradiction="25, its epochs 90"), "a": FAST},
        "How the configurations compare is undecided, since the figures of `naive` contradict each"
        " other: 25, its epochs 90.",
    ),
    "nothing is faster, for the model takes the time": (
        {"naive": raced(98.0, 5), "best": raced(98.0, 4)},
        "No configuration trains faster than `naive` beyond the noise: training waits for its input"
        " only 5 % of the time, the model takes the rest.",
    ),
    "nothing is faster, and training waits": (
        {"naive": raced(98.0, 60, "input-bound"), "best": raced(98.0, 4)},
        "No configuration trains faster than `naive` beyond the noise: training waits for its input"
        " 60 % of the time, and none of these configurations changes that.",
    ),
    "nothing is faster, and training may wait": (
        {"naive": raced(98.0, 20, "undecided"), "best": raced(98.0, 4)},
        "No configuration trains faster than `naive` beyond the noise: and whether training waits"
        " for its input is undecided (18 to 22 % of the time).",
    ),
    "nothing is certain": (
        {"naive": NAIVE, "open": raced(26.0, 50, "undecided")},
        "Whether anything trains faster than `naive` is undecided: `open` is 0.6 to 4.6× as fast.",
    ),
    "one that waits for nothing": (
        {"optimized": FAST},
        "`optimized` trains 98 examples per second and waits for its input 3 % of the time: its"
        " model takes the rest, so there is nothing to gain from the input.",
    ),
    "one that waits": (
        {"naive": NAIVE},
        "`naive` waits for its input 75 % of the time: it trains 25 examples per second of the 100"
        " that its model could take.",
    ),
    "one that may wait": (
        {"naive": raced(50.0, 20, "undecided")},
        "`naive` trains 50 examples per second; whether it waits for its input is undecided (18 to"
        " 22 % of the time).",
    ),
    "one that contradicts itself": (
        {"naive": raced(50.0, 20, "undecided", contradiction="50, its epochs 90")},
        "How fast `naive` trains, and whether it waits for its input, is undecided: 50, its epochs"
        " 90.",
    ),
}


@pytest.mark.parametrize(("configurations", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_of_each_outcome(configurations, sentence):
    noisy = {"open": 1.2, "best": 0.004}
    assert headline_of(race_result(configurations, spread=noisy)) == sentence


def test_what_is_uncertain_does_not_outrank_what_is_certain():
    configurations = {"naive": NAIVE, "snapshot": raced(80.0, 5), "open": raced(90.0, 1)}
    ranking = Ranking(race_result(configurations, spread={"open": 3.0}))
    assert ranking.best == "snapshot" and "naive" not in ranking.tied


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
    result = race_result({"naive": NAIVE, "optimized": FAST})
    assert headline_of(result, naive=naive, optimized=fast).endswith(f", {end}")
