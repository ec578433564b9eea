"""The key of a snapshot follows whatever decides its contents."""

from __future__ import annotations

import pytest

from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.shards.index import Shard, ShardIndex
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.plan.ops import Decode, Pad, Resize

OPS = (Decode(), Resize(height=4, width=5), Pad(pixels=1))


def index(*, digest: str = "one", shape: tuple[int, ...] = (8, 8, 1)) -> ShardIndex:
    shard = Shard(
        name="train-00000-of-00001.tfrecord",
        split="train",
        records=1,
        examples=1,
        bytes=1,
        digest=digest,
        compression="none",
    )
    return ShardIndex(
        schema=labeled(pixels_feature(shape)),
        classes=("a", "b"),
        data_digest="d",
        shards=(shard,),
    )


@pytest.mark.parametrize(
    ("shards", "ops"),
    [
        (index(digest="other"), OPS),
        (index(shape=(8, 4, 2)), OPS),
        (index(), OPS[:2]),
        (index(), (OPS[0], OPS[2], OPS[1])),
        (index(), (*OPS[:2], Pad(pixels=2))),
    ],
    ids=["shards", "shape", "ops", "order of ops", "arguments"],
)
def test_other_shards_or_ops_have_another_key(shards, ops):
    assert compute_snapshot_key(shards, ops) != compute_snapshot_key(index(), OPS)


def test_another_version_of_an_op_or_of_tensorflow_has_another_key(monkeypatch):
    before = compute_snapshot_key(index(), OPS)
    monkeypatch.setattr(Resize, "version", 2)
    changed = compute_snapshot_key(index(), OPS)
    monkeypatch.undo()
    monkeypatch.setattr(
        "throughline.pipelines.read.prepared_data.installed_versions",
        lambda names: dict.fromkeys(names, "0"),
    )
    assert len({before, changed, compute_snapshot_key(index(), OPS)}) == 3
