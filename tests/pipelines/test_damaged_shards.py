"""Damaged shards are named, repaired or left out, the same in every configuration."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import tensorflow as tf

from tests.support.small_data import flip_bit
from tests.support.small_pipelines import (
    CONFIGS,
    PREPROCESS,
    batches,
    digest_of_all,
    open_snapshot,
    pipeline,
)
from throughline.assembly.inputs import explain_read_errors
from throughline.data.columns.index import map_column
from throughline.data.shards.index import read_shard_index
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.ops import Decode
from throughline.settings import SnapshotSettings
from throughline.shared.errors import CorruptShard

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
    with pytest.raises(CorruptShard, match=f"{first.name}: holds {first.examples} examples, the"):
        take(replace(index, shards=(longer, *others)), arrays / "shards", tmp_path / "snapshot")


def damaged_copy(source, folder, *, records, cut=0):
    """The shards of `source` with a bit flipped in so many records of one training shard, and `cut`
    bytes missing at its end.
    """
    shutil.copytree(source / "shards", folder)
    index = read_shard_index(folder)
    shard = index.for_split("train")[1]
    path = folder / shard.name
    for number in range(records):
        flip_bit(path, number * (shard.bytes // shard.records) + 60)
    path.write_bytes(path.read_bytes()[: shard.bytes - cut])
    return index, path


@pytest.mark.slow
def test_damaged_records_are_left_out_of_every_configuration_where_that_is_wished(
    photos, tmp_path, capsys
):
    index, path = damaged_copy(photos, tmp_path / "shards", records=1, cut=3)
    (tmp_path / "manifest").symlink_to(photos / "manifest")
    skip = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.3, fraction=0.3)
    out = tmp_path / "snapshot"
    snapshot(index, tmp_path / "shards", out, preprocess=PREPROCESS["photos"], settings=skip)
    found = open_snapshot(tmp_path, out, "photos")
    printed = capsys.readouterr().out
    assert f"{path}: record 0 at byte 0" in printed and "2 examples dropped" in printed
    left = index.examples("train") - 2
    assert found.snapshot.splits["train"].count == found.shards.examples("train") == left
    assert found.shards.data_digest != index.data_digest
    repaired = next(shard for shard in found.shards.shards if shard.repaired)
    assert found.find_damage(repaired) == []
    configs = CONFIGS | {"files": {"read": "files"}}
    names = ("naive", "in_memory", "cache_memory", "shards_global", "snapshot_part", "files")
    digest = digest_of_all(
        {name: pipeline({"photos": found}, "photos", **IN_ORDER, **configs[name]) for name in names}
    )
    assert digest.examples == left
    found.shard_files.path(repaired).write_bytes(b"")
    assert f"delete {out / 'repaired'} and run `dvc repro snapshot`" in found.find_damage(repaired)


def test_damaged_records_are_left_out_up_to_a_bound(arrays, stored, tmp_path, capsys):
    index, path = damaged_copy(arrays, tmp_path / "shards", records=2)
    shards, out = tmp_path / "shards", tmp_path / "snapshot"
    written = take(index, shards, out, max_corrupt_fraction=0.02)
    count = written.splits["train"].count
    assert count == index.examples("train") - 2
    assert f"{path}: record 1 at byte" in capsys.readouterr().out
    column = next(column for column in written.columns if column.name == "key")
    kept = {*map_column(out, "train", column, count).tolist()}
    whole = {*stored["arrays"].memmap("train", "key").tolist()}
    assert kept < whole and len(whole - kept) == 2
    repaired = index.with_repaired(written.repaired)
    assert repaired.data_digest != index.data_digest, "what is left is other data"
    said = r"2 of 200 examples .*snapshot.max_corrupt_fraction allows 0.10%"
    with pytest.raises(CorruptShard, match=said):
        take(index, shards, tmp_path / "other", max_corrupt_fraction=0.001)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["vectorized", "shards_global"])
def test_a_damaged_record_met_while_reading_is_named(arrays, stored, tmp_path, name):
    _, path = damaged_copy(arrays, tmp_path / "shards", records=1)
    reading = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    pipe = pipeline({"arrays": reading}, **CONFIGS[name])
    with (
        pytest.raises(CorruptShard, match=f"{path}: record 0 at byte 0"),
        explain_read_errors(reading),
    ):
        batches(pipe)


def test_an_error_that_is_no_damage_stays_what_it_is(arrays, stored, tmp_path):
    damaged_copy(arrays, tmp_path / "shards", records=1)
    damaged = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    # Shards that are not read are not searched for what an op refuses.
    for data, shards in ((stored["arrays"], True), (damaged, False)):
        with (
            pytest.raises(tf.errors.InvalidArgumentError, match="something else"),
            explain_read_errors(data, shards=shards),
        ):
            raise tf.errors.InvalidArgumentError(None, None, "something else")
    with pytest.raises(CorruptShard), explain_read_errors(damaged, shards=False):
        raise tf.errors.DataLossError(None, None, "damage")
