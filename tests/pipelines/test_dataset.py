"""Every configuration delivers the same examples, augmented alike."""

from dataclasses import replace

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
from throughline.plan.augmentations import (
    Brightness,
    Cutout,
    Flip,
    RandomCrop,
    RandomResizedCrop,
    ResizedCenterCrop,
)
from throughline.plan.ops import CenterCrop, Op
from throughline.plan.plan import make_plan
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShardSettings
from throughline.shared.errors import ImpossiblePlan, UnequalConfigurations
from throughline.shared.limits import usable_cores

pytestmark = pytest.mark.integration

# One of each way in which batches are made; others differ in threads, files, buffers and order.
WAYS = ("naive", "vectorized", "shards_global", "snapshot_part", "device_resident")
UNLIKE = tuple(name for name in CONFIGS if name not in {"device_resident", "service"})
IN_ORDER = {"postprocess": (), "with_keys": True, "in_order": True}
CROPS = {"unlike": (RandomResizedCrop(height=20, width=24).in_evaluation(),)}


def by_key(pipe, **extent):
    """The images of a pipeline with keys; of several epochs those of the last."""
    return {
        int(key): image
        for batch in batches(pipe, **extent)
        for key, image in zip(batch["key"], batch["image"], strict=True)
    }


@pytest.fixture
def photos_of(stored, snapshot_of):
    """A function that returns prepared photos, of one size or unlike."""
    return lambda kind: {kind: snapshot_of(kind) if kind == "unlike" else stored[kind]}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        pytest.param("photos", (*WAYS, "files"), id="photos"),
        pytest.param("photos", tuple(CONFIGS), id="photos in all", marks=pytest.mark.slow),
        pytest.param("unlike", UNLIKE, id="photos of unlike sizes", marks=pytest.mark.slow),
    ],
)
def test_configurations_deliver_the_same_examples(photos_of, request, kind, names):
    address = request.getfixturevalue("service") if "service" in names else ""
    usual = {"augment": CROPS.get(kind, ()), "address": address, **IN_ORDER}
    configs = CONFIGS | {"files": {"read": "files"}}
    data = photos_of(kind)
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


@pytest.mark.parametrize(
    ("kind", "crop"),
    slow_but_first(
        [
            ("photos", RandomCrop(height=9, width=11)),
            ("photos", RandomResizedCrop(height=20, width=20, method="bilinear")),
            ("unlike", RandomCrop(height=28, width=33)),  # larger than most
        ]
    ),
    ids=str,
)
def test_whoever_crops_and_flips_does_the_same(photos_of, kind, crop):
    """A fetch from the snapshot, a map of examples, and one of batches."""
    data = photos_of(kind)
    found = {
        name: by_key(pipeline(data, kind, augment=(crop, Flip()), with_keys=True, **CONFIGS[name]))
        for name in ("naive", "vectorized", "snapshot")
    }
    for name, images in found.items():
        assert images.keys() == found["naive"].keys()
        for key, image in found["naive"].items():
            np.testing.assert_array_equal(images[key], image, name)
    plan = str(pipeline(data, kind, augment=(crop, Flip()), **CONFIGS["snapshot"]).plan)
    assert f"+{crop.name} fetched+flip fetched+rescale" in plan


class SumOfRows(Op):
    """An op of one's own that takes one image (height, width, channels) alone."""

    name = "sum_of_rows"
    takes = "example"
    random = True

    def compute(self, element, draw):
        sums = tf.reduce_sum(tf.ensure_shape(element["image"], (None, None, 1)), axis=0)
        return {**element, "image": sums[None]}


def test_a_snapshot_gives_every_op_what_it_takes(stored):
    crops = CenterCrop(height=20, width=20), ResizedCenterCrop(height=8, width=8, shorter=8)
    augment = (*crops, Flip(), SumOfRows())
    found, expected = (
        batches(pipeline(stored, augment=augment, **config))
        for config in (CONFIGS["in_order"] | {"read": "snapshot"}, CONFIGS["in_order"])
    )
    assert same(found, expected)


@pytest.mark.parametrize(
    "name",
    [
        *("vectorized", "optimized"),
        *slow_but_first(["shards_global", "in_memory", "device_resident", "balanced_stream"]),
    ],
)
def test_shapes_dtypes_and_cardinality_are_known(stored, name):
    pipe = pipeline(stored, "photos", augment=(Flip(),), **CONFIGS[name])
    dataset = pipe.dataset()
    image, label = dataset.element_spec
    assert image.shape.as_list()[1:] == [16, 18, 3]
    on_device = CONFIGS[name].get("postprocess_on") == "device"
    assert image.dtype == (tf.uint8 if on_device else tf.float32)
    assert label.dtype == tf.int64
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
    def budgets(on_host):
        worker = TrainingWorker(count=on_host, on_host=on_host)
        made = pipeline(stored, worker=worker, **CONFIGS["snapshot"] | {"prefetch": "auto"})
        tuned = made.dataset().options().autotune
        return tuned.enabled, tuned.cpu_budget, tuned.ram_budget

    assert budgets(1) == (True, None, None), "TensorFlow's own"
    enabled, cores, memory = budgets(2)
    assert enabled and cores == max(1, usable_cores() // 2)
    assert 0 < memory <= psutil.virtual_memory().total / 4


@pytest.mark.parametrize(
    "name", slow_but_first([name for name in CONFIGS if name.startswith("balanced")])
)
def test_balanced_draws_every_class_alike(stored, name):
    pipe = pipeline(stored, **CONFIGS[name])
    counts = np.bincount(np.concatenate([label for _, label in batches(pipe, epochs=1)]))
    expected = pipe.examples / 4
    assert counts.sum() == pipe.examples
    assert np.all(abs(counts - expected) <= (1 if name == "balanced" else 4 * np.sqrt(expected)))


class Count(Op):
    """An op of one's own that counts the images it sees."""

    name = "count"

    def compute(self, element, draw):
        image = tf.numpy_function(self.pass_on, [element["image"]], tf.uint8)
        return {**element, "image": tf.ensure_shape(image, element["image"].shape)}

    @staticmethod
    def pass_on(image):
        COUNTED.append(image.shape)
        return image


COUNTED = []


@pytest.mark.parametrize("where", slow_but_first(["memory", "disk"]))
def test_draws_by_class_fill_a_cache_once_for_all_classes(stored, where):
    sampled = {"read": "shards", "sampling": "balanced", "shuffle": {"kind": "none"}}
    cached = pipeline(stored, **sampled, cache={"where": where})
    spec = replace(cached.plan.spec, preprocess=(*PREPROCESS["arrays"], Count()))
    plan = make_plan(PipelineConfig(**sampled, cache={"where": where}), spec)
    COUNTED.clear()
    found = batches(replace(cached, plan=plan), epochs=2)
    assert len(COUNTED) == cached.examples
    assert same(found, batches(pipeline(stored, **sampled), epochs=2))


def test_an_op_that_calls_python_is_refused_with_a_service(stored):
    served = pipeline(stored, **CONFIGS["service"], address="grpc://localhost:1")
    spec = replace(served.plan.spec, preprocess=(*PREPROCESS["arrays"], Count()))
    plan = make_plan(PipelineConfig(**CONFIGS["service"]), spec)
    with pytest.raises(ImpossiblePlan, match=r"^service: count calls Python"):
        replace(served, plan=plan).dataset()


@pytest.mark.slow
def test_augmentation_is_the_same_whatever_the_configuration(stored):
    ways = (
        *("naive", "map_parallel", "vectorized", "cache_memory", "snapshot"),
        *("unordered", "in_memory", "save_load", "device_resident"),
    )
    augment = (Flip(), Cutout(size=3), Brightness(), Cutout(size=3), Flip())
    usual = {"augment": augment, "postprocess": (), "with_keys": True}
    first, *others = (by_key(pipeline(stored, **usual, **CONFIGS[way]), epochs=2) for way in ways)
    for other in others:
        np.testing.assert_equal(other, first)


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
