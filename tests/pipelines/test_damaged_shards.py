"""Rows that are read from shards by number: damaged ones, and those that no snapshot stores."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import snapshot
from tests.support.small_data import flip_bit
from tests.support.small_pipelines import (
    CONFIGS,
    GLOBAL,
    batches,
    digest_of_all,
    pipeline,
    prepare_snapshot,
    same,
)
from throughline.assembly.inputs import explain_read_errors
from throughline.data.columns.index import column_path, count_stored, read_index, verify
from throughline.data.shards.index import read_shard_index
from throughline.plan.augmentations import Brightness, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop, Decode
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import SnapshotSettings
from throughline.shared.errors import CorruptColumn, CorruptShard, MissingInput, StaleSnapshot

pytestmark = pytest.mark.integration

IN_ORDER = {"postprocess": (), "with_keys": True, "in_order": True}


def take(index, shards, out, **skip):
    """A snapshot of arrays; `skip` is what share of damaged examples may be left out."""
    settings = SnapshotSettings(on_corrupt="skip" if skip else "fail", **skip)
    return snapshot(index, shards, out, preprocess=(Decode(),), settings=settings)


def test_a_shard_with_fewer_examples_than_the_index_says_is_refused(arrays, tmp_path):
    index = read_shard_index(arrays / "shards")
    first, *others = index.shards
    longer = replace(first, records=first.records + 1, examples=first.examples + 1)
    with pytest.raises(CorruptShard, match=f"{first.name}: holds {first.examples} examples, but"):
        take(replace(index, shards=(longer, *others)), arrays / "shards", tmp_path / "snapshot")


def damaged_copy(source, folder, *, records, cut=0):
    """Shards with a flipped bit in so many records of one, and `cut` bytes missing at its end."""
    shutil.copytree(source / "shards", folder)
    index = read_shard_index(folder)
    shard = index.for_split("train")[1]
    path = folder / shard.name
    for number in range(records):
        flip_bit(path, number * (shard.bytes // shard.records) + 60)
    path.write_bytes(path.read_bytes()[: shard.bytes - cut])
    return index, path


@pytest.mark.slow
def test_damaged_records_are_left_out_of_every_configuration_if_wished(photos, tmp_path, capsys):
    index, path = damaged_copy(photos, tmp_path / "shards", records=1, cut=3)
    (tmp_path / "manifest").symlink_to(photos / "manifest")
    out, skip = tmp_path / "snapshot", {"on_corrupt": "skip", "max_corrupt_fraction": 0.3}
    found = prepare_snapshot(tmp_path, out, "photos", fraction=0.3, **skip)
    printed = capsys.readouterr().out
    assert f"{path}: record 0 at byte 0" in printed and "examples dropped: 2" in printed
    left = index.examples("train") - 2
    assert found.snapshot.splits["train"].count == found.shards.examples("train") == left
    assert found.shards.data_digest != index.data_digest
    repaired = next(shard for shard in found.shards.shards if shard.repaired)
    assert found.find_damage(repaired) == []
    names = ("naive", "in_memory", "cache_memory", "shards_global", "snapshot_part")
    configs = [{"read": "files"}, *(CONFIGS[name] for name in names)]
    opened = [pipeline({"photos": found}, "photos", **IN_ORDER, **one) for one in configs]
    assert digest_of_all(dict(enumerate(opened))).examples == left
    found.shard_files.path(repaired).write_bytes(b"")
    assert f"delete {out / 'repaired'} and run `dvc repro snapshot`" in found.find_damage(repaired)


def test_damaged_records_are_left_out_up_to_a_bound(arrays, stored, tmp_path, capsys):
    index, path = damaged_copy(arrays, tmp_path / "shards", records=2)
    shards, out = tmp_path / "shards", tmp_path / "snapshot"
    written = take(index, shards, out, max_corrupt_fraction=0.02)
    assert f"{path}: record 1 at byte" in capsys.readouterr().out
    kept = {*np.fromfile(column_path(out, "train", "key"), np.int64)}
    whole = {*stored["arrays"].memmap("train", "key")}
    assert kept < whole and written.splits["train"].count == len(kept) == len(whole) - 2
    repaired = index.with_repaired(written.repaired)
    assert repaired.data_digest != index.data_digest, "what is left is other data"
    said = r"2 of 200 examples .*snapshot.max_corrupt_fraction allows 0.10%"
    with pytest.raises(CorruptShard, match=said):
        take(index, shards, tmp_path / "other", max_corrupt_fraction=0.001)
    assert not (tmp_path / "other").exists()


def test_damage_met_while_reading_is_named_and_another_error_stays_what_it_is(
    arrays, stored, tmp_path
):
    _, path = damaged_copy(arrays, tmp_path / "shards", records=1)
    damaged = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    for name in ("vectorized", "shards_global"):
        named = pytest.raises(CorruptShard, match=f"{path}: record 0 at byte 0")
        with named, explain_read_errors(damaged):
            batches(pipeline({"arrays": damaged}, **CONFIGS[name]))
    # Shards that are not read are not searched for what an op refuses.
    for data, shards in ((stored["arrays"], True), (damaged, False)):
        unchanged = pytest.raises(tf.errors.InvalidArgumentError, match="something else")
        with unchanged, explain_read_errors(data, shards=shards):
            raise tf.errors.InvalidArgumentError(None, None, "something else")
    with pytest.raises(CorruptShard), explain_read_errors(damaged, shards=False):
        raise tf.errors.DataLossError(None, None, "damage")


def reading(snapshot_of, kind, *, fraction=1.0, stored=None, **more):
    """What reads this fraction of a snapshot, which stores that or more, or its shards."""
    data = snapshot_of(kind, fraction if stored is None else stored)
    config = {"augment": (Flip(), Brightness()), "shuffle": GLOBAL, "read": "snapshot", **more}
    part = {"snapshot": {"fraction": fraction}} if config["read"] == "snapshot" else {}
    return pipeline({kind: data}, kind, **part, **config)


CROP = (Brightness(), RandomCrop(height=20, width=24))  # which a fetch cannot do
PART, NOTHING = {"fraction": 0.3}, {"fraction": 0.0}
INDEXED = {"read": "indexed_shards", "vectorize": True}
READ = [
    ("arrays", INDEXED | {"prefetch": 2}, {}),
    ("arrays", PART | {"map": {"parallel": 2}, "prefetch": 2}, {}),
    ("arrays", NOTHING | {"map": {"parallel": 2}, "prefetch": 2}, {}),
    ("arrays", PART | {"stored": 1.0}, {}),  # a part may be read of what is stored
    ("photos", PART, {"sampling": "balanced"}),
    ("photos", PART | {"graph_rewrites": True, "map": {"parallel": "auto"}}, {}),
    ("photos", PART, {"worker": TrainingWorker(index=1, count=2)}),
    ("unlike", PART, {"augment": CROP}),
    ("unlike", NOTHING, {"augment": (CenterCrop(height=27, width=34),)}),
    ("photos", {"read": "indexed_shards", "map": {"parallel": 2}}, {}),
    ("arrays", INDEXED | {"graph_rewrites": True, "map": {"parallel": "auto"}}, {}),
    ("arrays", INDEXED, {"shuffle": {"kind": "lanes", "lanes": 4}}),
    ("arrays", INDEXED, {"shuffle": {"kind": "window", "size": 32}}),
    ("arrays", INDEXED, {"sampling": "balanced"}),
    ("arrays", INDEXED, {"worker": TrainingWorker(index=2, count=3), "batch_size": 9}),
]


@pytest.mark.parametrize(("kind", "config", "both"), slow_but_first(READ))
def test_the_batches_are_those_of_a_whole_snapshot_from_any_step(snapshot_of, kind, config, both):
    """Of a part of the rows, and of uncompressed shards in any order."""
    whole, found = (reading(snapshot_of, kind, **more, **both) for more in ({}, config))
    assert whole.plan.reads_whole_snapshot and found.plan.seekable
    if "fraction" in config:
        assert found.reader.stored == count_stored(found.examples, config["fraction"])
    else:
        assert not found.plan.reads_snapshot
        assert "sampling" in both or whole.reader.order == found.order
    expected = batches(whole, epochs=2)
    for step in (0, found.steps_per_epoch + 1):
        assert same(batches(found, first_step=step, epochs=2), expected[step:]), step
        assert found.dataset(first_step=step, epochs=2).cardinality() == len(expected) - step


@pytest.mark.slow
@pytest.mark.parametrize("split", slow_but_first(["train", "validation", "test"]))
def test_every_split_has_the_same_examples_whatever_is_stored(snapshot_of, split):
    crop = RandomResizedCrop(height=20, width=24).in_evaluation()
    more = {"augment": (crop,), "split": split, **IN_ORDER}
    fractions = (0.0, 0.3, 1.0)
    digest_of_all({one: reading(snapshot_of, "unlike", fraction=one, **more) for one in fractions})


@pytest.mark.parametrize("kind", slow_but_first(["unlike", "photos"]))
def test_values_of_the_first_rows_are_stored_and_all_labels_keys_and_statistics(snapshot_of, kind):
    whole, part, none = (snapshot_of(kind, fraction) for fraction in (1.0, 0.3, 0.0))
    for split, rows in part.snapshot.splits.items():
        stored = count_stored(rows.count, 0.3)
        assert 0 < rows.rows(part.input_column) == stored == part.find_rows(split, 0.3) < rows.count
        for name, read in (("label", None), ("key", None), ("image", stored)):
            expected = whole.memmap(split, name, rows=read)
            np.testing.assert_array_equal(part.memmap(split, name), expected)
        path = column_path(none.snapshot_folder, split, "image")
        assert (path.stat().st_size, none.find_rows(split, 0.0)) == (0, 0)
    assert part.snapshot.statistics == whole.snapshot.statistics
    assert part.snapshot.key == whole.snapshot.key
    for data in (part, none):
        verify(data.snapshot_folder, read_index(data.snapshot_folder))


def test_damage_of_a_part_is_found(snapshot_of, tmp_path):
    data = snapshot_of("unlike", 0.3)
    shutil.copytree(data.snapshot_folder, tmp_path / "snapshot")
    path = column_path(tmp_path / "snapshot", "train", "image")
    flip_bit(path, -100)
    with pytest.raises(CorruptColumn, match=r"image.bin: chunk of rows"):
        verify(tmp_path / "snapshot", data.snapshot)
    content = path.read_bytes()
    path.write_bytes(content[:-64])
    with pytest.raises(CorruptColumn, match=f" bytes, not {len(content)};"):
        read_index(tmp_path / "snapshot")


def test_what_is_read_has_to_be_stored(snapshot_of):
    said = r"stores \d+ of the \d+ rows.*run `dvc repro snapshot`"
    with pytest.raises(StaleSnapshot, match=said):
        batches(reading(snapshot_of, "arrays", fraction=0.5, stored=0.3))


def test_without_uncompressed_shards_it_is_said(snapshot_of):
    data = snapshot_of("arrays")
    packed = tuple(replace(shard, compression="gzip") for shard in data.shards.shards)
    unindexed = {"arrays": replace(data, shards=replace(data.shards, shards=packed))}
    with pytest.raises(MissingInput, match=r"holds no uncompressed shards; set shard\.compression"):
        pipeline(unindexed, **INDEXED, shuffle=GLOBAL).dataset()
