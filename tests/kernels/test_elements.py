"""Ops draw by their name and position, and a batch has what its model takes."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.support.small_pipelines import CONFIGS, batches, pipeline
from throughline.kernels.elements import apply_ops, split_window
from throughline.kernels.sequences import pack_rows, pad_rows
from throughline.plan.augmentations import Brightness, Flip
from throughline.plan.ops import Op, Rescale, Standardize

pytestmark = pytest.mark.integration

COUNT = 64
EPOCH = tf.constant(2, tf.int64)


def brighten(delta: float, *, first: int = 0, seed: int = 3) -> np.ndarray:
    """By how much the pixel of each of 64 gray images changes."""
    element = {
        "image": tf.fill((COUNT, 1, 1, 1), tf.constant(128, tf.uint8)),
        "key": tf.range(COUNT, dtype=tf.int64),
    }
    ops = (Brightness(delta=delta),)
    changed = apply_ops(ops, element, seed=seed, epoch=EPOCH, first_op_position=first)["image"]
    return changed.numpy().astype(np.int64).ravel() - 128


def test_a_stronger_op_draws_as_the_weaker_one_did_and_one_elsewhere_independently():
    weak, strong = brighten(0.2), brighten(0.4)
    assert np.ptp(weak) > 50
    np.testing.assert_allclose(strong, 2 * weak, atol=2)
    np.testing.assert_array_equal(weak, brighten(0.2))
    for other in (brighten(0.2, first=1), brighten(0.2, seed=4)):
        assert abs(np.corrcoef(weak, other)[0, 1]) < 0.5


TEN = {"image": tf.constant([[[10]]], tf.uint8), "key": tf.constant(1, tf.int64)}


def test_ops_run_in_their_order():
    ops = (Rescale(scale=0.5, offset=1.0), Standardize(mean=(2.0,), deviation=(4.0,)))
    result = apply_ops(ops, TEN, seed=0, epoch=EPOCH)["image"]
    assert result.numpy().tolist() == [[[1.0]]]


class Inherited(Rescale):
    """An op with the kernel of another one."""


def test_an_op_that_inherits_its_kernel_runs_in_a_data_set_without_a_warning(caplog):
    tf.get_logger().addHandler(caplog.handler)
    dataset = tf.data.Dataset.from_tensors(TEN).map(
        lambda one: apply_ops((Inherited(scale=0.5),), one, seed=0, epoch=EPOCH)
    )
    try:
        assert next(iter(dataset))["image"].numpy().tolist() == [[[5.0]]]
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize(("targets", "label"), [((1,), [[30]]), ((1, 0), [[30, 3]])])
def test_a_window_is_split_into_what_is_seen_and_what_is_to_be_predicted(targets, label):
    window = tf.constant([[time, 10 * time] for time in range(4)])
    element = split_window(window, 3, targets)
    assert element["features"].numpy().tolist() == [[0, 0], [1, 10], [2, 20]]
    assert element["label"].numpy().tolist() == label
    batch = split_window(tf.stack([window, window + 1]), 3, targets)
    assert batch["features"].shape == (2, 3, 2)
    assert batch["label"].shape == (2, 1, len(targets))


class Darken(Op):
    """An op as a user may write it: Python's `if` and `for` about tensors."""

    name = "darken"

    def compute(self, element, draw):
        image, steps = element["image"], 0
        if tf.reduce_max(image) > 100:
            image = image // 2
        for _ in tf.range(tf.shape(image)[0]):
            steps += 1
        return {**element, "image": image + tf.cast(steps, tf.uint8)}


def test_an_op_of_a_user_may_say_if_and_for_about_tensors():
    images = np.array([[[[200]], [[0]]], [[[20]], [[0]]]], np.uint8)

    def darken(element):
        return apply_ops((Darken(),), element, seed=0, epoch=EPOCH)["image"]

    in_graph = tf.data.Dataset.from_tensor_slices({"image": images}).map(darken)
    found = [image.numpy().ravel().tolist() for image in in_graph]
    assert found == [[102, 2], [22, 2]]
    assert found == [darken({"image": tf.constant(one)}).numpy().ravel().tolist() for one in images]


def test_what_builds_a_pipeline_is_not_rewritten(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # AutoGraph writes what it rewrites
    for name in ("naive", "optimized"):
        assert batches(pipeline(stored, augment=(Flip(),), **CONFIGS[name]))
    assert not list(tmp_path.glob("__autograph_generated_file*"))
    tf.function(lambda limit: limit + 1 if limit > 0 else limit)(tf.constant(1))
    assert list(tmp_path.glob("__autograph_generated_file*")), "as is seen where it does"


VALUES = tf.constant([11, 12, 13, 0, 21, 22, 0, 0, 31, 32, 33, 34], tf.uint16)


def int64(values):
    return tf.constant(values, tf.int64)


def test_rows_are_padded_to_the_length_asked_for():
    rows = pad_rows(VALUES, int64([8, 4]), int64([4, 2]), int64(6))
    assert rows.numpy().tolist() == [[31, 32, 33, 34, 0, 0], [21, 22, 0, 0, 0, 0]]
    assert rows.dtype == tf.int32


def test_documents_share_rows_with_their_segments_and_positions():
    begins = int64([[0, 4, 0], [8, 0, 0], [0, 0, 4]])
    lengths = int64([[3, 2, 0], [4, 0, 0], [0, 0, 2]])
    tokens, segments, positions = (part.numpy() for part in pack_rows(VALUES, begins, lengths, 6))
    assert tokens.tolist() == [
        [11, 12, 13, 21, 22, 0],
        [31, 32, 33, 34, 0, 0],
        [21, 22, 0, 0, 0, 0],
    ]
    assert segments.tolist() == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0], [3, 3, 0, 0, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0], [0, 1, 0, 0, 0, 0]]
    tokens, segments, _ = pack_rows(VALUES, int64([[8, 4], [0, 0]]), int64([[4, 2], [0, 0]]), 6)
    assert tokens.numpy().tolist() == [[31, 32, 33, 34, 21, 22], [0] * 6], "full and empty rows"
    assert segments.numpy().tolist() == [[1, 1, 1, 1, 2, 2], [0] * 6]
