"""Sets of instants behave as sets do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from throughline.diagnosis.intervals import difference, intersection, total_length, union

PAIRS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=12,
)


def instants(pairs) -> set[int]:
    """The unit steps that (begin, end) pairs cover."""
    return {step for begin, end in pairs for step in range(int(begin), int(end))}


@settings(max_examples=40)
@given(PAIRS, PAIRS)
def test_they_are_what_sets_of_unit_steps_are(one, other):
    first, second = union(one), union(other)
    assert instants(first) == instants(one)
    assert instants(intersection(first, second)) == instants(one) & instants(other)
    assert instants(difference(first, second)) == instants(one) - instants(other)
    assert total_length(first) == len(instants(one))
    assert (np.diff(first.ravel()) > 0).all(), "sorted and disjoint, touching spans joined"
