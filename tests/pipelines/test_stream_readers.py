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
from PIL import Image

from tests.support.lanes import slow_but_first
from tests.support.prepared_files import encode_example, index_of, write_columns, write_shard
from tests.support.small_pipelines import BATCH, GLOBAL, batches, pipeline, prepare_snapshot
from throughline.data.columns.index import Column, allocate, write_index
from throughline.data.manifest import read_manifest
from throughline.data.shards.tfrecord import shard_name
from throughline.data.shards.writing import shard
from throughline.pipelines.read.prepared_data import FileList, PreparedData
from throughline.pipelines.read.stream_readers import read, sample_stream_by_class, windows
from throughline.pipelines.sizes import check_extent, estimate_cached_bytes, estimate_record_bytes
from throughline.plan import steps
from throughline.plan.ops import Decode
from throughline.plan.steps import Read, Window
from throughline.settings import InterleaveSettings, ShardSettings
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

LABELS = {10: 0, 11: 0, 12: 0, 20: 0, 21: 1}  # by keys


@pytest.fixture(params=slow_but_first(["none", "gzip"]))
def data(tmp_path, monkeypatch, request) -> PreparedData:
    """Five examples in two shards, a snapshot of their labels, and names of files."""
    shards = []
    for number, keys in enumerate(([10, 11, 12], [20, 21])):
        path = tmp_path / shard_name("train", number, 2, request.param)
        parts = [encode_example(key=key, label=LABELS[key], value=bytes((key, 0))) for key in keys]
        shards.append(write_shard(path, parts, compression=request.param))
    label, values = Column(name="label", dtype="int64", shape=()), np.array([*LABELS.values()])
    monkeypatch.chdir(tmp_path)
    return PreparedData(
        shards_folder=Path(),
        shards=replace(index_of(*shards, shape=(2,)), classes=("common", "rare")),
        snapshot_folder=tmp_path,
        snapshot=write_columns(tmp_path, (label,), {"label": values}, rows=len(LABELS)),
        preprocess=(Decode(),),
        files=lambda split: FileList(paths=(f"{split}.png",), labels=(3,), keys=(7,)),
    )


BLOCKS = {"cycle_length": 2, "block_length": 2}


@pytest.mark.parametrize(
    ("interleave", "keys"),
    [
        (None, [10, 11, 12, 20, 21]),
        (InterleaveSettings(**BLOCKS), [10, 11, 20, 21, 12]),
        (InterleaveSettings(**BLOCKS, parallel="cores"), [10, 11, 20, 21, 12]),
    ],
    ids=["one after another", "by blocks", "in parallel"],
)
def test_interleaved_shards_alternate_by_blocks(data, monkeypatch, interleave, keys):
    monkeypatch.setattr(steps, "usable_cores", lambda: 16)  # more than there are shards
    records = read(Read(source="shards", interleave=interleave), data, "train", seed=0)
    key = {"key": tf.io.FixedLenFeature((), tf.int64)}
    assert [int(tf.io.parse_single_example(one, key)["key"]) for one in records] == keys


def test_files_are_named_absolutely_for_workers_in_other_folders(data, tmp_path):
    (element,) = read(Read(source="files"), data, "train", seed=0).as_numpy_iterator()
    assert element == {"path": str(tmp_path / "train.png").encode(), "label": 3, "key": 7}


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


def test_a_stream_of_one_order_begins_each_class_elsewhere_in_each_epoch(data):
    examples = read(Read(source="arrays"), data, "train", seed=0)

    def first_common(epoch, *, reordered):
        more = {"seed": tf.constant(epoch, tf.int64), "reordered": reordered}
        drawn = sample_stream_by_class(examples, "balanced", data, "train", **more)
        return next(int(one["key"]) for one in drawn if one["label"] == 0)

    assert [first_common(epoch, reordered=False) for epoch in range(4)] == [10, 11, 12, 20]
    assert [first_common(epoch, reordered=True) for epoch in range(2)] == [10, 10]


def test_classes_of_weight_zero_are_never_drawn_and_an_epoch_keeps_its_length(data):
    examples, seed = read(Read(source="arrays"), data, "train", seed=0), tf.constant(1, tf.int64)

    def drawn(**weights):
        return sample_stream_by_class(examples, weights, data, "train", seed=seed, reordered=True)

    assert [int(one["key"]) for one in drawn(common=0.0)] == [21] * len(LABELS)
    with pytest.raises(ImpossiblePlan, match="rar is not a class; did you mean rare"):
        drawn(rar=1.0)
    with pytest.raises(ImpossiblePlan, match="all classes have weight 0"):
        drawn(common=0.0, rare=0.0)


def test_every_worker_of_a_static_service_needs_a_shard(stored):
    for service in (
        {"workers": 3},
        {"workers": 4, "sharding": "dynamic"},
        {"workers": 4, "address": "grpc://localhost:1"},
    ):
        pipeline(stored, service=service)
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
    plan = pipeline(stored, "photos", **config).plan
    said = rf"shuffle\.size: {examples} examples in .* GiB"
    with pytest.raises(ImpossiblePlan, match=said) if examples else nullcontext():
        check_extent(plan, large, "train")


def test_a_buffer_after_a_cache_on_disk_holds_what_is_cached(stored, monkeypatch):
    """Which is more before images are made smaller."""
    available = 2 * stored["photos"].snapshot.bytes("train")
    monkeypatch.setattr("throughline.pipelines.sizes.available_memory", lambda: available)
    config = {"shuffle": {"kind": "buffer", "size": 10_000}, "prefetch": "none"}
    pipeline(stored, "photos", cache={"where": "disk"}, **config)
    with pytest.raises(ImpossiblePlan, match=r"shuffle\.size: \d+ examples"):
        pipeline(stored, "photos", cache={"where": "disk", "after": "decode"}, **config)


def test_a_cache_takes_what_examples_take_at_its_place(stored):
    """Before images are made smaller that is more."""
    pipe = pipeline(stored, "photos", cache={"where": "memory", "after": "decode"})
    files = [Image.open(name) for name in pipe.data.files("train").paths]
    pixels = 3 * sum(image.width * image.height for image in files)
    before = pipe.plan.steps[1]  # of reading, a map, a cache
    estimated = estimate_cached_bytes(before, pipe.data, "train")
    assert estimated == pytest.approx(pixels, rel=0.1)
    assert estimated > 2 * pipe.data.snapshot.bytes("train")


def test_records_of_compressed_shards_count_as_they_are_read(stored, arrays, tmp_path):
    plain, settings = stored["arrays"], ShardSettings(compression="gzip")
    index = shard(read_manifest(arrays / "manifest"), tmp_path, settings=settings)
    packed = replace(plain, shards=index, shards_folder=tmp_path)
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
