"""Uncompressed shards in any order: the same batches as the snapshot's, from any step, on any
number of workers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from tests.support.small_pipelines import GLOBAL, PRESETS, batches, pipeline, same
from throughline.pipelines.read.indexed_shard_reader import IndexedShardReader
from throughline.pipelines.read.snapshot_reader import SnapshotReader
from throughline.plan.augmentations import Brightness, Flip
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import MissingInput

pytestmark = pytest.mark.integration
LANES = {"kind": "lanes", "lanes": 4}
THIRD = TrainingWorker(index=2, count=3)


def indexed(stored, kind="arrays", **more):
    options = {"augment": (Flip(), Brightness()), "shuffle": GLOBAL, **more}
    return pipeline(stored, kind, read="indexed_shards", **options)


@pytest.mark.parametrize(
    ("kind", "config", "both"),
    slow_but_first(
        [
            ("arrays", {"vectorize": True, "prefetch": 2}, {}),
            ("photos", {"map": {"parallel": 2}}, {}),
            ("arrays", {"graph_rewrites": True, "map": {"parallel": "auto"}}, {}),
            ("arrays", {"vectorize": True}, {"shuffle": LANES}),
            ("arrays", {"vectorize": True}, {"shuffle": {"kind": "window", "size": 32}}),
            ("arrays", {"vectorize": True}, {"sampling": "balanced"}),
            ("arrays", {"vectorize": True}, {"worker": THIRD, "batch_size": 9}),
        ]
    ),
    ids=["whole", "parallel", "rewritten", "lanes", "window", "balanced", "a third of each batch"],
)
def test_the_batches_are_those_of_the_snapshot_from_any_step(stored, kind, config, both):
    both = {"augment": (Flip(), Brightness()), "shuffle": GLOBAL, **both}
    snapshot = pipeline(stored, kind, read="snapshot", **both)
    found = indexed(stored, kind, **config, **both)
    balanced = "sampling" in both
    assert balanced or snapshot.reader.order == found.indexed_shards.order
    assert isinstance(snapshot.reader, SnapshotReader)
    assert found.plan.seekable and not found.plan.reads_snapshot
    expected = batches(snapshot, epochs=2)
    for step in (0, found.steps_per_epoch + 1):
        assert same(batches(found, first_step=step, epochs=2), expected[step:]), step
        assert found.dataset(first_step=step, epochs=2).cardinality() == len(expected) - step


def test_a_plan_prints_in_which_order_records_are_read(stored):
    assert str(indexed(stored, vectorize=True, prefetch=2).plan) == (
        "read:indexed_shards[global shuffle,16] → map:parse+decode+flip+brightness+rescale →"
        " prefetch[2]"
    )
    assert str(pipeline(stored, **PRESETS["shards_global"]).plan).startswith(
        "read:indexed_shards[global shuffle,16][cores] → map:parse+decode+"
    )
    assert "4 lanes" in str(pipeline(stored, read="snapshot", shuffle=LANES).plan)


def test_without_uncompressed_shards_it_is_said(stored):
    data = stored["arrays"]
    packed = tuple(replace(shard, compression="gzip") for shard in data.shards.shards)
    unindexed = replace(data, shards=replace(data.shards, shards=packed))
    reader = indexed({"arrays": unindexed}).indexed_shards
    assert isinstance(reader, IndexedShardReader)
    with pytest.raises(MissingInput, match=r"holds no uncompressed shards; set shard\.compression"):
        np.asarray(reader.table)
