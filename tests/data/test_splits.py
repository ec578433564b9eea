"""Splits, shard order and shard ranges are pure functions as training relies on them."""

import hashlib
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from throughline.data import splits
from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import labeled
from throughline.data.manifest import Manifest, digest_rows, read_manifest
from throughline.plan.schema import TableColumns
from throughline.shared.errors import DamagedFile

SHARES = {"validation": 0.15, "test": 0.1}
contents = st.lists(st.binary(max_size=8), min_size=1, max_size=60)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content).hexdigest()


@given(contents, contents, st.integers(0, 5))
def test_adding_data_never_moves_an_example(old, new, seed):
    before = {one: splits.assign_split(digest(one), shares=SHARES, seed=seed) for one in old}
    after = {one: splits.assign_split(digest(one), shares=SHARES, seed=seed) for one in old + new}
    assert all(after[content] == split for content, split in before.items())


def test_shares_are_kept_and_seeds_deal_differently():
    digests = [digest(str(number).encode()) for number in range(20_000)]
    dealt = [splits.assign_split(item, shares=SHARES, seed=0) for item in digests]
    assert abs(dealt.count("validation") / 20_000 - 0.15) < 0.01
    assert abs(dealt.count("test") / 20_000 - 0.10) < 0.01
    again = [splits.assign_split(item, shares=SHARES, seed=1) for item in digests]
    assert again != dealt


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=40, unique=True))
def test_shard_order_is_a_permutation_that_ignores_the_order_found(items):
    examples = pd.DataFrame({"digest": map(digest, items), "id": [item.hex() for item in items]})
    order = splits.shard_order(examples)
    assert sorted(order) == list(range(len(items)))
    backwards = examples.iloc[::-1]
    again = backwards["id"].iloc[splits.shard_order(backwards)]
    assert examples["id"].iloc[order].tolist() == again.tolist()


def many(most: int) -> st.SearchStrategy:
    return st.lists(st.integers(0, most), min_size=1, max_size=300)


@given(many(2**64 - 1), st.integers(1, 20), st.integers(1, 50_000))
def test_ranges_of_digests_cover_everything_once_in_its_own_part(digests, min_shards, target):
    first = np.sort(np.asarray(digests, np.uint64))
    total = 100 * len(first)
    sizes = [100] * len(first)
    bounds = splits.shard_ranges(first, sizes, target_bytes=target, min_shards=min_shards)
    assert [at for start, stop in bounds for at in range(start, stop)] == [*range(len(first))]
    ranges = next(
        count
        for count in (min_shards, *(1 << power for power in range(30)))
        if count >= min_shards and count * target >= total
    )
    parts = [{int(each) * ranges >> 64 for each in first[start:stop]} for start, stop in bounds]
    assert all(len(part) == 1 for part in parts)
    of_range = Counter(range_ for (range_,) in parts)
    for range_, count in of_range.items():
        examples = sum(int(each) * ranges >> 64 == range_ for each in first)
        assert count == 1 or 100 * examples > 2 * target
    assert all(100 * (stop - start) <= max(100, 2 * target) for start, stop in bounds)


@given(st.sets(st.binary(max_size=8), min_size=1, max_size=60), st.binary(min_size=9, max_size=9))
def test_a_new_example_changes_only_the_shard_that_it_lies_in(old, new):
    def shards(contents):
        digests = sorted(digest(content) for content in contents)
        first = splits.first_of_digests(digests)
        bounds = splits.shard_ranges(first, [1] * len(first), target_bytes=1000, min_shards=7)
        return {tuple(digests[start:stop]) for start, stop in bounds}

    added = shards({*old, new}) - shards(old)
    assert len(added) == 1
    assert digest(new) in added.pop()


def test_equal_contents_do_not_make_one_large_shard():
    first = np.full(1000, 2**40, np.uint64)
    bounds = splits.shard_ranges(first, [10] * 1000, target_bytes=1000, min_shards=4)
    assert [stop - start for start, stop in bounds] == [100] * 10


@given(many(10_000), st.integers(1, 20), st.integers(1, 50_000))
def test_ranges_of_blocks_cover_everything_once(sizes, min_shards, target):
    bounds = splits.block_ranges(sizes, target_bytes=target, min_shards=min_shards)
    assert [at for start, stop in bounds for at in range(start, stop)] == [*range(len(sizes))]
    assert all(stop > start for start, stop in bounds)
    assert len(bounds) >= min(min_shards, len(sizes)) or len(bounds) == len(sizes)


def test_the_last_batch_of_an_epoch_counts():
    assert [splits.count_steps(examples, 32) for examples in (1, 32, 33)] == [1, 1, 2]


def test_all_of_a_tensor_is_in_its_digest_and_a_zero_below_zero_is_the_same_number():
    columns = TableColumns(names=("a", "b"))
    values = np.zeros((3, 2, 2), np.float32)
    values[1, 1, 1], values[2] = 1.0, -0.0
    one, other, same = digest_rows(values, columns)
    assert one != other and one == same


COLUMNS = {"id": ["a", "b"], "digest": ["00", "01"], "label": [0, 1], "split": ["train", "test"]}
EXAMPLES = pd.DataFrame({**COLUMNS, "uri": ["/a", "/b"]})


def digest_of(examples, classes=("x", "y"), columns=TableColumns()) -> str:  # noqa: B008
    schema = labeled(array_feature("numbers", (1,), "float32", columns))
    empty = {"rejected": examples[:0], "stats": {}, "folder": Path()}
    return Manifest(examples=examples, classes=classes, schema=schema, **empty).digest


def test_any_change_of_an_example_a_class_or_a_column_changes_the_digest_and_no_place_does():
    for column in COLUMNS:
        changed = EXAMPLES.assign(**{column: EXAMPLES[column].tolist()[::-1]})
        assert digest_of(changed) != digest_of(EXAMPLES), column
    assert digest_of(EXAMPLES, ("y", "x")) != digest_of(EXAMPLES)
    assert digest_of(EXAMPLES.assign(uri="/elsewhere")) == digest_of(EXAMPLES)
    one, other = (TableColumns(names=("c",), categories=(words,)) for words in (("a",), ("b",)))
    assert digest_of(EXAMPLES, columns=one) != digest_of(EXAMPLES, columns=other)


def test_a_table_with_fewer_rows_than_the_summary_says_is_damaged(arrays, tmp_path):
    shutil.copytree(arrays / "manifest", tmp_path / "manifest")
    table = tmp_path / "manifest" / "examples.parquet"
    pd.read_parquet(table).iloc[:-1].to_parquet(table, index=False)
    said = r"examples.parquet is damaged \(199 rows, but manifest.json says 200\)"
    with pytest.raises(DamagedFile, match=said):
        read_manifest(tmp_path / "manifest")
