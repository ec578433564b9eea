"""Splits, shard order and shard bounds are pure functions with the properties that training relies
on.
"""

from __future__ import annotations

import hashlib

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from throughline.data.splits import assign_split, count_steps, shard_bounds, shard_order

SHARES = {"validation": 0.15, "test": 0.1}
contents = st.lists(st.binary(max_size=8), min_size=1, max_size=60)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content).hexdigest()


@given(contents, contents, st.integers(0, 5))
def test_adding_data_never_moves_an_example(old, new, seed):
    before = {content: assign_split(digest(content), shares=SHARES, seed=seed) for content in old}
    after = {
        content: assign_split(digest(content), shares=SHARES, seed=seed) for content in old + new
    }
    assert all(after[content] == split for content, split in before.items())


def test_shares_are_kept_and_seeds_deal_differently():
    digests = [digest(str(number).encode()) for number in range(20_000)]
    dealt = [assign_split(item, shares=SHARES, seed=0) for item in digests]
    assert abs(dealt.count("validation") / 20_000 - 0.15) < 0.01
    assert abs(dealt.count("test") / 20_000 - 0.10) < 0.01
    again = [assign_split(item, shares=SHARES, seed=1) for item in digests]
    assert again != dealt


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=40, unique=True))
def test_shard_order_is_a_permutation_that_ignores_the_order_found(items):
    examples = pd.DataFrame(
        {"digest": [digest(item) for item in items], "id": [item.hex() for item in items]}
    )
    order = shard_order(examples)
    assert sorted(order) == list(range(len(items)))
    backwards = examples.iloc[::-1]
    assert (
        examples["id"].iloc[order].tolist() == backwards["id"].iloc[shard_order(backwards)].tolist()
    )


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=300),
    st.integers(1, 20),
    st.integers(1, 50_000),
)
def test_shard_bounds_cover_everything_once(sizes, min_shards, target):
    bounds = shard_bounds(sizes, target_bytes=target, min_shards=min_shards)
    assert [index for start, stop in bounds for index in range(start, stop)] == list(
        range(len(sizes))
    )
    assert all(stop > start for start, stop in bounds)
    assert len(bounds) >= min(min_shards, len(sizes)) or len(bounds) == len(sizes)


def test_shards_of_equal_examples_are_of_equal_size():
    bounds = shard_bounds([100] * 1000, target_bytes=10_000, min_shards=2)
    assert [stop - start for start, stop in bounds] == [100] * 10


def test_the_last_batch_of_an_epoch_counts():
    assert [count_steps(examples, 32) for examples in (1, 32, 33)] == [1, 1, 2]
