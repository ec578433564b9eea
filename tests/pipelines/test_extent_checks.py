"""What does not fit the extent of a split, or memory, is refused when its pipeline is opened."""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from tests.support.small_pipelines import BATCH, GLOBAL, batches, pipeline, prepare_snapshot
from throughline.data.columns.index import allocate, write_index
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.pipelines.extent_checks import check_extent
from throughline.pipelines.sizes import estimate_record_bytes
from throughline.settings import ShardSettings
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

LARGE = 1 << 50  # bytes
ROWS = 160_000_000  # of 12×10: 20 GB


def test_every_worker_of_a_static_service_needs_a_shard(stored):
    assert len(stored["arrays"].shards.for_split("train")) == 3
    for config in (
        {"service": {"workers": 3}},
        {"service": {"workers": 4, "sharding": "dynamic"}},
        {"service": {"address": "grpc://localhost:1", "workers": 4}},
        {"service": {"workers": 4}, "read": "files"},
    ):
        pipeline(stored, **config)
    with pytest.raises(ImpossiblePlan, match=r"service\.workers: 4 .* has 3 shards"):
        pipeline(stored, service={"workers": 4})


@pytest.mark.parametrize(
    ("config", "impossible"),
    [
        ({}, True),
        ({"prefetch": 2, "shuffle": {"kind": "buffer", "size": 4}}, True),
        ({"shuffle": {"kind": "none"}}, False),
        ({"cache": {"where": "memory"}}, False),
        ({"cache": {"where": "disk"}}, False),
        ({"read": "files"}, False),
    ],
)
def test_a_shuffle_buffer_has_to_fit_into_memory(stored, config, impossible):
    data = stored["photos"]
    shards = tuple(replace(shard, bytes=LARGE) for shard in data.shards.shards)
    large = replace(data, shards=replace(data.shards, shards=shards))
    plan = pipeline(stored, "photos", **config).plan
    if not impossible:
        check_extent(plan, large, "train")
        return
    with pytest.raises(ImpossiblePlan, match=r"shuffle\.size: \d+ examples in .* GiB") as refused:
        check_extent(plan, large, "train")
    examples = int(re.findall(r"size: (\d+)", str(refused.value))[0])
    assert examples == (8 if config else data.shards.examples("train") // 20)


def test_a_buffer_after_a_cache_on_disk_holds_what_is_cached(stored, monkeypatch):
    """Which is more before images are made smaller."""
    available = 2 * stored["photos"].snapshot.bytes("train")
    monkeypatch.setattr("throughline.pipelines.extent_checks.available_memory", lambda: available)
    config = {"shuffle": {"kind": "buffer", "size": 10_000}, "prefetch": "none"}
    pipeline(stored, "photos", cache={"where": "disk"}, **config)
    with pytest.raises(ImpossiblePlan, match=r"shuffle\.size: \d+ examples"):
        pipeline(stored, "photos", cache={"where": "disk", "after": "decode"}, **config)


def test_records_of_compressed_shards_count_as_they_are_read(stored, arrays, tmp_path):
    plain, settings = stored["arrays"], ShardSettings(compression="gzip")
    index = shard(read_manifest(arrays / "manifest"), tmp_path, settings=settings)
    packed = replace(plain, shards=index, shards_folder=tmp_path)
    size = estimate_record_bytes(plain, "train")
    framing = 16 * plain.shards.examples("train")  # lengths and checksums of the records
    assert estimate_record_bytes(packed, "train") == pytest.approx(size - framing, rel=0.05)


def measure_growth(arrays: Path, folder: Path, rewrites: bool) -> tuple[int, int, int]:
    """Read five batches of a sparse column of 20 GB: the sum of their values, the steps of an
    epoch, and by how many bytes this process has grown beyond what it shares.
    """
    small = prepare_snapshot(arrays, folder / "small", "arrays")
    allocate(folder, "train", small.snapshot.columns, ROWS)  # sparse: zeros are not stored
    chunk = replace(small.snapshot.splits["train"].chunks[0], count=ROWS)
    rows = replace(small.snapshot.splits["train"], count=ROWS, chunks=(chunk,))
    index = replace(small.snapshot, splits={"train": rows})
    write_index(folder, index)
    shard = replace(small.shards.for_split("train")[0], records=ROWS, examples=ROWS)
    large = replace(
        small,
        snapshot=index,
        snapshot_folder=folder,
        shards=replace(small.shards, shards=(shard,)),
    )
    config = {"read": "snapshot", "shuffle": GLOBAL, "prefetch": 2, "graph_rewrites": rewrites}
    batches(pipeline({"arrays": small}, **config))  # what a first dataset brings along
    pipe = pipeline({"arrays": large}, **config)
    before = psutil.Process().memory_info()
    read = [batch for batch, _ in pipe.dataset().take(5)]
    after = psutil.Process().memory_info()
    grown = after.rss - before.rss - (after.shared - before.shared)
    return int(tf.reduce_sum(read)), pipe.steps_per_epoch, grown


@pytest.mark.slow
@pytest.mark.parametrize("rewrites", [False, True])  # op determinism rewrites the graph, too
def test_a_column_far_larger_than_memory_is_read_in_constant_memory(arrays, rewrites, tmp_path):
    """In a process of its own, whose memory no other test has used."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        total, steps, grown = pool.submit(measure_growth, arrays, tmp_path, rewrites).result()
    assert (total, steps) == (0, ROWS // BATCH)
    assert grown < 300e6, "a few batches"
