"""The batch of any step is rebuilt as training consumed it, and so is when an example was used."""

import shutil
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import texts
from tests.support.small_data import flip_bit
from tests.support.small_pipelines import batches
from tests.support.texts import prepare_texts
from tests.support.trainings import params_of
from throughline.assembly.consumption import find_uses
from throughline.assembly.evaluation import describe_batch, measure_token_losses
from throughline.assembly.fingerprint import training_fingerprint as fingerprint
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.assembly.receipts import compare_with_receipt, make_receipt
from throughline.assembly.step_batch import check_rows, open_training_batches, rebuild_batches
from throughline.plan.training_workers import TrainingWorker
from throughline.results.receipt import LOSSES
from throughline.shared.errors import CorruptColumn, CorruptShard, ImpossiblePlan, MissingInput
from throughline.shared.layout import MODEL_FILE, Layout

pytestmark = pytest.mark.integration

# Whatever changes how often, in which order and on which device examples are delivered.
SLOW = "part", "snapshot_window", "device_resident", "shards_global", "in_memory", "balanced_stream"
NAMES = ["snapshot", "balanced", "cache_memory"]
NAMES += [pytest.param(name, marks=pytest.mark.slow) for name in SLOW]
PART = "{read: snapshot, snapshot: {fraction: 0.3}, shuffle: {kind: global}}"
EPOCHS = 2


def rebuild_batch(pipeline, params, name, step):
    return next(rebuild_batches(pipeline, params, name, [step]))


def open_all(layout, *overrides):
    params = params_of("postprocess=[]", f"pipelines.part={PART}", *overrides)
    return params, open_inputs(params, layout)


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_of_a_step_is_the_one_that_training_consumes(layout, name):
    params, data = open_all(layout)
    pipeline = open_input_pipeline(params, name, data)
    consumed, count = list(pipeline.batches(epochs=EPOCHS)), pipeline.steps_per_epoch
    opened = open_training_batches(params, name, data)
    for step in (count - 1, count + 2, 0):
        batch = rebuild_batch(opened, params, name, step)
        inputs, labels = consumed[step]
        np.testing.assert_array_equal(batch.content["image"], inputs)
        np.testing.assert_array_equal(batch.content["label"], labels)
        assert {op for ops in batch.changed_by for op in ops} == {"flip", "brightness"}
        assert check_rows(batch) == (pipeline.plan.gather is not None)
    keys = data.memmap("train", "key")
    rows = np.flatnonzero(np.isin(keys, batch.content["key"][:3]))
    if name == "balanced_stream":
        with pytest.raises(ImpossiblePlan, match="draws by class"):
            find_uses(opened, rows, steps=2 * count)
        return
    whole = [batch["key"] for batch in batches(opened, epochs=EPOCHS)]
    uses = find_uses(opened, rows, steps=len(whole))
    for row in rows.tolist():
        steps = [step for step, used in enumerate(whole) if keys[row] in used]
        assert [*uses[row].epochs] == sorted({step // count + 1 for step in steps})
        assert uses[row].first_step == (steps[0] + 1 if pipeline.plan.seekable else None)


def test_the_slices_of_several_processes_are_the_batch(layout):
    params, data = open_all(layout, "batch_size=24")
    alone = open_input_pipeline(params, "snapshot", data)
    workers = [TrainingWorker(index=index, count=4) for index in range(4)]
    slices = [list(replace(alone, worker=worker).dataset()) for worker in workers]
    opened = open_training_batches(params, "snapshot", data, multiple=4)
    for step in (0, len(slices[0]) - 1):
        batch = rebuild_batch(opened, params, "snapshot", step)
        consumed = np.concatenate([one[step][0] for one in slices])
        np.testing.assert_array_equal(batch.content["image"], consumed)


@pytest.mark.parametrize("change", ["deterministic=false", "service={workers: 2}"])
def test_a_batch_that_depends_on_timing_is_refused(layout, tmp_path, change):
    name, more = "map_parallel", "train.deterministic=false"
    params, data = open_all(layout, more, f"pipelines.{name}.{change}")
    with pytest.raises(ImpossiblePlan, match=rf"pipelines\.{name}: no batch can be rebuilt, beca"):
        rebuild_batch(open_training_batches(params, name, data), params, name, 0)
    assert complete(params, name, data, tmp_path).sample is None


def complete(params, name, data, folder):
    """The receipt of a training of two epochs, whose files are in a folder."""
    for file in (MODEL_FILE, LOSSES):
        (folder / file).write_bytes(b"trained")
    pipeline, parts = open_training_batches(params, name, data), fingerprint(params, name, data)
    steps = EPOCHS * pipeline.steps_per_epoch
    return make_receipt(pipeline, params, name, parts, steps=steps, folder=folder)


def compare(receipt, params, data, **parts):
    pipeline = open_training_batches(params, "optimized", data)
    return compare_with_receipt(receipt, pipeline, fingerprint(params, "optimized", data) | parts)


def test_other_batches_than_the_trainings_are_refused_by_the_part_that_differs(layout, tmp_path):
    params, data = open_all(layout)
    receipt = complete(params, "optimized", data, tmp_path)
    assert compare(receipt, params, data) == ""
    for change, part in {
        "train.seed=9": "train",
        "batch_size=20": "batch_size",
        "augment=[flip]": "ops",
        "augment=[flip, {brightness: {delta: 0.2}}]": "ops",
        "pipelines.optimized.shuffle.kind=none": "pipeline",
    }.items():
        other, _ = open_all(layout, change)
        with pytest.raises(MissingInput, match=f"what differs: {part}"):
            compare(receipt, other, data)
    other, _ = open_all(layout, "model.options={width: 7}", "pipelines.optimized.prefetch=5")
    allowed = compare(receipt, other, data, versions="of other libraries")
    assert allowed == "pipeline, model, versions", "which change no batch"


@pytest.mark.parametrize("column", ["image", "label", "key"])
def test_a_byte_that_changed_in_a_row_of_the_batch_is_noticed(layout, tmp_path, column):
    shutil.copytree(layout.root / "data", tmp_path / "data")
    params, data = open_all(Layout(tmp_path))
    opened = open_training_batches(params, "optimized", data)
    batch = rebuild_batch(opened, params, "optimized", 3)
    row = data.memmap("train", "key").tolist().index(batch.content["key"][5])
    path = tmp_path / "data" / "snapshot" / "train" / f"{column}.bin"
    flip_bit(path, row * data.column(column).stride)
    with pytest.raises(CorruptColumn, match=f"{column} of row {row:,} of the train split"):
        check_rows(rebuild_batch(opened, params, "optimized", 3))


def test_a_damaged_record_of_the_batch_is_named(layout, tmp_path):
    shutil.copytree(layout.root / "data", tmp_path / "data")
    params, data = open_all(Layout(tmp_path))
    opened = open_training_batches(params, "optimized", data)
    shard = next((tmp_path / "data" / "shards").rglob("train-*"))
    flip_bit(shard, shard.stat().st_size // 2)
    said = r"train-.*the checksum .*`python -m tasks\.verify` finds"
    with pytest.raises(CorruptShard, match=said):
        for batch in rebuild_batches(opened, params, "optimized", range(opened.steps_per_epoch)):
            check_rows(batch)


def test_a_text_in_a_packed_row_has_the_loss_that_it_has_alone(tmp_path):
    layout, order = prepare_texts(tmp_path), {"read": "snapshot", "shuffle": {"kind": "global"}}
    packed, padded = texts.params_of(order | {"batch": {"pack": 64}}), texts.params_of(order)
    data = open_inputs(packed, layout)
    model = build_models_for(packed, data).full_model

    def describe(params, steps=None):
        """What is said of each text of these steps of the first epoch, or of all of its steps."""
        opened = open_training_batches(params, "p", data)
        rebuilt = rebuild_batches(opened, params, "p", steps or range(opened.steps_per_epoch))
        return [one for batch in rebuilt for one in describe_batch(batch, model, params, layout)[0]]

    alone, shown = {one["id"]: one for one in describe(padded)}, describe(packed, [1])
    assert len(shown) > 8, "the rows of a batch"
    losses = [float(one["loss"]) for one in shown]
    assert losses == sorted(losses, reverse=True)
    for one, loss in zip(shown, losses, strict=True):
        same = alone[one["id"]]
        assert loss == pytest.approx(float(same["loss"]), rel=1e-3)
        assert all(one[name] == same[name] for name in ("label", "predicted", "value"))


def test_the_loss_of_a_window_is_the_mean_over_its_tokens():
    model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(4, 4)])
    tokens, following = np.array([[0, 1, 2], [3, 3, 3]]), np.array([[1, 2, 3], [0, 1, 2]])
    likely = np.take_along_axis(tf.nn.softmax(model(tokens)).numpy(), following[..., None], axis=-1)
    expected = -np.log(likely[..., 0]).mean(axis=1)
    np.testing.assert_allclose(measure_token_losses(model, tokens, following), expected, rtol=1e-5)
