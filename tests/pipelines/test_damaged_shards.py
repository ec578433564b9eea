"""Damaged shards are named, repaired or left out, the same in every configuration."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import tensorflow as tf
from small_pipelines import CONFIGS, PREPROCESS, pipeline

from throughline.assembly.inputs import explain_read_errors
from throughline.data.columns.index import map_column
from throughline.data.shards.index import read_shard_index
from throughline.measurement.equality import digest_examples
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.ops import Decode
from throughline.settings import SnapshotSettings
from throughline.shared.errors import CorruptShard

pytestmark = pytest.mark.integration

SKIP = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.3)


def test_a_shard_with_fewer_examples_than_the_index_says_is_refused(arrays, tmp_path):
    index = read_shard_index(arrays / "shards")
    longer = replace(
        index.shards[0], records=index.shards[0].records + 1, examples=index.shards[0].examples + 1
    )
    with pytest.raises(
        CorruptShard,
        match=(
            rf"{longer.name}: holds {longer.examples - 1} examples, the index says"
            rf" {longer.examples}"
        ),
    ):
        snapshot(
            replace(index, shards=(longer, *index.shards[1:])),
            arrays / "shards",
            tmp_path / "snapshot",
            preprocess=(Decode(),),
        )


def test_a_damaged_shard_stops_the_snapshot_and_is_named(arrays, tmp_path):
    shutil.copytree(arrays / "shards", tmp_path / "shards")
    index = read_shard_index(tmp_path / "shards")
    path = tmp_path / "shards" / index.shards[1].name
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShard, match=path.name):
        snapshot(index, tmp_path / "shards", tmp_path / "snapshot", preprocess=(Decode(),))
    assert not (tmp_path / "snapshot").exists()


def damaged_copy(source, folder, *, records, cut=0):
    """The shards of `source` with a bit flipped in so many records of one training shard, and `cut`
    bytes missing at its end.
    """
    shutil.copytree(source / "shards", folder)
    index = read_shard_index(folder)
    shard = index.for_split("train")[1]
    path = folder / shard.name
    data, size = bytearray(path.read_bytes()), shard.bytes // shard.records
    for number in range(records):
        data[number * size + 60] ^= 1
    path.write_bytes(data[: shard.bytes - cut])
    return index, path


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["arrays", "photos"])
def test_damaged_records_are_left_out_of_every_configuration_where_that_is_wished(
    arrays, photos, stored, service, kind, tmp_path, capsys
):
    source = {"arrays": arrays, "photos": photos}[kind]
    index, path = damaged_copy(source, tmp_path / "shards", records=1, cut=3)
    written = snapshot(
        index,
        tmp_path / "shards",
        tmp_path / "snapshot",
        preprocess=PREPROCESS[kind],
        settings=SKIP,
    )
    printed = capsys.readouterr().out
    assert f"{path}: record 0 at byte 0" in printed and "2 examples dropped" in printed
    found = open_prepared_data(
        manifest=source / "manifest",
        shards=tmp_path / "shards",
        snapshot=tmp_path / "snapshot",
        preprocess=PREPROCESS[kind],
    )
    assert (
        written.splits["train"].count
        == found.shards.examples("train")
        == index.examples("train") - 2
    )
    assert found.shards.data_digest != index.data_digest
    repaired = next(shard for shard in found.shards.shards if shard.repaired)
    assert found.find_damage(repaired) == []
    configs = {
        name: CONFIGS[name]
        for name in (
            "naive",
            "in_memory",
            "cache_memory",
            "service",
            "shards_global",
            "snapshot",
        )
    }
    configs |= {"files": {"read": "files"}} if kind == "photos" else {}
    digests = {
        name: digest_examples(
            pipeline(
                {kind: found},
                kind,
                postprocess=(),
                with_keys=True,
                in_order=True,
                address=service,
                **config,
            )
        )
        for name, config in configs.items()
    }
    assert len({item.digest for item in digests.values()}) == 1, digests
    assert {item.examples for item in digests.values()} == {index.examples("train") - 2}
    found.path(repaired).write_bytes(b"")
    assert (
        f"delete {tmp_path / 'snapshot' / 'repaired'} and run `dvc repro snapshot`"
        in found.find_damage(repaired)
    )


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
        match=(
            r"2 of 200 examples cannot be read, 1.00%; snapshot.max_corrupt_fraction allows 0.10%"
        ),
    ):
        snapshot(
            index,
            tmp_path / "shards",
            tmp_path / "other",
            preprocess=(Decode(),),
            settings=too_many,
        )
    assert not (tmp_path / "other").exists()


def test_a_whole_shard_of_other_data_is_no_damage_to_be_mended(arrays, tmp_path):
    index, path = damaged_copy(arrays, tmp_path / "shards", records=0)
    path.write_bytes((tmp_path / "shards" / index.for_split("train")[2].name).read_bytes())
    with pytest.raises(
        CorruptShard,
        match=(
            rf"{path.name}: has \d+ readable records, but its digest does not match index.json;"
            r" delete"
        ),
    ):
        snapshot(
            index, tmp_path / "shards", tmp_path / "snapshot", preprocess=(Decode(),), settings=SKIP
        )


def test_a_damaged_record_met_while_streaming_is_named(arrays, stored, tmp_path):
    _, path = damaged_copy(arrays, tmp_path / "shards", records=1)
    reading = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    pipe = pipeline({"arrays": reading}, **CONFIGS["vectorized"])
    with (
        pytest.raises(
            CorruptShard,
            match=f"{path}: record 0 at byte 0: the checksum of the data does not match",
        ),
        explain_read_errors(reading),
    ):
        list(pipe.dataset())


def test_shards_that_are_not_read_are_not_searched_for_what_an_op_refuses(arrays, stored, tmp_path):
    damaged_copy(arrays, tmp_path / "shards", records=1)
    data = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="something else"),
        explain_read_errors(data, shards=False),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "something else")
    with pytest.raises(CorruptShard), explain_read_errors(data, shards=False):
        raise tf.errors.DataLossError(None, None, "damage")


def test_an_error_that_is_no_damage_stays_what_it_is(stored):
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="something else"),
        explain_read_errors(stored["arrays"]),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "something else")
