"""Packing by best-fit decreasing: every document in one row that has room for it, and rows as tight
as the method makes them.
"""

from __future__ import annotations

import doctest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from throughline.pipelines.order import best_fit
from throughline.pipelines.order.best_fit import fill_rows, plan_packs


def rows_of(plan):
    """The documents' lengths of each row."""
    return [part.tolist() for part in np.split(plan.lengths, plan.starts[1:-1])]


def one_by_one(lengths, room):
    """What is left of each row by best-fit decreasing as it is defined, a document at a time."""
    free = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, left in enumerate(free) if left >= length]
        if fitting:
            free[min(fitting, key=lambda row: free[row])] -= length
        else:
            free.append(room - length)
    return free


def test_the_worked_example_is_true():
    done = doctest.testmod(best_fit)
    assert done.failed == 0 and done.attempted >= 2


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=80), room=st.integers(30, 50))
def test_lengths_dealt_at_once_fill_rows_as_documents_dealt_one_by_one(lengths, room):
    plan = plan_packs(np.array(lengths), room)
    assert sorted(room - sum(row) for row in rows_of(plan)) == sorted(one_by_one(lengths, room))


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_every_document_has_one_slot_of_its_length(lengths):
    plan = plan_packs(np.array(lengths), 20)
    slots = plan.documents[plan.firsts[plan.lengths] + plan.ranks]
    assert sorted(slots.tolist()) == list(range(len(lengths)))
    assert [max(1, lengths[document]) for document in slots] == plan.lengths.tolist()
    assert all(sum(row) <= 20 for row in rows_of(plan))
    assert plan.most_segments == max(map(len, rows_of(plan)))


def test_a_million_documents_are_as_tight_and_each_is_placed():
    lengths = np.minimum(512, np.random.default_rng(0).geometric(1 / 180, 1_000_000))
    rows, slots = fill_rows(np.bincount(lengths, minlength=513), 512)
    assert np.array_equal(np.sort(slots), np.sort(lengths))
    filled = np.bincount(rows, weights=slots)
    assert filled.max() <= 512
    assert len(filled) <= 1.001 * -(-lengths.sum() // 512) + 1
