"""Splits, shards and their ranges, order and repair; columns, and the statistics of values."""

import hashlib
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.csv_tables import write
from tests.support.prepared_files import index_of, write_columns, write_shard
from tests.support.small_data import flip_bit, prepared, read_files
from throughline.data import splits
from throughline.data.columns import index as stored
from throughline.data.columns import ragged
from throughline.data.columns.channel_stats import Moments, compute_moments, merge_moments
from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import labeled
from throughline.data.manifest import Manifest, digest_rows, read_manifest
from throughline.data.shards import writing
from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard, read_shard_index
from throughline.data.shards.repair import Damage, find_damaged_shards, repair_shards
from throughline.data.shards.tfrecord import read_records
from throughline.data.shards.writing import shard
from throughline.plan.schema import Schema, TableColumns
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.errors import (
    CorruptColumn,
    CorruptShard,
    DamagedFile,
    DataNotFound,
    ImpossiblePlan,
    MissingInput,
    StaleSnapshot,
)
from throughline.shared.files import digest_blake3

SHARES = {"validation": 0.15, "test": 0.1}
contents = st.lists(st.binary(max_size=8), min_size=1, max_size=60)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content).hexdigest()


@given(contents, contents, st.integers(0, 5))
def test_adding_data_never_moves_an_example(old, new, seed):
    def assign(contents):
        return {one: splits.assign_split(digest(one), shares=SHARES, seed=seed) for one in contents}

    assert assign(old).items() <= assign(old + new).items()


def test_shares_are_kept_and_seeds_deal_differently():
    digests = [digest(str(number).encode()) for number in range(20_000)]
    dealt, again = (
        [splits.assign_split(item, shares=SHARES, seed=seed) for item in digests] for seed in (0, 1)
    )
    for split, share in SHARES.items():
        assert abs(dealt.count(split) / 20_000 - share) < 0.01
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
    sizes = [100] * len(first)
    bounds = splits.shard_ranges(first, sizes, target_bytes=target, min_shards=min_shards)
    assert [at for start, stop in bounds for at in range(start, stop)] == [*range(len(first))]
    counts = (min_shards, *(1 << power for power in range(30)))
    ranges = next(one for one in counts if one >= min_shards and one * target >= sum(sizes))
    range_of = [int(each) * ranges >> 64 for each in first]
    parts = [{*range_of[start:stop]} for start, stop in bounds]
    assert all(len(part) == 1 for part in parts)
    for range_, count in Counter(range_ for (range_,) in parts).items():
        assert count == 1 or 100 * range_of.count(range_) > 2 * target
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


def test_any_change_of_an_example_a_class_or_a_column_changes_the_digest_and_no_place_does():
    rows = {"id": ["a", "b"], "digest": ["00", "01"], "label": [0, 1], "split": ["train", "test"]}

    def digest_of(classes=("x", "y"), words=("a",), **changed):
        columns = TableColumns(names=("c",), categories=(words,))
        schema = labeled(array_feature("numbers", (1,), "float32", columns))
        examples = pd.DataFrame({**rows, "uri": ["/a", "/b"], **changed})
        empty = {"rejected": examples[:0], "stats": {}, "folder": Path()}
        return Manifest(examples=examples, classes=classes, schema=schema, **empty).digest

    changes = [{name: cells[::-1]} for name, cells in rows.items()]
    changes += [{}, {"classes": ("y", "x")}, {"words": ("b",)}]
    assert len({digest_of(**change) for change in changes}) == len(changes)
    assert digest_of(uri=["/c", "/d"]) == digest_of()


def test_a_table_with_fewer_rows_than_the_summary_says_is_damaged(arrays, tmp_path):
    shutil.copytree(arrays / "manifest", tmp_path / "manifest")
    table = tmp_path / "manifest" / "examples.parquet"
    pd.read_parquet(table).iloc[:-1].to_parquet(table, index=False)
    said = r"examples.parquet is damaged \(199 rows, but manifest.json says 200\)"
    with pytest.raises(DamagedFile, match=said):
        read_manifest(tmp_path / "manifest")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_shards_are_the_same_by_any_writers_and_blocks(arrays, tmp_path, monkeypatch, compression):
    manifest = read_manifest(arrays / "manifest")
    for writers, block in ((1, writing.BLOCK_BYTES), (3, writing.BLOCK_BYTES), (1, 1000)):
        monkeypatch.setattr(writing, "BLOCK_BYTES", block)  # 1000: a few records
        settings = ShardSettings(min_shards=4, writers=writers, compression=compression)
        shard(manifest, tmp_path / f"{writers} {block}", settings=settings)
    one, *others = (read_files(folder) for folder in tmp_path.iterdir())
    assert others == [one, one]


@pytest.mark.parametrize("other_data", [False, True])
def test_an_interrupted_run_goes_on_unless_data_differ(arrays, tmp_path, monkeypatch, other_data):
    def write(manifest, folder):
        shard(manifest, tmp_path / folder, settings=ShardSettings(min_shards=4, writers=1))
        return read_files(tmp_path / folder)

    def interrupt(*_):
        raise KeyboardInterrupt

    manifest = read_manifest(arrays / "manifest")
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(writing, "write_shard_index", interrupt)
        write(manifest, "shards")
    assert not (tmp_path / "shards").exists()
    (partial,) = tmp_path.glob("shards.*.partial")
    first, second, *_ = sorted(partial.glob("*.tfrecord"))
    os.utime(first, (1, 1))
    second.unlink()
    if other_data:
        labels = 3 - manifest.examples["label"]
        manifest = replace(manifest, examples=manifest.examples.assign(label=labels))
    assert write(manifest, "shards") == write(manifest, "fresh")
    assert ((tmp_path / "shards" / first.name).stat().st_mtime == 1) == (not other_data)


def test_a_file_that_vanished_or_changed_since_ingest_is_named(photos, tmp_path):
    manifest = read_manifest(photos / "manifest")
    manifest.examples.loc[0, "uri"] = str(tmp_path / "gone.jpg")
    with pytest.raises(DataNotFound, match=r"gone\.jpg"):
        shard(manifest, tmp_path / "again", settings=ShardSettings(writers=1))
    changed = tmp_path / "changed.jpg"
    changed.write_bytes(b"\xff\xd8 another photo")
    manifest.examples.loc[0, "uri"] = str(changed)
    with pytest.raises(DataNotFound, match=r"changed\.jpg .* has another size than at ingest"):
        shard(manifest, tmp_path / "again", settings=ShardSettings(writers=3))
    assert not (tmp_path / "again").exists()


def test_texts_that_changed_since_ingest_are_named(tmp_path):
    path = write(tmp_path, "text,label", [[f"text {n}", "ab"[n % 2]] for n in range(40)])
    folder = prepared(DataSettings(source="text_table", path=str(path)), tmp_path) / "manifest"
    texts = folder / "documents.bin"
    texts.write_bytes(texts.read_bytes()[::-1])
    manifest = read_manifest(folder)
    with pytest.raises(DamagedFile, match=r"documents\.bin has other contents than ingest wrote"):
        shard(manifest, tmp_path / "again", settings=ShardSettings(writers=1))


def test_a_set_with_missing_foreign_or_short_members_is_refused(arrays, tmp_path):
    manifest, folder = read_manifest(arrays / "manifest"), tmp_path / "shards"
    index = shard(manifest, folder, settings=ShardSettings(min_shards=2, writers=1))
    files = ShardFiles(folder=folder)
    path, *others = map(files.path, index.shards)
    data = path.read_bytes()
    for other in (data[:-1], data + b"\0"):
        path.write_bytes(other)
        with pytest.raises(CorruptShard, match=f"bytes, not {len(data)};"):
            files.check(index)
    path.unlink()
    with pytest.raises(CorruptShard, match="is missing"):
        files.check(index, sizes=False)
    for other in others:
        other.unlink()
    with pytest.raises(MissingInput, match=r"only the index.*set storage.url"):
        files.check(index)
    (folder / "train-00009-of-00009.tfrecord").write_bytes(data)
    with pytest.raises(CorruptShard, match="is not in the index"):
        read_shard_index(folder)
    listed = folder / "index.json"
    listed.write_text(listed.read_text().replace('"records"', '"rows"'))
    said = r"index.json was written by another version .*records.*; run `dvc repro shard`"
    with pytest.raises(MissingInput, match=said):
        read_shard_index(folder)
    with pytest.raises(MissingInput):
        read_shard_index(tmp_path / "nowhere")


RECORDS = [b"first", b"second", b"third", b"fourth"]
SECOND_AT = 12 + len(b"first") + 4  # a record has 12 bytes before and 4 after its data


@pytest.fixture
def files(tmp_path) -> ShardFiles:
    """Of shards in a folder, with what is repaired in its `out`."""
    return ShardFiles(folder=tmp_path, snapshot_folder=tmp_path / "out")


@pytest.fixture
def plain(tmp_path) -> Shard:
    """An uncompressed shard of four records, of which the second one's data is damaged."""
    shard = write_shard(tmp_path / "train-0.tfrecord", RECORDS)
    flip_bit(tmp_path / shard.name, SECOND_AT + 12)
    return shard


def repair(shard: Shard, files: ShardFiles, *, most=1.0, schema=None, **unusable: str):
    """Write a damaged shard again, with what of it can be used; where it is, and what it has."""
    index = index_of(shard, shape=(5,))
    index = replace(index, schema=schema or index.schema)
    problems = {shard.name: ["no image"]} if unusable else find_damaged_shards(index, files)
    damage = Damage(problems=problems, unusable=unusable)
    out = files.folder / "out"
    (repaired,) = repair_shards(index, files, damage, out, max_lost_fraction=most)
    path = files.path(repaired)
    return repaired, path, list(read_records(path, compression=shard.compression))


def test_damaged_shards_are_found_and_what_can_be_read_is_written_and_counted(plain, files):
    whole = write_shard(files.folder / "train-1.tfrecord", RECORDS)
    problems = find_damaged_shards(index_of(plain, whole, shape=(5,)), files)
    said = f"record 1 at byte {SECOND_AT}: the checksum of the data does not match"
    assert problems == {plain.name: [f"{files.folder / plain.name}: {said}"]}
    repaired, path, records = repair(plain, files, most=0.25)
    assert path == files.folder / "out" / REPAIRED / plain.name
    assert files.path(plain) == files.folder / plain.name
    assert records == [b"first", b"third", b"fourth"]
    assert (repaired.records, repaired.examples, repaired.repaired) == (3, 3, True)


def test_records_that_cannot_be_decoded_are_left_out_by_their_digests(files):
    shard = write_shard(files.folder / "train-0.tfrecord.gz", RECORDS, compression="gzip")
    *_, records = repair(shard, files, **{digest_blake3(b"second"): "no"})
    assert records == [b"first", b"third", b"fourth"]


def test_what_must_not_be_repaired_is_refused(plain, files):
    said = r"1 of 4 examples cannot be read, 25\.00%; .* allows 24\.00%; .*dvc repro"
    with pytest.raises(CorruptShard, match=said):
        repair(plain, files, most=0.24)
    series = Schema(features=(array_feature("series", (1,), "float32"),))
    with pytest.raises(CorruptShard, match="a time series must not have gaps"):
        repair(plain, files, schema=series)
    whole = write_shard(files.folder / "train-0.tfrecord", RECORDS)
    with pytest.raises(CorruptShard, match=r"4 readable records, but its digest does not match"):
        repair(replace(whole, digest="of another file"), files)


COLUMNS = (
    stored.Column(name="image", dtype="uint8", shape=(3, 2, 1)),
    stored.Column(name="label", dtype="int64", shape=()),
)
VALUES = {"image": np.arange(60, dtype=np.uint8).reshape(10, 3, 2, 1), "label": np.arange(10)}


def test_rows_come_back_and_whoever_changes_them_does_so_for_himself_alone(tmp_path):
    write_columns(tmp_path, COLUMNS, VALUES, rows=5)
    index = stored.read_index(tmp_path, key="k")
    for column in index.columns:
        stored.map_column(tmp_path, "train", column, 10)[:] = 0
        found = stored.map_column(tmp_path, "train", column, 10)
        np.testing.assert_array_equal(found, VALUES[column.name])
    stored.verify(tmp_path, index)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.zeros(10, np.float32), r"made label float32 of shape \(\), .* stores int64"),
        (np.zeros((10, 4), np.int64), r"made label int64 of shape \(4,\), "),
    ],
)
def test_values_that_a_column_would_cut_are_refused(label, said, tmp_path):
    with pytest.raises(ImpossiblePlan, match=said):
        stored.write_rows(tmp_path, "train", COLUMNS, start=0, values={**VALUES, "label": label})


def test_another_key_a_flipped_bit_and_a_short_or_missing_column_are_found_and_named(tmp_path):
    write_columns(tmp_path, COLUMNS, VALUES, rows=5)
    with pytest.raises(StaleSnapshot, match="dvc repro snapshot"):
        stored.read_index(tmp_path, key="other")
    with pytest.raises(MissingInput):
        stored.read_index(tmp_path / "nowhere")
    flip_bit(stored.column_path(tmp_path, "train", "image"), 40)
    with pytest.raises(CorruptColumn, match=r"image.bin: chunk of rows 5 to 9 does not match"):
        stored.verify(tmp_path, stored.read_index(tmp_path))
    path = stored.column_path(tmp_path, "train", "label")
    os.truncate(path, 72)
    with pytest.raises(CorruptColumn, match="has 72 bytes, not 80;"):
        stored.read_index(tmp_path)
    path.unlink()
    with pytest.raises(CorruptColumn, match="is missing"):
        stored.read_index(tmp_path)


def test_a_column_without_bytes_is_empty(tmp_path):
    for shape, count, mapped in (((3,), 0, (0, 3)), ((0,), 4, (4, 0)), ((None,), 4, (0,))):
        column = stored.Column(name=f"of {shape}", dtype="float32", shape=shape)
        stored.allocate(tmp_path, "train", (column,), count)
        stored.column_path(tmp_path, "train", column.name).touch()
        array = stored.map_column(tmp_path, "train", column, count)
        assert (array.shape, array.dtype) == (mapped, np.float32)


SHAPES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 3)), max_size=12)


@pytest.mark.integration
@given(SHAPES, st.sampled_from(["uint8", "float32", "int64"]), st.sampled_from([1, 3]))
@settings(max_examples=60)
def test_values_are_found_where_their_extents_say_and_tokens_have_no_gaps(sizes, dtype, rank):
    shapes = np.asarray(sizes, np.int64).reshape(-1, 3)[:, :rank]
    draw, itemsize = np.random.default_rng(0), np.dtype(dtype).itemsize
    values = [draw.integers(0, 100, shape).astype(dtype) for shape in shapes]
    data = ragged.pack(values)
    offsets = ragged.compute_offsets(shapes, itemsize)
    assert ragged.end_offset(offsets, itemsize) == len(data)
    flat = np.frombuffer(data, dtype)
    assert rank > 1 or len(flat) == shapes.sum()
    for value, (begin, *shape) in zip(values, offsets.tolist(), strict=True):
        assert rank == 1 or begin * itemsize % ragged.ALIGNMENT == 0
        np.testing.assert_array_equal(flat[begin : begin + value.size].reshape(shape), value)


def test_parts_are_joined_in_their_order_and_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(ragged, "COPY_BYTES", 4)
    contents = [b"first", b"", b"a second one"]
    parts = [tmp_path / str(number) for number in range(len(contents))]
    for part, content in zip(parts, contents, strict=True):
        part.write_bytes(content)
    for _ in range(2):
        ragged.concatenate_parts(parts, tmp_path / "whole")
        assert (tmp_path / "whole").read_bytes() == b"".join(contents)
    assert all(part.exists() for part in parts)


@pytest.mark.parametrize("cuts", [[], [1], [3], [1, 2, 3]])
def test_pieces_of_any_size_give_the_statistics_of_the_whole(cuts):
    values = 1e9 + np.array([[1.0], [2.0], [3.0], [6.0]])
    merged = merge_moments(compute_moments(part) for part in np.split(values, cuts))
    assert merged.mean[0] - 1e9 == pytest.approx(3)
    assert merged.deviation == pytest.approx((3.5**0.5,)), "it is not lost in large values"


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_moments_are_of_each_channel(dtype):
    pixels = np.array([[[0, 10]], [[2, 10]], [[4, 40]]], dtype)  # three images of one pixel
    expected = Moments(count=3, mean=(2.0, 20.0), sum_sq_dev=(8.0, 600.0))
    assert compute_moments(pixels) == expected
