"""Every configuration delivers the same examples, augmented alike."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.small_pipelines import (
    CONFIGS,
    PREPROCESS,
    are_permutations,
    batches,
    digest_of_all,
    pipeline,
    prepare_snapshot,
    same,
)
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.measurement.equality import digest_examples, measure_difference
from throughline.plan.augmentations import Brightness, Cutout, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop, Op
from throughline.plan.plan import make_plan
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShardSettings
from throughline.shared.errors import ImpossiblePlan, UnequalConfigurations
from throughline.shared.limits import usable_cores

pytestmark = pytest.mark.integration

IN_ORDER = {"postprocess": (), "with_keys": True, "in_order": True}
CROP = RandomResizedCrop(height=20, width=24).in_evaluation()
# One of each way in which batches are made; others differ in threads, files, buffers and order.
WAYS = ["naive", "vectorized", "shards_global", "snapshot_part", "device_resident", "files"]
UNLIKE = [name for name in CONFIGS if name not in {"device_resident", "service"}]


def by_key(pipe, **extent):
    """The images of a pipeline with keys; of several epochs those of the last."""
    return {
        int(key): image
        for batch in batches(pipe, **extent)
        for key, image in zip(batch["key"], batch["image"], strict=True)
    }


@pytest.mark.parametrize(
    ("kind", "names"),
    slow_but_first([("photos", WAYS), ("photos", [*CONFIGS]), ("unlike", UNLIKE)]),
    ids=["photos", "photos in all", "photos of unlike sizes"],
)
def test_configurations_deliver_the_same_examples(snapshot_of, request, kind, names):
    address = request.getfixturevalue("service") if "service" in names else ""
    usual = {"augment": (CROP,) * (kind == "unlike"), "address": address, **IN_ORDER}
    configs, data = CONFIGS | {"files": {"read": "files"}}, {kind: snapshot_of(kind)}
    digest = digest_of_all({name: pipeline(data, kind, **usual, **configs[name]) for name in names})
    assert digest.examples == data[kind].shards.examples("train")


@pytest.mark.slow
def test_compressed_shards_hold_the_same_examples(stored, arrays, tmp_path):
    settings = ShardSettings(min_shards=3, compression="gzip")
    shard(read_manifest(arrays / "manifest"), tmp_path / "shards", settings=settings)
    (tmp_path / "manifest").symlink_to(arrays / "manifest")
    packed = {"arrays": prepare_snapshot(tmp_path, tmp_path / "snapshot", "arrays")}
    names = ("naive", "in_memory", "snapshot")
    opened = {name: pipeline(packed, **IN_ORDER, **CONFIGS[name]) for name in names}
    digest_of_all(opened | {"plain": pipeline(stored, **IN_ORDER)})


@pytest.mark.slow
def test_a_service_gives_every_epoch_in_an_order_of_its_own(stored, service):
    pipe = pipeline(stored, with_keys=True, address=service, **CONFIGS["service"])
    assert are_permutations(pipe, batches(pipe, epochs=2))


SOME = ("naive", "vectorized", "snapshot")  # a map of examples, of batches, and a fetch
MOST = (*SOME, "map_parallel", "cache_memory", "unordered", "in_memory", "save_load")
AUGMENTED = [
    ("photos", (RandomCrop(height=9, width=11), Flip()), SOME),
    ("photos", (RandomResizedCrop(height=20, width=20, method="bilinear"), Flip()), SOME),
    ("unlike", (RandomCrop(height=28, width=33), Flip()), SOME),  # larger than most
    ("arrays", (Flip(), Cutout(size=3), Brightness(), Cutout(size=3), Flip()),
     (*MOST, "device_resident")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "augment", "names"), slow_but_first(AUGMENTED))
def test_augmentation_is_the_same_whatever_the_configuration(snapshot_of, kind, augment, names):
    usual = {"augment": augment, "with_keys": True, "postprocess": ()}
    data = {kind: snapshot_of(kind)}
    pipes = [pipeline(data, kind, **usual, **CONFIGS[name]) for name in names]
    first, *others = (by_key(pipe, epochs=2) for pipe in pipes)
    for other in others:
        np.testing.assert_equal(other, first)
    assert ("fetched" in str(pipes[2].plan)) == (kind != "arrays")


class SumOfRows(Op):
    """An op of one's own that takes one image (height, width, channels) alone."""

    name = "sum_of_rows"
    takes = "example"
    random = True

    def compute(self, element, draw):
        sums = tf.reduce_sum(tf.ensure_shape(element["image"], (None, None, 1)), axis=0)
        return {**element, "image": sums[None]}


def test_a_snapshot_gives_every_op_what_it_takes(stored):
    augment = CenterCrop(height=30, width=30), CROP, Flip(), SumOfRows()
    found, expected = (
        batches(pipeline(stored, augment=augment, read=read, shuffle={"kind": "none"}))
        for read in ("snapshot", "shards")
    )
    assert same(found, expected)


OTHERS = slow_but_first(["shards_global", "in_memory", "device_resident", "balanced_stream"])


@pytest.mark.parametrize("name", ["vectorized", "optimized", *OTHERS])
def test_shapes_dtypes_and_cardinality_are_known(stored, name):
    pipe = pipeline(stored, "photos", augment=(Flip(),), **CONFIGS[name])
    dataset = pipe.dataset()
    image, label = dataset.element_spec
    on_device = CONFIGS[name].get("postprocess_on") == "device"
    assert image.shape.as_list()[1:] == [16, 18, 3]
    assert (image.dtype, label.dtype) == (tf.uint8 if on_device else tf.float32, tf.int64)
    assert dataset.cardinality().numpy() == pipe.steps_per_epoch == len(list(dataset))


def test_the_rows_of_a_split_on_the_device_are_gathered_of_variables(stored):
    pipe = pipeline(stored, **CONFIGS["device_resident"])
    gather = tf.function(pipe.gather_fn(), autograph=False)
    graph = gather.get_concrete_function(tf.TensorSpec((), tf.int64)).graph
    used = [node.op for node in graph.as_graph_def().node]
    assert "ResourceGather" in used and "ReadVariableOp" not in used, "nothing is copied"


@pytest.mark.parametrize(("workers", "batch_size"), slow_but_first([(2, 14), (5, 50)]))
def test_workers_get_equal_slices_of_what_one_worker_would_see(stored, workers, batch_size):
    def of(index, count):
        worker = TrainingWorker(index=index, count=count)
        return pipeline(stored, worker=worker, batch_size=batch_size, **CONFIGS["snapshot"])

    assert of(0, workers).examples_per_step == batch_size / workers, "of a slice"
    alone = batches(of(0, 1))
    each = [batches(of(index, workers)) for index in range(workers)]
    joined = []
    for step in zip(*each, strict=True):
        assert len({len(label) for _, label in step}) == 1 and len(step[0][1]) > 0
        joined.append(tuple(np.concatenate(parts) for parts in zip(*step, strict=True)))
    shared = [tuple(part[: len(part) // workers * workers] for part in step) for step in alone]
    assert same(joined, [step for step in shared if len(step[1])])


def test_processes_of_a_host_share_what_autotune_may_take(stored):
    def tuned(on_host):
        worker = TrainingWorker(count=on_host, on_host=on_host)
        made = pipeline(stored, worker=worker, **CONFIGS["snapshot"] | {"prefetch": "auto"})
        return made.dataset().options().autotune

    alone, two = tuned(1), tuned(2)
    assert (alone.enabled, alone.cpu_budget, alone.ram_budget) == (True, None, None), "TensorFlow's"
    assert (two.enabled, two.cpu_budget) == (True, max(1, usable_cores() // 2))
    assert 0 < two.ram_budget <= psutil.virtual_memory().total / 4


@pytest.mark.parametrize("name", slow_but_first(["balanced", "balanced_stream"]))
def test_balanced_draws_every_class_alike(stored, name):
    pipe = pipeline(stored, **CONFIGS[name])
    counts = np.bincount(np.concatenate([label for _, label in batches(pipe, epochs=1)]))
    expected = pipe.examples / 4
    assert counts.sum() == pipe.examples
    assert np.all(abs(counts - expected) <= (1 if name == "balanced" else 4 * np.sqrt(expected)))


class Count(Op):
    """An op of one's own that counts the images it sees."""

    name = "count"
    seen: ClassVar[list] = []

    def compute(self, element, draw):
        image = tf.numpy_function(self.pass_on, [element["image"]], tf.uint8)
        return {**element, "image": tf.ensure_shape(image, element["image"].shape)}

    @classmethod
    def pass_on(cls, image):
        cls.seen.append(image.shape)
        return image


def counting(pipe, **config):
    """A pipeline of this configuration that counts, instead of another one of arrays."""
    spec = replace(pipe.plan.spec, preprocess=(*PREPROCESS["arrays"], Count()))
    return replace(pipe, plan=make_plan(PipelineConfig(**config), spec))


@pytest.mark.parametrize("where", slow_but_first(["memory", "disk"]))
def test_draws_by_class_fill_a_cache_once_for_all_classes(stored, where):
    plain = pipeline(stored, sampling="balanced", shuffle={"kind": "none"})
    cached = {"sampling": "balanced", "shuffle": {"kind": "none"}, "cache": {"where": where}}
    Count.seen.clear()
    found = batches(counting(plain, **cached), epochs=2)
    assert len(Count.seen) == plain.examples
    assert same(found, batches(plain, epochs=2))


def test_an_op_that_calls_python_is_refused_with_a_service(stored):
    served = pipeline(stored, **CONFIGS["service"], address="grpc://localhost:1")
    with pytest.raises(ImpossiblePlan, match=r"^service: count calls Python"):
        counting(served, **CONFIGS["service"]).dataset()


def test_original_files_come_in_the_order_of_the_shards(stored):
    photos = stored["photos"]
    assert list(photos.files("train").keys) == photos.memmap("train", "key").tolist()


@pytest.mark.parametrize("decode", slow_but_first([{"dct": "accurate"}, {"crop": "fused"}]))
def test_other_jpeg_decoding_is_marked_and_its_difference_measured(stored, decode):
    pipe = pipeline(stored, "photos", **IN_ORDER, decode=decode)
    apart = measure_difference(pipe, pipeline(stored, "photos", **IN_ORDER, **CONFIGS["snapshot"]))
    assert pipe.plan.approximate
    assert apart.examples == digest_examples(pipe).examples == pipe.examples
    assert 0 < apart.mean < 2


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda listed: {"labels": (1 - min(listed.labels[0], 1), *listed.labels[1:])},
         r"the labels of 1 of \d+ delivered examples differ"),
        (lambda listed: {"keys": listed.keys[1:], "labels": listed.labels[1:]},
         r"which are not the \d+ of the manifest"),
    ],
    ids=["a label", "an example"],
)  # fmt: skip
def test_what_is_approximate_has_the_manifests_examples_and_labels(stored, plant, said):
    right = pipeline(stored, "photos", **IN_ORDER, decode={"dct": "accurate"})
    listed = replace(right.data.files("train"), **plant(right.data.files("train")))
    with pytest.raises(UnequalConfigurations, match=said):
        digest_examples(replace(right, data=replace(right.data, files=lambda _: listed)))
