"""Every configuration delivers the same examples; order and augmentation are pure functions of
seed, epoch and step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import psutil
import pytest
import tensorflow as tf
from lanes import mostly, slow_but_first
from small_pipelines import (
    APPROXIMATE,
    BATCH,
    CONFIGS,
    MAPPED,
    PREPROCESS,
    batches,
    pipeline,
    prepare_snapshots,
    same,
)

from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.measurement.equality import digest_examples, measure_difference
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.augmentations import (
    Brightness,
    Cutout,
    Flip,
    RandomCrop,
    RandomResizedCrop,
    ResizedCenterCrop,
)
from throughline.plan.ops import CenterCrop, Op, Resize
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShardSettings
from throughline.shared.errors import UnequalConfigurations
from throughline.shared.limits import usable_cores

CLASSWISE = [name for name in CONFIGS if name.startswith("balanced")]
QUICK = ("naive", "vectorized", "optimized")  # what `make quick` looks at
# Streams that open the next epoch ahead.
AHEAD = ["vectorized", "cache_memory", "cache_disk", "tf_snapshot", "unordered", "service"]


def test_some_configurations_deliver_the_same_examples(stored):
    in_order = {"postprocess": (), "with_keys": True, "in_order": True}
    digests = {
        name: digest_examples(pipeline(stored, "photos", **in_order, **CONFIGS[name])).digest
        for name in QUICK
    }
    assert len(set(digests.values())) == 1, digests


@pytest.mark.integration
@pytest.mark.parametrize("kind", slow_but_first(["photos", "arrays"]))
def test_all_configurations_deliver_the_same_examples(stored, service, kind):
    extra = {"files": {"read": "files"}} if kind == "photos" else {}
    digests = {
        name: digest_examples(
            pipeline(
                stored,
                kind,
                postprocess=(),
                with_keys=True,
                in_order=True,
                address=service,
                **config,
            )
        )
        for name, config in (CONFIGS | extra).items()
    }
    assert len({digest.digest for digest in digests.values()}) == 1, digests
    assert all(
        digest.examples == stored[kind].shards.examples("train") for digest in digests.values()
    )


@pytest.mark.integration
def test_compressed_shards_hold_the_same_examples(stored, arrays, tmp_path):
    shard(
        replace(read_manifest(arrays / "manifest"), folder=arrays / "manifest"),
        tmp_path / "shards",
        settings=ShardSettings(min_shards=3, compression="gzip"),
    )
    (tmp_path / "manifest").symlink_to(arrays / "manifest")
    packed = prepare_snapshots({"arrays": tmp_path})
    in_order = {"postprocess": (), "with_keys": True, "in_order": True}
    expected = digest_examples(pipeline(stored, **in_order))
    for name in ("naive", "in_memory", "heuristic", "cache_memory", "snapshot"):
        assert digest_examples(pipeline(packed, **in_order, **CONFIGS[name])) == expected, name


CROPS = (
    RandomCrop(height=9, width=11),
    RandomResizedCrop(height=9, width=11),
    RandomResizedCrop(height=20, width=20, method="bilinear"),
)


@pytest.mark.integration
@pytest.mark.parametrize("kind", slow_but_first(["photos", "arrays"]))
@pytest.mark.parametrize("crop", slow_but_first(CROPS), ids=repr)
def test_whoever_crops_and_flips_does_the_same(stored, kind, crop):
    """A fetch from the snapshot, a map of examples, and one of batches."""
    found = {
        name: by_key(
            pipeline(stored, kind, augment=(crop, Flip()), with_keys=True, **CONFIGS[name])
        )
        for name in ("naive", "vectorized", "cache_memory", "snapshot", "rewrites")
    }
    for name, images in found.items():
        assert images.keys() == found["naive"].keys()
        assert all(np.array_equal(images[key], image) for key, image in found["naive"].items()), (
            name
        )
    plan = str(pipeline(stored, kind, augment=(crop, Flip()), **CONFIGS["snapshot"]).plan)
    assert f"+{crop.name} fetched+flip fetched+rescale" in plan


class SumOfRows(Op):
    """An op of one's own that takes one image (height, width, channels) alone."""

    name = "sum_of_rows"
    takes = "example"
    random = True

    def compute(self, element, draw):
        sums = tf.reduce_sum(tf.ensure_shape(element["image"], (None, None, 1)), axis=0)
        return {**element, "image": sums[None]}


@pytest.mark.parametrize(
    "augment",
    [
        (CenterCrop(height=20, width=20), ResizedCenterCrop(height=8, width=8, shorter=8)),
        (Flip(), SumOfRows()),
    ],
    ids=["crop of a crop", "one example"],
)
def test_a_snapshot_gives_every_op_what_it_takes(stored, augment):
    found, expected = (
        pipeline(stored, augment=augment, **config).dataset()
        for config in (CONFIGS["in_order"] | {"read": "snapshot"}, CONFIGS["in_order"])
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.integration
def test_crops_within_the_train_step_are_those_of_the_host_but_for_rounding(stored):
    crop = {"augment": (RandomResizedCrop(height=9, width=11), Flip()), "postprocess": ()}
    host, resident = (
        pipeline(stored, "photos", with_keys=True, **crop, **CONFIGS[name]).batches()
        for name in ("snapshot", "device_resident")
    )
    for one, other in zip(host, resident, strict=True):
        np.testing.assert_array_equal(one["key"], other["key"])
        apart = one["image"].numpy().astype(int) - other["image"].numpy()
        assert abs(apart).max() <= 2


def by_key(pipe):
    return {
        int(key): image
        for batch in pipe.dataset().as_numpy_iterator()
        for key, image in zip(batch["key"], batch["image"], strict=True)
    }


def test_a_configuration_that_computes_something_else_has_another_digest(stored):
    right = digest_examples(
        pipeline(stored, "photos", postprocess=(), with_keys=True, in_order=True)
    )
    wrong_spec = InputSpec(
        schema=stored["photos"].shards.schema, batch_size=BATCH, augment=(), postprocess=(),
        preprocess=(*PREPROCESS["photos"][:2], Resize(height=16, width=18, method="nearest")),
    )  # fmt: skip
    wrong_plan = make_plan(PipelineConfig(shuffle={"kind": "none"}), wrong_spec)
    wrong = InputPipeline(
        plan=wrong_plan, data=stored["photos"], split="train", seed=0, with_keys=True
    )
    assert digest_examples(wrong).digest != right.digest


@pytest.mark.parametrize("name", mostly(list(CONFIGS), quick=QUICK))
def test_shapes_dtypes_and_cardinality_are_known(stored, request, name):
    address = request.getfixturevalue("service") if name == "service" else ""
    pipe = pipeline(stored, "photos", augment=(Flip(),), address=address, **CONFIGS[name])
    dataset = pipe.dataset()
    image, label = dataset.element_spec
    assert image.shape.as_list()[1:] == [16, 18, 3]
    assert image.dtype == (
        tf.uint8 if CONFIGS[name].get("postprocess_on") == "device" else tf.float32
    )
    assert label.dtype == tf.int64
    assert dataset.cardinality().numpy() == pipe.steps_per_epoch == len(list(dataset))


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", ["naive", *AHEAD, *(name for name in MAPPED if name not in CLASSWISE)]
)
def test_every_epoch_is_another_permutation_of_all_examples(stored, service, name):
    pipe = pipeline(stored, with_keys=True, address=service, **CONFIGS[name])
    keys = [batch["key"] for batch in pipe.dataset(epochs=3).as_numpy_iterator()]
    epochs = [
        np.concatenate(keys[start : start + pipe.steps_per_epoch])
        for start in range(0, 3 * pipe.steps_per_epoch, pipe.steps_per_epoch)
    ]
    assert all(len(set(epoch)) == pipe.examples for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.integration
@pytest.mark.parametrize("name", slow_but_first(MAPPED))
def test_starting_at_any_step_gives_the_same_rest(stored, name):
    pipe = pipeline(stored, augment=(Flip(), Brightness()), **CONFIGS[name])
    whole = batches(pipe, epochs=2)
    for step in (1, 8, 13):
        assert same(whole[step:], batches(pipe, first_step=step, epochs=2)), step


@pytest.mark.integration
@pytest.mark.parametrize("name", slow_but_first([name for name in CONFIGS if name not in MAPPED]))
def test_any_epoch_of_a_stream_can_be_started_from(stored, request, name):
    address = request.getfixturevalue("service") if name == "service" else ""
    pipe = pipeline(stored, augment=(Flip(), Brightness()), address=address, **CONFIGS[name])
    rest = batches(pipe, first_step=pipe.steps_per_epoch, epochs=3)
    assert len(rest) == 2 * pipe.steps_per_epoch
    if pipe.plan.deterministic and name not in ("service", "autotune", "rewrites"):
        assert same(batches(pipe, epochs=3)[pipe.steps_per_epoch :], rest)


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", ["naive", "prefetch", "cache_memory", "balanced_stream", "snapshot", "optimized"]
)
def test_every_iteration_is_the_next_epoch_where_that_is_asked_for(stored, name):
    expected = batches(pipeline(stored, augment=(Flip(),), **CONFIGS[name]), epochs=3)
    pipe = pipeline(stored, augment=(Flip(),), **CONFIGS[name])
    dataset = pipe.epoch_by_epoch()
    found = [(image.numpy(), label.numpy()) for image, label in [*dataset, *dataset.repeat(2)]]
    assert same(expected, found)


@pytest.mark.integration
@pytest.mark.parametrize("name", slow_but_first(MAPPED))
def test_what_is_gathered_on_the_device_is_what_the_data_set_delivers(stored, name):
    pipe = pipeline(stored, augment=(Flip(), Brightness()), **CONFIGS[name])
    gather = tf.function(pipe.gather_fn())
    gathered = [
        tuple(part.numpy() for part in gather(tf.constant(step, tf.int64)))
        for step in range(2 * pipe.steps_per_epoch)
    ]
    assert same(gathered, batches(pipe, epochs=2))


def test_the_rows_of_a_split_on_the_device_are_gathered_of_variables(stored):
    pipe = pipeline(stored, **CONFIGS["device_resident"])
    gather = tf.function(pipe.gather_fn(), autograph=False)
    graph = gather.get_concrete_function(tf.TensorSpec((), tf.int64)).graph
    gathered = {
        node.op: tf.as_dtype(node.attr["dtype"].type).name
        for node in graph.as_graph_def().node
        if node.op == "ResourceGather" and node.attr["dtype"].type == tf.uint8.as_datatype_enum
    }
    assert gathered == {"ResourceGather": "uint8"}
    whole = {variable.shape[0] for variable in pipe.reader.variables.values()}
    copied = [node for node in graph.as_graph_def().node if node.op == "ReadVariableOp"]
    assert whole == {pipe.examples} and not copied


@pytest.mark.integration
@pytest.mark.parametrize(("workers", "batch_size"), slow_but_first([(3, 9), (7, 7), (5, 50)]))
def test_workers_get_equal_slices_of_what_one_worker_would_see(stored, workers, batch_size):
    def of(index, count):
        made = pipeline(
            stored, worker=TrainingWorker(index=index, count=count), **CONFIGS["snapshot"]
        )
        plan = make_plan(
            PipelineConfig(**CONFIGS["snapshot"]), replace(made.plan.spec, batch_size=batch_size)
        )
        return batches(replace(made, plan=plan), epochs=2)

    alone, each = of(0, 1), [of(index, workers) for index in range(workers)]
    joined = [
        tuple(np.concatenate(parts) for parts in zip(*step, strict=True))
        for step in zip(*each, strict=True)
    ]
    for step in zip(*each, strict=True):
        assert len({len(label) for _, label in step}) == 1 and len(step[0][1]) > 0
    worker = TrainingWorker(count=workers, batch_multiple=workers)
    whole = pipeline(stored, worker=worker, **CONFIGS["snapshot"]).examples_per_step
    assert whole == BATCH / workers, "examples of a step are those of a slice"
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


@pytest.mark.parametrize("name", slow_but_first(list(CLASSWISE)))
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


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_draws_by_class_fill_a_cache_once_for_all_classes(stored, where):
    sampled = {"read": "shards", "sampling": "balanced", "shuffle": {"kind": "none"}}
    cached = pipeline(stored, **sampled, cache={"where": where})
    spec = replace(cached.plan.spec, preprocess=(*PREPROCESS["arrays"], Count()))
    plan = make_plan(PipelineConfig(**sampled, cache={"where": where}), spec)
    COUNTED.clear()
    found = batches(replace(cached, plan=plan), epochs=3)
    assert len(COUNTED) == cached.examples
    assert same(found, batches(pipeline(stored, **sampled), epochs=3))


@pytest.mark.parametrize("with_keys", [False, True])
def test_draws_by_class_come_after_a_cache_that_no_op_follows(stored, with_keys):
    sampled = {"read": "shards", "sampling": "balanced", "shuffle": {"kind": "none"}}
    found, expected = (
        pipeline(stored, postprocess=(), with_keys=with_keys, cache=cache, **sampled).dataset()
        for cache in ({}, None)
    )
    assert found.element_spec == expected.element_spec
    for one, other in zip(found, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_a_batch_is_described_by_one_dataset(stored):
    pipe = pipeline(stored, **CONFIGS["save_load"])
    assert pipe.element_spec[0].shape[1:] == (12, 10, 1)
    assert pipe.batch_bytes == BATCH * 12 * 10 * 4
    assert len(list(pipe.scratch.folder.iterdir())) == 1


@pytest.mark.integration
def test_every_epoch_of_a_stream_is_shuffled_anew(stored, service):
    for name in ("naive", "service"):
        pipe = pipeline(stored, address=service, **CONFIGS[name])
        labels = [label for _, label in batches(pipe, epochs=2)]
        one, two = (
            np.concatenate(labels[: pipe.steps_per_epoch]),
            np.concatenate(labels[pipe.steps_per_epoch :]),
        )
        assert len(one) == len(two) == pipe.examples
        assert not np.array_equal(one, two), name


@pytest.mark.integration
def test_equal_seeds_give_equal_batches_and_others_do_not(stored):
    for config in (CONFIGS["naive"], CONFIGS["snapshot"], CONFIGS["balanced"]):
        one, two, other = (
            batches(pipeline(stored, augment=(Flip(),), seed=seed, **config)) for seed in (3, 3, 4)
        )
        assert same(one, two)
        assert not same(one, other)


@pytest.mark.integration
def test_seed_and_epoch_are_a_pair_not_a_sum(stored):
    one, zero = (pipeline(stored, seed=seed, **CONFIGS["snapshot"]) for seed in (1, 0))
    assert not same(batches(one), batches(zero, epochs=2)[zero.steps_per_epoch :])


@pytest.mark.slow
def test_augmentation_is_the_same_whatever_the_configuration(stored):
    def by_key(name, config):
        pipe = pipeline(
            stored,
            augment=(Flip(), Cutout(size=3), Brightness(), Cutout(size=3), Flip()),
            postprocess=(),
            with_keys=True,
            **config,
        )
        found = list(pipe.dataset(epochs=2).as_numpy_iterator())[-pipe.steps_per_epoch :]
        return {
            int(key): image.tobytes()
            for batch in found
            for key, image in zip(batch["key"], batch["image"], strict=True)
        }

    expected = by_key("naive", CONFIGS["naive"])
    for name in (
        "map_parallel",
        "vectorized",
        "cache_memory",
        "snapshot",
        "unordered",
        "in_memory",
        "save_load",
    ):
        assert by_key(name, CONFIGS[name]) == expected, name


@pytest.mark.parametrize("name", slow_but_first(["naive", "vectorized", "snapshot"]))
def test_equal_ops_draw_independently(stored, name):
    def images(*augment):
        batches = (
            pipeline(stored, augment=augment, postprocess=(), with_keys=True, **CONFIGS[name])
            .dataset()
            .as_numpy_iterator()
        )
        return dict(
            pair
            for batch in batches
            for pair in zip(batch["key"].tolist(), batch["image"], strict=True)
        )

    plain, twice = images(), images(Flip(), Flip())
    flipped = np.mean([not np.array_equal(image, plain[key]) for key, image in twice.items()])
    assert 0.3 < flipped < 0.7, "two flips are one half of the time"
    once, both = images(Cutout(size=3)), images(Cutout(size=3), Cutout(size=3))
    more = np.mean([(both[key] == 0).sum() > (image == 0).sum() for key, image in once.items()])
    assert more > 0.8, "two squares are rarely the same one"


def test_augmentation_differs_from_epoch_to_epoch(stored):
    pipe = pipeline(
        stored, augment=(Flip(),), **CONFIGS["cache_memory"] | {"shuffle": {"kind": "none"}}
    )
    two = batches(pipe, epochs=2)
    assert not same(two[: pipe.steps_per_epoch], two[pipe.steps_per_epoch :])
    assert same(two, batches(pipe, epochs=2))


def test_a_stream_begins_with_the_epoch_of_the_step_that_is_asked_for(stored):
    pipe = pipeline(stored, **CONFIGS["naive"])
    assert same(
        batches(pipe, first_step=pipe.steps_per_epoch + 3, epochs=2),
        batches(pipe, epochs=2)[pipe.steps_per_epoch :],
    )


def test_original_files_come_in_the_order_of_the_shards(stored):
    photos = stored["photos"]
    assert list(photos.files("train").keys) == photos.memmap("train", "key").tolist()


@pytest.mark.integration
def test_other_jpeg_decoding_is_marked_and_its_difference_measured(stored):
    # Refused here, where a crop counts pixels; benchmarks measure it.
    assert APPROXIMATE["decode"] == {"ratio": 2}
    exact = pipeline(
        stored, "photos", postprocess=(), with_keys=True, in_order=True, **CONFIGS["snapshot"]
    )
    for decode in ({"dct": "accurate"}, {"crop": "fused"}):
        pipe = pipeline(
            stored, "photos", postprocess=(), with_keys=True, in_order=True, decode=decode
        )
        apart = measure_difference(pipe, exact)
        assert pipe.plan.approximate
        assert apart.examples == pipe.examples
        assert apart.mean < 2, decode
    assert (
        measure_difference(
            pipeline(stored, "photos", postprocess=(), with_keys=True, in_order=True), exact
        ).max
        == 0
    )


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda listed: {"labels": (1 - min(listed.labels[0], 1), *listed.labels[1:])},
         r"1 of \d+ examples are delivered with another label"),
        (lambda listed: {"keys": (listed.keys[0] ^ 1, *listed.keys[1:])},
         r"which are not the \d+ of the manifest"),
        (lambda listed: {"keys": listed.keys[1:], "labels": listed.labels[1:]},
         r"which are not the \d+ of the manifest"),
    ],
    ids=["a label", "a key", "an example"],
)  # fmt: skip
def test_what_is_approximate_has_the_manifests_examples_and_labels(stored, plant, said):
    right = pipeline(
        stored, "photos", postprocess=(), with_keys=True, in_order=True, decode={"dct": "accurate"}
    )
    assert right.plan.approximate
    digest_examples(right)
    listed = replace(right.data.files("train"), **plant(right.data.files("train")))
    with pytest.raises(UnequalConfigurations, match=said):
        digest_examples(replace(right, data=replace(right.data, files=lambda _: listed)))
