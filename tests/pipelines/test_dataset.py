"""Every configuration delivers the same examples, augmented alike, also of damaged shards and of
snapshots that store a part of the rows.
"""

import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import snapshot
from tests.support.small_data import flip_bit
from tests.support.small_pipelines import (
    CONFIGS,
    GLOBAL,
    PREPROCESS,
    are_permutations,
    batches,
    digest_of_all,
    pipeline,
    prepare_snapshot,
    same,
)
from throughline.assembly.inputs import explain_read_errors
from throughline.data.columns.index import column_path, count_stored, read_index, verify
from throughline.data.shards.index import read_shard_index
from throughline.measurement.equality import digest_examples, measure_difference
from throughline.plan.augmentations import Brightness, Cutout, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop, Decode, Op
from throughline.plan.plan import make_plan
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, SnapshotSettings
from throughline.shared import errors
from throughline.shared.limits import usable_cores

pytestmark = pytest.mark.integration

IN_ORDER = {"postprocess": (), "with_keys": True, "in_order": True}
CROP = RandomResizedCrop(height=20, width=24).in_evaluation()
# One of each way in which batches are made; others differ in threads, files, buffers and order.
WAYS = ["naive", "vectorized", "shards_global", "snapshot_part", "device_resident", "files"]
UNLIKE = [name for name in CONFIGS if name not in {"device_resident", "service"}]


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
def test_a_service_gives_every_epoch_in_an_order_of_its_own(stored, service):
    pipe = pipeline(stored, with_keys=True, address=service, **CONFIGS["service"])
    assert are_permutations(pipe, batches(pipe, epochs=2))


SOME = ("naive", "vectorized", "snapshot")  # a map of examples, of batches, and a fetch
MOST = (*SOME, "map_parallel", "cache_memory", "unordered", "in_memory", "device_resident")
AUGMENTED = [
    ("photos", (RandomCrop(height=9, width=11), Flip()), SOME),
    ("photos", (RandomResizedCrop(height=20, width=20, method="bilinear"), Flip()), SOME),
    ("unlike", (RandomCrop(height=28, width=33), Flip()), SOME),  # larger than most
    ("arrays", (Flip(), Cutout(size=3), Brightness(), Cutout(size=3), Flip()), MOST),
]


@pytest.mark.parametrize(("kind", "augment", "names"), slow_but_first(AUGMENTED))
def test_augmentation_is_the_same_whatever_the_configuration(snapshot_of, kind, augment, names):
    usual = {"augment": augment, "with_keys": True, "postprocess": ()}
    data = {kind: snapshot_of(kind)}
    pipes = [pipeline(data, kind, **usual, **CONFIGS[name]) for name in names]
    first, *others = (  # the images of the second epoch
        {
            int(key): image
            for batch in batches(pipe, epochs=2)
            for key, image in zip(batch["key"], batch["image"], strict=True)
        }
        for pipe in pipes
    )
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


@pytest.mark.parametrize("name", ["vectorized", "optimized"])
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
    with pytest.raises(errors.ImpossiblePlan, match=r"^service: count calls Python"):
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
    ("labels", "keys", "said"),
    [
        (lambda labels: (1 - min(labels[0], 1), *labels[1:]), lambda keys: keys,
         r"the labels of 1 of \d+ delivered examples differ"),
        (lambda labels: labels[1:], lambda keys: keys[1:], r"not the \d+ of the manifest"),
    ],
    ids=["a label", "an example"],
)  # fmt: skip
def test_what_is_approximate_has_the_manifests_examples_and_labels(stored, labels, keys, said):
    right = pipeline(stored, "photos", **IN_ORDER, decode={"dct": "accurate"})
    listed = right.data.files("train")
    listed = replace(listed, labels=labels(listed.labels), keys=keys(listed.keys))
    with pytest.raises(errors.UnequalConfigurations, match=said):
        digest_examples(replace(right, data=replace(right.data, files=lambda _: listed)))


def reading(snapshot_of, kind, *, fraction=1.0, stored=None, **more):
    """What reads this fraction of a snapshot, which stores that or more, or its shards."""
    data = snapshot_of(kind, fraction if stored is None else stored)
    config = {"augment": (Flip(), Brightness()), "shuffle": GLOBAL, "read": "snapshot", **more}
    part = {"snapshot": {"fraction": fraction}} if config["read"] == "snapshot" else {}
    return pipeline({kind: data}, kind, **part, **config)


FETCHED = {"augment": (Brightness(), RandomCrop(height=20, width=24))}  # not in one step
PART, NOTHING = {"fraction": 0.3}, {"fraction": 0.0}
INDEXED = {"read": "indexed_shards", "vectorize": True}
READ = [  # a kind, how it is read, and what is the same when the whole snapshot is
    ("arrays", INDEXED | {"prefetch": 2}, {}),
    ("arrays", PART | {"map": {"parallel": 2}, "prefetch": 2}, {}),
    ("arrays", PART | {"stored": 1.0}, {}),  # a part may be read of what is stored
    ("photos", PART, {"sampling": "balanced"}),
    ("photos", PART | {"graph_rewrites": True, "map": {"parallel": "auto"}}, {}),
    ("photos", PART, {"worker": TrainingWorker(index=1, count=2)}),
    ("unlike", PART, FETCHED | {"split": "validation"}),
    ("unlike", NOTHING, {"augment": (CenterCrop(height=27, width=34),)}),
    ("photos", {"read": "indexed_shards", "map": {"parallel": 2}}, {}),
    ("arrays", INDEXED, {"shuffle": {"kind": "lanes", "lanes": 4}}),
    ("arrays", INDEXED, {"worker": TrainingWorker(index=2, count=3), "batch_size": 9}),
]


@pytest.mark.parametrize(("kind", "config", "both"), slow_but_first(READ))
def test_the_batches_are_those_of_a_whole_snapshot_from_any_step(snapshot_of, kind, config, both):
    """Of a part of the rows, and of uncompressed shards in any order."""
    whole, found = (reading(snapshot_of, kind, **more, **both) for more in ({}, config))
    assert whole.plan.reads_whole_snapshot and found.plan.seekable
    if "fraction" in config:
        assert found.reader.stored == count_stored(found.examples, config["fraction"])
    else:
        assert not found.plan.reads_snapshot and whole.reader.order == found.order
    expected = batches(whole, epochs=2)
    for step in (0, found.steps_per_epoch + 1):
        assert same(batches(found, first_step=step, epochs=2), expected[step:]), step
        assert found.dataset(first_step=step, epochs=2).cardinality() == len(expected) - step


@pytest.mark.parametrize("kind", slow_but_first(["unlike", "photos"]))
def test_values_of_the_first_rows_are_stored_and_all_labels_keys_and_statistics(snapshot_of, kind):
    whole, part, none = (snapshot_of(kind, fraction) for fraction in (1.0, 0.3, 0.0))
    for split, rows in part.snapshot.splits.items():
        stored = count_stored(rows.count, 0.3)
        assert 0 < rows.rows(part.input_column) == stored == part.find_rows(split, 0.3) < rows.count
        for name, read in (("label", None), ("key", None), ("image", stored)):
            expected = whole.memmap(split, name, rows=read)
            np.testing.assert_array_equal(part.memmap(split, name), expected)
        path = column_path(none.snapshot_folder, split, "image")
        assert (path.stat().st_size, none.find_rows(split, 0.0)) == (0, 0)
    assert part.snapshot.statistics == whole.snapshot.statistics
    assert part.snapshot.key == whole.snapshot.key
    for data in (part, none):
        verify(data.snapshot_folder, read_index(data.snapshot_folder))


def test_damage_of_a_part_is_found(snapshot_of, tmp_path):
    data = snapshot_of("unlike", 0.3)
    shutil.copytree(data.snapshot_folder, tmp_path / "snapshot")
    path = column_path(tmp_path / "snapshot", "train", "image")
    flip_bit(path, -100)
    with pytest.raises(errors.CorruptColumn, match=r"image.bin: chunk of rows"):
        verify(tmp_path / "snapshot", data.snapshot)
    content = path.read_bytes()
    path.write_bytes(content[:-64])
    with pytest.raises(errors.CorruptColumn, match=f" bytes, not {len(content)};"):
        read_index(tmp_path / "snapshot")


def test_what_is_read_has_to_be_stored_and_uncompressed(snapshot_of):
    said = r"stores \d+ of the \d+ rows.*run `dvc repro snapshot`"
    with pytest.raises(errors.StaleSnapshot, match=said):
        batches(reading(snapshot_of, "arrays", fraction=0.5, stored=0.3))
    data = snapshot_of("arrays")
    packed = tuple(replace(shard, compression="gzip") for shard in data.shards.shards)
    unindexed = {"arrays": replace(data, shards=replace(data.shards, shards=packed))}
    said = r"holds no uncompressed shards; set shard\.compression"
    with pytest.raises(errors.MissingInput, match=said):
        pipeline(unindexed, **INDEXED, shuffle=GLOBAL).dataset()


def take(index, shards, out, **skip):
    """A snapshot of arrays; `skip` is what share of damaged examples may be left out."""
    settings = SnapshotSettings(on_corrupt="skip" if skip else "fail", **skip)
    return snapshot(index, shards, out, preprocess=(Decode(),), settings=settings)


def test_a_shard_with_fewer_examples_than_the_index_says_is_refused(arrays, tmp_path):
    index = read_shard_index(arrays / "shards")
    first, *others = index.shards
    longer = replace(first, records=first.records + 1, examples=first.examples + 1)
    said = f"{first.name}: holds {first.examples} examples, but"
    with pytest.raises(errors.CorruptShard, match=said):
        take(replace(index, shards=(longer, *others)), arrays / "shards", tmp_path / "snapshot")


def damaged_copy(source, folder, *, records, cut=0):
    """Shards with a flipped bit in so many records of one, and `cut` bytes missing at its end."""
    shutil.copytree(source / "shards", folder)
    index = read_shard_index(folder)
    shard = index.for_split("train")[1]
    path = folder / shard.name
    for number in range(records):
        flip_bit(path, number * (shard.bytes // shard.records) + 60)
    path.write_bytes(path.read_bytes()[: shard.bytes - cut])
    return index, path


@pytest.mark.slow
def test_damaged_records_are_left_out_of_every_configuration_if_wished(photos, tmp_path):
    index, _ = damaged_copy(photos, tmp_path / "shards", records=1, cut=3)
    (tmp_path / "manifest").symlink_to(photos / "manifest")
    out, skip = tmp_path / "snapshot", {"on_corrupt": "skip", "max_corrupt_fraction": 0.3}
    found = prepare_snapshot(tmp_path, out, "photos", fraction=0.3, **skip)
    names = ("naive", "in_memory", "cache_memory", "shards_global", "snapshot_part")
    configs = [{"read": "files"}, *(CONFIGS[name] for name in names)]
    opened = [pipeline({"photos": found}, "photos", **IN_ORDER, **one) for one in configs]
    assert digest_of_all(dict(enumerate(opened))).examples == index.examples("train") - 2
    repaired = next(shard for shard in found.shards.shards if shard.repaired)
    assert found.find_damage(repaired) == []
    found.shard_files.path(repaired).write_bytes(b"")
    assert f"delete {out / 'repaired'} and run `dvc repro snapshot`" in found.find_damage(repaired)


def test_damaged_records_are_left_out_up_to_a_bound(arrays, stored, tmp_path, capsys):
    index, path = damaged_copy(arrays, tmp_path / "shards", records=2)
    shards, out = tmp_path / "shards", tmp_path / "snapshot"
    written = take(index, shards, out, max_corrupt_fraction=0.02)
    printed = capsys.readouterr().out
    assert f"{path}: record 1 at byte" in printed and "examples dropped: 2" in printed
    kept = {*np.fromfile(column_path(out, "train", "key"), np.int64)}
    whole = {*stored["arrays"].memmap("train", "key")}
    assert kept < whole and written.splits["train"].count == len(kept) == len(whole) - 2
    repaired = index.with_repaired(written.repaired)
    assert repaired.data_digest != index.data_digest, "what is left is other data"
    said = r"2 of 200 examples .*snapshot.max_corrupt_fraction allows 0.10%"
    with pytest.raises(errors.CorruptShard, match=said):
        take(index, shards, tmp_path / "other", max_corrupt_fraction=0.001)
    assert not (tmp_path / "other").exists()


def test_damage_met_while_reading_is_named_and_another_error_stays_what_it_is(
    arrays, stored, tmp_path
):
    _, path = damaged_copy(arrays, tmp_path / "shards", records=1)
    damaged = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    for name in ("vectorized", "shards_global"):
        named = pytest.raises(errors.CorruptShard, match=f"{path}: record 0 at byte 0")
        with named, explain_read_errors(damaged):
            batches(pipeline({"arrays": damaged}, **CONFIGS[name]))
    # Shards that are not read are not searched for what an op refuses.
    for data, shards in ((stored["arrays"], True), (damaged, False)):
        unchanged = pytest.raises(tf.errors.InvalidArgumentError, match="something else")
        with unchanged, explain_read_errors(data, shards=shards):
            raise tf.errors.InvalidArgumentError(None, None, "something else")
    with pytest.raises(errors.CorruptShard), explain_read_errors(damaged, shards=False):
        raise tf.errors.DataLossError(None, None, "damage")
