"""A column far larger than memory is read through tf.data in constant memory."""

from __future__ import annotations

import psutil
import pytest
import tensorflow as tf

from throughline.data.columns.index import (
    Chunk,
    Column,
    SnapshotIndex,
    SplitColumns,
    Statistics,
    allocate,
    write_index,
)
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.data.shards.index import Shard, ShardIndex
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.ops import Decode, Resize
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.settings import PipelineConfig

pytestmark = pytest.mark.integration
ROWS = 132_848  # of 224×224×3: 20 GB
PREPROCESS = (Decode(), Resize(height=224, width=224))


@pytest.mark.slow
@pytest.mark.parametrize("rewrites", [False, True])  # op determinism rewrites the graph, too
def test_twenty_gigabytes_start_at_once_and_take_no_memory(rewrites, tmp_path):
    columns = (
        Column(name="image", dtype="uint8", shape=(224, 224, 3)),
        Column(name="label", dtype="int64", shape=()),
        Column(name="key", dtype="int64", shape=()),
    )
    allocate(tmp_path, "train", columns, ROWS)  # sparse: the file system stores no zeros
    chunk = Chunk(start=0, count=ROWS, digests={column.name: "" for column in columns})
    write_index(
        tmp_path,
        index := SnapshotIndex(
            key="k",
            statistics=Statistics(mean=(0.0,), deviation=(1.0,)),
            columns=columns,
            splits={"train": SplitColumns(count=ROWS, chunks=(chunk,))},
        ),
    )
    schema = labeled(image_feature())
    shard = Shard(
        name="s", split="train", records=ROWS, examples=ROWS, bytes=0, digest="", compression="none"
    )
    stored = PreparedData(
        shards_folder=tmp_path,
        shards=ShardIndex(schema=schema, classes=("a", "b"), data_digest="d", shards=(shard,)),
        snapshot_folder=tmp_path,
        snapshot=index,
        preprocess=PREPROCESS,
        files=lambda split: None,
    )
    config = PipelineConfig(
        read="snapshot",
        shuffle={"kind": "global"},
        prefetch=2,
        postprocess_on="device",
        graph_rewrites=rewrites,
    )
    plan = make_plan(
        config,
        InputSpec(schema=schema, preprocess=PREPROCESS, augment=(), postprocess=(), batch_size=64),
    )
    pipeline = InputPipeline(plan=plan, data=stored, split="train", seed=0)
    before = psutil.Process().memory_info()
    batches = list(pipeline.dataset().take(5))
    grown = (
        psutil.Process().memory_info().rss
        - before.rss
        - (psutil.Process().memory_info().shared - before.shared)
    )
    assert len(batches) == 5 and pipeline.steps_per_epoch == 2076
    assert int(tf.reduce_sum(tf.cast(batches[0][0], tf.int32))) == 0
    assert grown < 300e6, "a few batches of 10 MB, and what a first dataset brings along"
