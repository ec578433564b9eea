"""A record that can be read but not decoded is named with its example, and left out of every
configuration where that is wished.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from throughline.data.columns.index import map_column
from throughline.data.columns.stored import Destination
from throughline.data.manifest import read_manifest, write_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import Decode, Resize
from throughline.settings import ShardSettings, SnapshotSettings
from throughline.shared.errors import CorruptShard
from throughline.shared.files import digest_blake2b

pytestmark = pytest.mark.integration

PREPROCESS = (Decode(), Resize(height=8, width=8))
SKIP = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.1)


@pytest.fixture
def damaged(photos, tmp_path):
    """Manifest and shards of which two training examples cannot be decoded, as a decoder of another
    version might find.
    """
    manifest = read_manifest(photos / "manifest")
    examples = manifest.examples.copy()
    victims = examples[examples["split"] == "train"]["id"].tolist()[:2]
    for number, row in examples[examples["id"].isin(victims)].iterrows():
        data = Path(row["uri"]).read_bytes()[:200] + b"\xff\xd9"
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        examples.loc[number, ["uri", "bytes", "digest"]] = [
            str(path),
            len(data),
            digest_blake2b(data),
        ]
    (tmp_path / "manifest").mkdir()
    manifest = replace(manifest, examples=examples, folder=tmp_path / "manifest")
    write_manifest(manifest)
    shard(
        manifest,
        tmp_path / "shards",
        settings=ShardSettings(min_shards=3, writers=1),
    )
    return manifest, victims


def take(folder, manifest, settings):
    names = dict(zip(manifest.examples["key"], manifest.examples["id"], strict=True))
    return write_snapshot(
        read_shard_index(folder / "shards"),
        ShardFiles(folder=folder / "shards"),
        Destination(folder=folder / "snapshot"),
        preprocess=PREPROCESS,
        settings=settings,
        names=lambda: names,
    ).index


def test_the_example_of_a_record_that_cannot_be_decoded_is_named(damaged, tmp_path):
    manifest, victims = damaged
    with pytest.raises(
        CorruptShard,
        match=r"train-0000.*: record \d+ \(example .*\) cannot be decoded: .*; remove the file",
    ) as caught:
        take(tmp_path, manifest, SnapshotSettings())
    assert any(f"(example {victim})" in str(caught.value) for victim in victims)
    assert not (tmp_path / "snapshot").exists()


def test_records_that_cannot_be_decoded_are_left_out_where_that_is_wished(
    damaged, tmp_path, capsys
):
    manifest, victims = damaged
    index = take(tmp_path, manifest, SKIP)
    said = capsys.readouterr().out
    assert (
        all(f"(example {victim}) cannot be decoded" in said for victim in victims)
        and "2 examples dropped" in said
    )
    stored = open_prepared_data(
        manifest=tmp_path / "manifest",
        shards=tmp_path / "shards",
        snapshot=tmp_path / "snapshot",
        preprocess=PREPROCESS,
    )
    expected = set(manifest.for_split("train")["key"]) - set(
        manifest.examples[manifest.examples["id"].isin(victims)]["key"]
    )
    column = next(column for column in index.columns if column.name == "key")
    assert (
        set(
            map_column(tmp_path / "snapshot", "train", column, index.splits["train"].count).tolist()
        )
        == expected
    )
    assert set(stored.files("train").keys) == expected
    assert stored.shards.examples("train") == len(expected) and not [
        p for item in stored.shards.shards for p in stored.find_damage(item)
    ]


def test_too_many_of_them_stop_it(damaged, tmp_path):
    with pytest.raises(
        CorruptShard,
        match=r"2 of 60 examples cannot be read, 3.33%; snapshot.max_corrupt_fraction allows 1.00%",
    ):
        take(tmp_path, damaged[0], SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.01))
