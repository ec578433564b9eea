"""AutoGraph rewrites the op of a user, and nothing of what builds a pipeline."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.support.small_pipelines import CONFIGS, batches, pipeline
from throughline.kernels.autograph import without_autograph
from throughline.kernels.elements import apply_ops
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Op


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
    epoch = tf.constant(0, tf.int64)

    def darken(element):
        return apply_ops((Darken(),), element, seed=0, epoch=epoch)["image"]

    in_graph = tf.data.Dataset.from_tensor_slices({"image": images}).map(darken)
    found = [image.numpy().ravel().tolist() for image in in_graph]
    assert found == [[102, 2], [22, 2]]
    assert found == [darken({"image": tf.constant(one)}).numpy().ravel().tolist() for one in images]


def test_a_function_that_is_marked_is_traced_as_written():
    def positive(value):
        return 1 if value > 0 else 0

    assert int(tf.function(positive)(tf.constant(3))) == 1
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(without_autograph(positive))(tf.constant(3))


def test_what_builds_a_pipeline_is_not_rewritten(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # AutoGraph writes what it rewrites
    for name in ("naive", "vectorized", "shards_global", "optimized"):
        assert batches(pipeline(stored, augment=(Flip(),), **CONFIGS[name]))
    assert not list(tmp_path.glob("__autograph_generated_file*"))
    tf.function(lambda limit: limit + 1 if limit > 0 else limit)(tf.constant(1))
    assert list(tmp_path.glob("__autograph_generated_file*")), "as is seen where it does"
