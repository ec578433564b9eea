"""What is named first of what was tried: `whowaits.changes.advice`, `whowaits.changes.trials`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, THREADS, Tried, find_first, rank
from whowaits.changes.proposals import propose_changes
from whowaits.changes.trials import FEW_FACTOR, MORE_ROUNDS, Pace, Trials


def tried(text, gain, low, meaning=SAME, keeps="", fits_memory=True):
    return Tried(
        text=text, meaning=meaning, says="", keeps=keeps, where="train.py:7",
        gain=gain, low=low, high=2 * gain, fits_memory=fits_memory,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ([], None),
        ([tried("a", 1.5, 1.05)], None),  # it may owe that to chance
        ([tried("a", 1.3, 1.2), tried("b", 1.5, 1.2)], "b"),
        ([tried("kept", 1.5, 1.3, keeps="9 MiB"), tried("free", 1.4, 1.2)], "free"),
        ([tried("kept", 3.5, 3.3, keeps="9 MiB"), tried("free", 1.4, 1.2)], "kept"),
        ([tried("frozen", 9.0, 8.0, DRAWN_ONCE), tried("same", 1.4, 1.2)], "same"),
        ([tried("frozen", 9.0, 8.0, DRAWN_ONCE)], None),
        ([tried("threads", 9.0, 8.0, THREADS)], None),  # until a copy has proven it
        ([tried("threads", 9.0, 8.0, THREADS), tried("same", 1.4, 1.2)], "same"),
        ([tried("other order", 1.5, 1.4, ORDER), tried("same", 1.4, 1.2)], "same"),
        ([tried("other order", 3.0, 2.0, ORDER), tried("same", 1.4, 1.2)], "other order"),
        ([tried("too large", 3.0, 2.0, keeps="9 TiB", fits_memory=False)], None),
    ],
)
def test_the_first_advice_gains_for_certain_and_leaves_the_training_alone(changes, first):
    assert all(each.meaning != DRAWN_ONCE for each in rank(changes))
    assert [each for each in changes if each.meaning == THREADS] == [
        each for each in rank(changes) if each.meaning == THREADS
    ]
    found = find_first(changes)
    assert (found.text if found else None) == first


@pytest.fixture
def trials():
    dataset = tf.data.Dataset.range(99).map(lambda n: n + 1).map(lambda n: n + 2).batch(3)
    return Trials(lambda _: None, dataset, Pace(step_ms=1), deadline=0, beat=lambda: None)


def test_a_single_pair_is_as_uncertain_as_the_dataset_as_it_is_was(trials):
    changes = propose_changes(trials._dataset, batch=3)
    trials._paces = [100.0, 104.0, 99.0]
    (quiet,) = trials._summarize(changes[:1], [[2.0]])
    assert (quiet.low, quiet.high) == (2.0 / FEW_FACTOR, 2.0 * FEW_FACTOR)
    trials._paces = [100.0, 180.0, 90.0]
    (noisy,) = trials._summarize(changes[:1], [[2.0]])
    assert noisy.low < 1 < 2 < noisy.high, "by more than half from block to block"
    (often,) = trials._summarize(changes[:1], [[2.0, 1.9, 2.2]])
    assert (often.low, often.high) == (1.9, 2.2)


def test_what_gains_most_and_what_would_be_named_first_are_tried_again(trials):
    ahead, parallel = propose_changes(trials._dataset, batch=3)[:2]
    trials._paces = [100.0, 101.0]
    often = [2.1] * (1 + MORE_ROUNDS)

    def doubtful(*factors):
        return trials._find_doubtful([ahead, parallel], factors)

    assert doubtful([1.05], [1.09]) is None, "none is worth it"
    assert doubtful([1.2], [2.1]) == 1
    assert doubtful([1.2], often) is None
    assert doubtful([2.0], often) == 0, "about as good by one pair, and named first"
    assert doubtful(often, often) is None
