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


def test_a_shard_with_fewer_examples_than_the_index_says_is_refused(arrays, tmp_path):
    index = read_shard_index(arrays / "shards")
    longer = replace(
        index.shards[0], records=index.shards[0].records + 1, examples=index.shards[0].examples + 1
    )
    with pytest.raises(
        CorruptShard,
        match=rf"{longer.name}: holds {longer.examples - 1} examples, the index",
    ):
        snapshot(
            replace(index, shards=(longer, *index.shards[1:])),
            arrays / "shards",
            tmp_path / "snapshot",
            preprocess=(Decode(),),
        )


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


def test_a_damaged_shard_stops_the_snapshot_and_is_named(arrays, tmp_path):
    index, path = damaged_copy(arrays, tmp_path / "shards", records=1)
    with pytest.raises(CorruptShard, match=path.name):
        snapshot(index, tmp_path / "shards", tmp_path / "snapshot", preprocess=(Decode(),))
    assert not (tmp_path / "snapshot").exists()


@pytest.mark.slow
def test_damaged_records_are_left_out_of_every_configuration_where_that_is_wished(
    photos, tmp_path, capsys
):
    index, path = damaged_copy(photos, tmp_path / "shards", records=1, cut=3)
    (tmp_path / "manifest").symlink_to(photos / "manifest")
    skip = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.3)
    out = tmp_path / "snapshot"
    snapshot(index, tmp_path / "shards", out, preprocess=PREPROCESS["photos"], settings=skip)
    found = open_snapshot(tmp_path, out, "photos")
    printed = capsys.readouterr().out
    assert f"{path}: record 0 at byte 0" in printed and "2 examples dropped" in printed
    assert (
        found.snapshot.splits["train"].count
        == found.shards.examples("train")
        == index.examples("train") - 2
    )
    assert found.shards.data_digest != index.data_digest
    repaired = next(shard for shard in found.shards.shards if shard.repaired)
    assert found.find_damage(repaired) == []
    names = ("naive", "in_memory", "cache_memory", "shards_global", "snapshot")
    in_order = {"postprocess": (), "with_keys": True, "in_order": True}
    digest = digest_of_all(
        {
            name: pipeline({"photos": found}, "photos", **in_order, **config)
            for name, config in [
                *((name, CONFIGS[name]) for name in names),
                ("files", {"read": "files"}),
            ]
        }
    )
    assert digest.examples == index.examples("train") - 2
    found.shard_files.path(repaired).write_bytes(b"")
    assert f"delete {out / 'repaired'} and run `dvc repro snapshot`" in found.find_damage(repaired)


def test_damaged_records_are_left_out_up_to_a_bound(arrays, stored, tmp_path, capsys):
    index, path = damaged_copy(arrays, tmp_path / "shards", records=2)
    skip = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.02)
    written = snapshot(
        index, tmp_path / "shards", tmp_path / "snapshot", preprocess=(Decode(),), settings=skip
    )
    assert written.splits["train"].count == index.examples("train") - 2
    assert f"{path}: record 1 at byte" in capsys.readouterr().out
    column = next(column for column in written.columns if column.name == "key")
    kept = set(
        map_column(tmp_path / "snapshot", "train", column, written.splits["train"].count).tolist()
    )
    whole = set(map_column(arrays / "snapshot", "train", column, index.examples("train")).tolist())
    assert kept < whole and len(whole - kept) == 2
    assert index.with_repaired(written.repaired).data_digest != index.data_digest, (
        "what is left is other data"
    )
    too_many = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.001)
    with pytest.raises(
        CorruptShard,
        match=r"2 of 200 examples .*snapshot.max_corrupt_fraction allows 0.10%",
    ):
        snapshot(
            index,
            tmp_path / "shards",
            tmp_path / "other",
            preprocess=(Decode(),),
            settings=too_many,
        )
    assert not (tmp_path / "other").exists()


def test_a_damaged_record_met_while_streaming_is_named(arrays, stored, tmp_path):
    _, path = damaged_copy(arrays, tmp_path / "shards", records=1)
    reading = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    pipe = pipeline({"arrays": reading}, **CONFIGS["vectorized"])
    with (
        pytest.raises(CorruptShard, match=f"{path}: record 0 at byte 0"),
        explain_read_errors(reading),
    ):
        list(pipe.dataset())


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
