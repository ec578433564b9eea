"""Streams of examples, and checks of a plan against the size of its data."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.support.small_pipelines import BATCH, GLOBAL, batches, pipeline, prepare_snapshot
from throughline.data.columns.index import allocate, write_index
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.pipelines.read.prepared_data import FileList
from throughline.pipelines.read.stream_readers import read, sample_stream_by_class, windows
from throughline.pipelines.sizes import check_extent, estimate_record_bytes
from throughline.plan import steps
from throughline.plan.steps import Read, Window
from throughline.settings import InterleaveSettings, ShardSettings
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration


def keys_of(records) -> list[int]:
    key = {"key": tf.io.FixedLenFeature((), tf.int64)}
    return [int(tf.io.parse_single_example(one, key)["key"]) for one in records]


@pytest.mark.parametrize("parallel", ["none", "cores"])
def test_interleaved_shards_alternate_by_blocks(stored, monkeypatch, parallel):
    monkeypatch.setattr(steps, "usable_cores", lambda: 16)  # more than there are shards
    data = stored["arrays"]
    second = data.shards.for_split("train")[0].examples  # where the second shard begins
    in_order = keys_of(read(Read(source="shards"), data, "train", seed=0))
    assert in_order == data.memmap("train", "key").tolist()
    blocks = InterleaveSettings(cycle_length=2, block_length=2, parallel=parallel)
    keys = keys_of(read(Read(source="shards", interleave=blocks), data, "train", seed=0))
    assert keys[:6] == [*in_order[:2], *in_order[second : second + 2], *in_order[2:4]]
    assert sorted(keys) == sorted(in_order)


def test_files_are_named_absolutely_for_workers_in_other_folders(stored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = FileList(paths=("one.png",), labels=(3,), keys=(7,))
    data = replace(stored["photos"], files=lambda split: files)
    (element,) = read(Read(source="files"), data, "train", seed=0).as_numpy_iterator()
    assert element == {"path": str(tmp_path / "one.png").encode(), "label": 3, "key": 7}


def test_windows_slide_across_blocks_and_have_the_key_of_their_first_step():
    time_steps = np.array([[time, 10 * time] for time in range(6)], np.float32).reshape(2, 3, 2)
    blocks = tf.data.Dataset.from_tensor_slices({"key": np.array([0, 3]), "features": time_steps})
    step = Window(length=2, horizon=1, stride=2, targets=(1,))
    elements = list(windows(blocks, step).as_numpy_iterator())
    assert [(one["key"], one["features"].tolist(), one["label"].tolist()) for one in elements] == [
        (0, [[0, 0], [1, 10]], [[20]]),
        (2, [[2, 20], [3, 30]], [[40]]),
    ]
    assert step.count("train", 6) == 2


def test_classes_of_weight_zero_are_never_drawn_and_an_epoch_keeps_its_length(stored):
    data, seed = stored["arrays"], tf.constant(1, tf.int64)
    examples = read(Read(source="arrays"), data, "train", seed=0)

    def drawn(weights):
        return sample_stream_by_class(examples, weights, data, "train", seed=seed, reordered=True)

    last = dict.fromkeys("012", 0.0)  # of four classes
    assert [int(one["label"]) for one in drawn(last)] == [3] * data.shards.examples("train")
    with pytest.raises(ImpossiblePlan, match="33 is not a class; did you mean 3"):
        drawn({"33": 1.0})
    with pytest.raises(ImpossiblePlan, match="all classes have weight 0"):
        drawn(last | {"3": 0.0})


def test_every_worker_of_a_static_service_needs_a_shard(stored):
    for more in ({"sharding": "dynamic"}, {"address": "grpc://localhost:1"}):
        pipeline(stored, service={"workers": 4, **more})
    pipeline(stored, service={"workers": 3})
    pipeline(stored, service={"workers": 4}, read="files")
    with pytest.raises(ImpossiblePlan, match=r"service\.workers: 4 .* has only 3;"):
        pipeline(stored, service={"workers": 4})


@pytest.mark.parametrize(
    ("config", "examples"),
    [
        ({}, 1),  # a twentieth
        ({"prefetch": 2, "shuffle": {"kind": "buffer", "size": 4}}, 8),
        ({"shuffle": {"kind": "none"}}, None),
        ({"cache": {"where": "memory"}}, None),
        ({"cache": {"where": "disk"}}, None),
        ({"read": "files"}, None),
    ],
)
def test_a_shuffle_buffer_has_to_fit_into_memory(stored, config, examples):
    data = stored["photos"]
    shards = tuple(replace(shard, bytes=1 << 50) for shard in data.shards.shards)
    large = replace(data, shards=replace(data.shards, shards=shards))
    said = rf"shuffle\.size: {examples} examples in .* GiB"
    with pytest.raises(ImpossiblePlan, match=said) if examples else nullcontext():
        check_extent(pipeline(stored, "photos", **config).plan, large, "train")


def test_records_of_compressed_shards_are_read_and_count_as_they_are_read(stored, arrays, tmp_path):
    plain, settings = stored["arrays"], ShardSettings(compression="gzip")
    index = shard(read_manifest(arrays / "manifest"), tmp_path, settings=settings)
    packed = replace(plain, shards=index, shards_folder=tmp_path)
    found = keys_of(read(Read(source="shards"), packed, "train", seed=0))
    assert found == plain.memmap("train", "key").tolist()
    size = estimate_record_bytes(plain, "train")
    framing = 16 * plain.shards.examples("train")  # lengths and checksums of the records
    assert estimate_record_bytes(packed, "train") == pytest.approx(size - framing, rel=0.05)


ROWS = 160_000_000  # of 12×10: 20 GB


def measure_growth(arrays: Path, folder: Path, rewrites: bool) -> tuple[int, int, int]:
    """Sum and steps of an epoch of five batches of 20 GB, and this process's growth in bytes."""
    small = prepare_snapshot(arrays, folder / "small", "arrays")
    allocate(folder, "train", small.snapshot.columns, ROWS)  # sparse: zeros are not stored
    rows, shard = small.snapshot.splits["train"], small.shards.for_split("train")[0]
    rows = replace(rows, count=ROWS, chunks=(replace(rows.chunks[0], count=ROWS),))
    index = replace(small.snapshot, splits={"train": rows})
    write_index(folder, index)
    shards = replace(small.shards, shards=(replace(shard, records=ROWS, examples=ROWS),))
    large = replace(small, snapshot=index, snapshot_folder=folder, shards=shards)
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
