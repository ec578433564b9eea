"""What does not fit the extent of a split is refused when its pipeline is opened."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.small_pipelines import pipeline
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.pipelines.extent_checks import check_extent
from throughline.pipelines.sizes import estimate_record_bytes
from throughline.settings import ShardSettings
from throughline.shared.errors import ImpossiblePlan

LARGE = 1 << 50  # bytes


@pytest.mark.parametrize(
    ("config", "impossible"),
    [
        ({"service": {"workers": 4}}, True),
        ({"service": {"workers": 3}}, False),
        ({"service": {"workers": 4, "sharding": "dynamic"}}, False),
        ({"service": {"address": "grpc://localhost:1", "workers": 4}}, False),
        ({"service": {"workers": 4}, "read": "files"}, False),
    ],
)
def test_every_worker_of_a_static_service_needs_a_shard(stored, config, impossible):
    assert len(stored["photos"].shards.for_split("train")) == 3
    if not impossible:
        pipeline(stored, "photos", **config)
        return
    with pytest.raises(ImpossiblePlan, match=r"service\.workers: 4 .* has 3 shards; use at most 3"):
        pipeline(stored, "photos", **config)


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
