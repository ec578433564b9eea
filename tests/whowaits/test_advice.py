"""What is named first of what was tried: `whowaits.changes.advice`, `whowaits.changes.trials`."""

from __future__ import annotations

import pytest

from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, THREADS, Tried, find_first, rank


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
