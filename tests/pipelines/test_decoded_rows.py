"""A snapshot that stores a part of the rows: the others are decoded when they are read, and every
batch is that of a whole one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from lanes import slow_but_first
from small_pipelines import BATCH, PREPROCESS, batches, pipeline, same

from throughline.assembly.inputs import explain_read_errors
from throughline.data.columns.index import column_path, count_stored, read_index, verify
from throughline.data.shards.index import read_shard_index
from throughline.measurement.draws import check_epoch
from throughline.measurement.equality import digest_examples
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.decoded_rows import join_rows
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.augmentations import Brightness, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop, Decode
from throughline.plan.plan import make_plan, set_storage_order
from throughline.plan.spec import InputSpec
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, SnapshotSettings
from throughline.shared.errors import CorruptColumn, CorruptShard, StaleSnapshot

pytestmark = pytest.mark.integration

AUGMENT = (Flip(), Brightness())
GLOBAL = {"kind": "global"}
FRACTIONS = (0.0, 0.3, 1.0)
UNLIKE = "unlike"  # photos in their own sizes
KINDS = {**PREPROCESS, UNLIKE: (Decode(),)}


def write(prepared, out, kind, fraction):
    """Write a snapshot of this fraction, and open it."""
    snapshot(
        read_shard_index(prepared / "shards"),
        prepared / "shards",
        out,
        preprocess=KINDS[kind],
        settings=SnapshotSettings(fraction=fraction),
    )
    return open_prepared_data(
        manifest=prepared / "manifest",
        shards=prepared / "shards",
        snapshot=out,
        preprocess=KINDS[kind],
    )


@pytest.fixture(scope="module")
def parts(arrays, photos, tmp_path_factory):
    """Snapshots of every kind and fraction, in chunks of a few rows."""
    root = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_writer, "ROWS_BYTES", 5000)
        return {
            (kind, fraction): write(
                arrays if kind == "arrays" else photos, root / f"{kind}-{fraction}", kind, fraction
            )
            for kind in KINDS
            for fraction in FRACTIONS
        }


def reading(parts, kind, fraction, *, stored=None, **more):
    """What reads this fraction of a snapshot, which stores that or more."""
    data = parts[kind, fraction if stored is None else stored]
    config = {"shuffle": GLOBAL, **more, "snapshot": {"fraction": fraction}}
    return pipeline({kind: data}, kind, read="snapshot", augment=AUGMENT, **config)


def of_unlike(data, fraction, *, augment, in_order=False):
    """What reads a fraction of photos that keep their sizes."""
    config = PipelineConfig(read="snapshot", shuffle=GLOBAL, snapshot={"fraction": fraction})
    spec = InputSpec(
        schema=data.shards.schema,
        preprocess=KINDS[UNLIKE],
        augment=augment,
        postprocess=(),
        batch_size=BATCH,
    )
    plan = make_plan(set_storage_order(config) if in_order else config, spec)
    return InputPipeline(plan=plan, data=data, split="train", seed=3, with_keys=in_order)


@pytest.mark.parametrize("kind", slow_but_first(list(PREPROCESS)))
@pytest.mark.parametrize("fraction", slow_but_first([0.3, 0.0]))
def test_the_batches_are_those_of_a_whole_snapshot(parts, kind, fraction):
    expected = batches(reading(parts, kind, 1.0), epochs=2)
    for config in ({}, {"map": {"parallel": 2}, "prefetch": 2}):
        found = batches(reading(parts, kind, fraction, **config), epochs=2)
        assert same(found, expected), config


@pytest.mark.parametrize("kind", slow_but_first(list(PREPROCESS)))
def test_a_part_may_be_read_of_what_is_stored(parts, kind):
    part = reading(parts, kind, 0.3, stored=1.0)
    assert part.reader.stored == count_stored(part.examples, 0.3)
    value = part.data.input_column.name
    assert part.reader.variables[value].shape[0] == part.reader.stored
    assert same(batches(part), batches(reading(parts, kind, 1.0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"sampling": "balanced"},
        {"shuffle": {"kind": "none"}},
        {"shuffle": {"kind": "window", "size": 32}},
        {"graph_rewrites": True, "map": {"parallel": "auto"}},
    ],
    ids=str,
)
def test_every_order_and_sampling_is_that_of_a_whole_snapshot(parts, config):
    expected = batches(reading(parts, "photos", 1.0, **config))
    for fraction in (0.0, 0.3):
        assert same(batches(reading(parts, "photos", fraction, **config)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.3, 0.0])
@pytest.mark.parametrize(
    "augment",
    [
        (RandomResizedCrop(height=20, width=24), Flip(), Brightness()),
        (Brightness(), RandomCrop(height=20, width=24)),  # which a fetch cannot do
        (RandomCrop(height=20, width=24), Flip()),
        (CenterCrop(height=27, width=34),),
    ],
    ids=repr,
)
def test_images_of_unlike_sizes_are_cut_as_those_of_a_whole_snapshot(parts, fraction, augment):
    whole = of_unlike(parts[UNLIKE, 1.0], 1.0, augment=augment)
    expected = batches(whole, epochs=2)
    for stored in (fraction, 1.0):
        part = of_unlike(parts[UNLIKE, stored], fraction, augment=augment)
        assert same(batches(part, epochs=2), expected), stored


@pytest.mark.parametrize(
    "crop",
    slow_but_first(
        [RandomResizedCrop(height=20, width=24).in_evaluation(), CenterCrop(height=20, width=24)]
    ),
    ids=repr,
)
def test_every_split_has_the_same_examples_whatever_is_stored(parts, crop):
    for split in ("train", "validation", "test"):
        digests = {
            digest_examples(
                replace(of_unlike(data, fraction, augment=(crop,), in_order=True), split=split)
            ).digest
            for (kind, fraction), data in parts.items()
            if kind == UNLIKE
        }
        assert len(digests) == 1, split


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fraction"), [("photos", 0.3), ("arrays", 0.0)])
def test_any_step_can_be_started_from(parts, kind, fraction):
    pipe = reading(parts, kind, fraction, prefetch=2)
    whole = batches(pipe, epochs=2)
    for step in (1, pipe.steps_per_epoch, pipe.steps_per_epoch + 1):
        assert same(batches(pipe, first_step=step, epochs=2), whole[step:]), step


@pytest.mark.slow
def test_workers_get_the_slices_that_they_get_of_a_whole_snapshot(parts):
    workers, batch_size = 3, 9

    def of(index, fraction):
        worker = TrainingWorker(index=index, count=workers)
        made = reading(parts, "arrays", fraction, worker=worker)
        spec = replace(made.plan.spec, batch_size=batch_size)
        config = PipelineConfig(read="snapshot", shuffle=GLOBAL, snapshot={"fraction": fraction})
        return batches(replace(made, plan=make_plan(config, spec)), epochs=2)

    for index in range(workers):
        assert same(of(index, 0.3), of(index, 1.0))


def test_an_epoch_draws_every_example_once(parts):
    draws, rows = check_epoch(reading(parts, "photos", 0.3))
    assert (draws.distinct, draws.most_often) == (draws.examples, 1)
    assert sorted(rows.tolist()) == list(range(draws.examples))


def test_rows_keep_their_places_in_a_batch():
    columns, epoch = {}, tf.constant(0, tf.int64)
    seen = []

    def note(sign):
        def make(columns, rows, epoch):
            seen.append(rows.numpy().tolist())
            return {"image": tf.cast(sign * rows[:, None], tf.int32)}

        return make

    rows = tf.constant([5, 1, 9, 4, 0, 5], tf.int64)
    joined = join_rows(5, note(1), note(-1))(columns, rows, epoch)
    assert joined["image"].numpy()[:, 0].tolist() == [-5, 1, -9, 4, 0, -5]
    assert seen == [[1, 4, 0], [5, 9, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_the_first_rows_are_stored_and_all_labels_keys_and_statistics(parts, kind):
    whole, part, none = (parts[kind, fraction] for fraction in (1.0, 0.3, 0.0))
    for split, rows in part.snapshot.splits.items():
        stored = count_stored(rows.count, 0.3)
        assert rows.rows(part.input_column) == stored == part.find_rows(split, 0.3)
        assert 0 < stored < rows.count
        for name in ("label", "key"):
            np.testing.assert_array_equal(part.memmap(split, name), whole.memmap(split, name))
        value = part.input_column.name
        first = whole.memmap_first(split, value, stored)
        np.testing.assert_array_equal(part.memmap(split, value), first)
        path = column_path(none.snapshot_folder, split, value)
        assert (path.stat().st_size, none.find_rows(split, 0.0)) == (0, 0)
    assert part.snapshot.statistics == whole.snapshot.statistics
    assert part.snapshot.key == whole.snapshot.key
    for data in (part, none):
        verify(data.snapshot_folder, read_index(data.snapshot_folder))


@pytest.mark.slow
def test_a_whole_snapshot_is_what_it_was_without_a_fraction(arrays, stored, tmp_path):
    write(arrays, tmp_path / "snapshot", "arrays", 1.0)
    for path in [*(arrays / "snapshot").rglob("*.bin"), arrays / "snapshot" / "index.json"]:
        name = path.relative_to(arrays / "snapshot")
        assert path.read_bytes() == (tmp_path / "snapshot" / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["photos", UNLIKE])
def test_damage_of_a_part_is_found(parts, photos, tmp_path, kind):
    data = write(photos, tmp_path / "snapshot", kind, 0.3)
    path = column_path(data.snapshot_folder, "train", "image")
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptColumn, match=r"image.bin: chunk of rows"):
        verify(data.snapshot_folder, data.snapshot)
    path.write_bytes(content[:-64])
    with pytest.raises(CorruptColumn, match=f"the index says {len(content)}"):
        read_index(data.snapshot_folder)


def test_what_is_read_has_to_be_stored(parts):
    with pytest.raises(
        StaleSnapshot, match=r"stores \d+ of the \d+ rows.*run `dvc repro snapshot`"
    ):
        batches(reading(parts, "arrays", 0.5, stored=0.3))


@pytest.mark.slow
def test_an_interrupted_snapshot_of_another_fraction_is_not_continued(
    photos, tmp_path, monkeypatch
):
    real, seen = snapshot_writer.write_shard, []

    def stop_at_the_third(context, shard, start):
        seen.append(shard.name)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(context, shard, start)

    monkeypatch.setattr(snapshot_writer, "write_shard", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        write(photos, tmp_path / "snapshot", "photos", 0.3)
    began = len(seen)
    data = write(photos, tmp_path / "snapshot", "photos", 0.5)
    shards = sum(len(data.shards.for_split(split)) for split in data.shards.splits)
    assert len(seen) - began == shards, "all of them"
    verify(data.snapshot_folder, data.snapshot)


def test_rows_of_repaired_shards_are_decoded_from_what_could_be_read(arrays, tmp_path):
    folder = tmp_path / "data"
    (folder / "shards").mkdir(parents=True)
    (folder / "manifest").symlink_to(arrays / "manifest")
    index = read_shard_index(arrays / "shards")
    broken = index.for_split("train")[0].name
    for path in (arrays / "shards").glob("*"):
        content = bytearray(path.read_bytes())
        if path.name == broken:
            content[len(content) // 2] ^= 1
        (folder / "shards" / path.name).write_bytes(content)
    settings = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.5, fraction=0.3)
    index = read_shard_index(folder / "shards")
    snapshot(
        index, folder / "shards", folder / "snapshot", preprocess=(Decode(),), settings=settings
    )
    data = open_prepared_data(
        manifest=folder / "manifest",
        shards=folder / "shards",
        snapshot=folder / "snapshot",
        preprocess=(Decode(),),
    )
    assert data.snapshot.repaired
    in_order = {"postprocess": (), "with_keys": True, "in_order": True}
    part = {"read": "snapshot", "shuffle": GLOBAL, "snapshot": {"fraction": 0.3}}
    digests = [
        digest_examples(pipeline({"arrays": data}, **in_order, **config))
        for config in (part, {"read": "shards"})
    ]
    assert digests[0] == digests[1]


def test_damage_of_a_record_that_is_decoded_is_named(parts, arrays, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in (arrays / "shards").glob("*"):
        (folder / path.name).symlink_to(path)
    data = replace(parts["arrays", 0.0], shards_folder=folder)
    shard = data.shards.for_split("train")[0]
    content = bytearray((folder / shard.name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / shard.name).unlink()
    (folder / shard.name).write_bytes(content)
    with pytest.raises(CorruptShard, match=shard.name), explain_read_errors(data):
        batches(reading({("arrays", 0.0): data}, "arrays", 0.0))
