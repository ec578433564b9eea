"""Ops on elements and batches, and crops."""

import math
import random
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.support.small_pipelines import CONFIGS, batches, pipeline
from throughline.kernels import pixels
from throughline.kernels.augmentations import draw_crops
from throughline.kernels.crop_windows import draw_crop_windows
from throughline.kernels.elements import apply_ops, split_window
from throughline.kernels.kernels import compute
from throughline.kernels.randomness import RandomStream
from throughline.pipelines.read.row_fetching import make_crop_fn
from throughline.pipelines.read.sequence_batches import pack_rows, pad_rows
from throughline.plan.augmentations import Brightness, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop, Op, Rescale, Resize
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

EPOCH = tf.constant(1, tf.int64)
KEYS = np.arange(20_000, dtype=np.int64) * 7919


def apply(element, *ops, seed=3, first=0):
    return apply_ops(ops, element, seed=seed, epoch=EPOCH, first_op_position=first)


def test_a_stronger_op_draws_as_the_weaker_one_did_and_one_elsewhere_independently():
    pixel = tf.fill((64, 1, 1, 1), tf.constant(128, tf.uint8))
    gray = {"image": pixel, "key": tf.constant(KEYS[:64])}

    def brighten(delta, **place):  # by how much each pixel changes
        changed = apply(gray, Brightness(delta=delta), **place)["image"]
        return changed.numpy().astype(int).ravel() - 128

    weak, strong = brighten(0.2), brighten(0.4)
    assert np.ptp(weak) > 50
    np.testing.assert_allclose(strong, 2 * weak, atol=2)
    np.testing.assert_array_equal(weak, brighten(0.2))
    for other in (brighten(0.2, first=1), brighten(0.2, seed=4)):
        assert abs(np.corrcoef(weak, other)[0, 1]) < 0.5


def test_a_window_is_split_into_what_is_seen_and_what_is_to_be_predicted():
    window = tf.constant([[time, 10 * time] for time in range(4)])
    for targets, label in (((1,), [[30]]), ((0, 1), [[3, 30]]), ((1, 0), [[30, 3]])):
        batch = split_window(tf.stack([window, window]), 3, targets)
        assert batch["features"].numpy().tolist() == [[[0, 0], [1, 10], [2, 20]]] * 2
        assert batch["label"].numpy().tolist() == [label] * 2


class Inherited(Rescale):
    """An op with the kernel of another one."""


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


def test_an_op_of_a_user_may_say_if_and_for_about_tensors_or_inherit_its_kernel(caplog):
    images = np.array([[[[200]], [[0]]], [[[20]], [[0]]]], np.uint8)
    ops = Darken(), Inherited(scale=0.5)
    tf.get_logger().addHandler(caplog.handler)
    in_graph = tf.data.Dataset.from_tensor_slices({"image": images}).map(
        lambda element: apply(element, *ops)
    )
    eagerly = [apply({"image": tf.constant(image)}, *ops) for image in images]
    found = [one["image"].numpy().ravel().round().tolist() for one in (*in_graph, *eagerly)]
    assert found == [[51, 1], [11, 1]] * 2
    tf.get_logger().removeHandler(caplog.handler)
    assert not caplog.records, "no warning"


class Noise(Op):
    """An op as a user may write it: with TensorFlow's random numbers."""

    name = "noise"
    within: bool

    def compute(self, element, draw):
        if self.within:
            draws = tf.cond(element["key"] > 0, lambda: tf.random.uniform(()), lambda: 0.5)
        else:
            draws = tf.random.uniform(())
        return {**element, "image": element["image"] * draws}


@pytest.mark.parametrize("within", [True, False])
def test_an_op_of_a_user_that_draws_from_a_state_of_the_process_is_refused(within):
    element = {"image": tf.constant([1.0]), "key": tf.constant(1)}
    run = tf.function(lambda: apply(element, Noise(within=within)), autograph=False)
    with pytest.raises(ImpossiblePlan, match=r"^noise draws .* \(RandomUniform\); draw them by"):
        run()


def test_what_builds_a_pipeline_is_not_rewritten(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # AutoGraph writes what it rewrites
    for name in ("naive", "optimized"):
        assert batches(pipeline(stored, augment=(Flip(),), **CONFIGS[name]))
    assert not list(tmp_path.glob("__autograph_generated_file*"))
    tf.function(lambda limit: limit + 1 if limit > 0 else limit)(tf.constant(1))
    assert list(tmp_path.glob("__autograph_generated_file*")), "as is seen where it does"


def test_rows_are_padded_and_documents_share_rows_with_their_segments_and_positions():
    values = tf.constant([11, 12, 13, 0, 21, 22, 0, 0, 31, 32, 33, 34], tf.uint16)
    begins = tf.constant([[0, 4, 0], [8, 4, 0], [0, 0, 4], [0, 0, 0]], tf.int64)
    lengths = tf.constant([[3, 2, 0], [4, 2, 0], [0, 0, 2], [0, 0, 0]], tf.int64)
    packed = [part.numpy().tolist() for part in pack_rows(values, begins, lengths, 6)]
    assert list(zip(*packed, strict=True)) == [  # tokens, segments and positions of each row
        ([11, 12, 13, 21, 22, 0], [1, 1, 1, 2, 2, 0], [0, 1, 2, 0, 1, 0]),
        ([31, 32, 33, 34, 21, 22], [1, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1]),
        ([21, 22, 0, 0, 0, 0], [3, 3, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]),
        ([0] * 6, [0] * 6, [0] * 6),
    ]
    padded = pad_rows(values, begins[1, :2], lengths[1, :2], tf.constant(6, tf.int64))
    assert padded.numpy().tolist() == [[31, 32, 33, 34, 0, 0], [21, 22, 0, 0, 0, 0]]
    assert padded.dtype == tf.int32


CROP = RandomResizedCrop(height=8, width=8)


def draw(op: str = "op") -> RandomStream:
    return RandomStream(seed=3, epoch=EPOCH, salts=(op, 0))


def boxes(op: Op, size: tuple[int, int]) -> np.ndarray:
    return draw_crop_windows(op, tf.constant(size), tf.constant(KEYS), draw()).numpy()


def as_torchvision_draws(size: tuple[int, int], op: RandomResizedCrop, count: int) -> np.ndarray:
    """Heights and widths (count, 2) by its recipe, written once more, with Python's generator."""
    source, (tall, wide), sizes = random.Random(0), size, []
    for _ in range(count):
        for _ in range(10):
            area = tall * wide * source.uniform(*op.scale)
            ratio = math.exp(source.uniform(*map(math.log, op.ratio)))
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= wide and 0 < height <= tall:
                break
        else:
            width = min(wide, round(tall * op.ratio[1]))
            height = min(tall, round(wide / op.ratio[0]))
        sizes.append((height, width))
    return np.asarray(sizes)


@pytest.mark.parametrize(
    ("op", "size"),
    [
        (CROP, (256, 256)),
        (CROP, (500, 200)),
        (RandomResizedCrop(height=8, width=8, scale=(0.5, 0.9)), (375, 500)),
    ],
)
def test_rectangles_have_the_sizes_that_torchvision_gives_them(op, size):
    drawn = boxes(op, size)[:, 2:]
    expected = as_torchvision_draws(size, op, len(drawn))
    for mine, theirs in ((drawn, expected), (np.log(drawn), np.log(expected))):
        np.testing.assert_allclose(mine.mean(axis=0), theirs.mean(axis=0), rtol=0.015)
        np.testing.assert_allclose(mine.std(axis=0), theirs.std(axis=0), rtol=0.04)
        correlations = [np.corrcoef(sides.T)[0, 1] for sides in (mine, theirs)]
        assert abs(correlations[0] - correlations[1]) < 0.04


@pytest.mark.parametrize("size", [(1, 1), (3, 900)])
def test_rectangles_lie_within_their_image(size):
    top, left, height, width = boxes(CROP, size).T
    assert min(top.min(), left.min()) >= 0 and min(height.min(), width.min()) >= 1
    assert (top + height).max() <= size[0] and (left + width).max() <= size[1]


WHOLE = RandomResizedCrop(height=8, width=8, scale=(1.0, 1.0))  # which fits into squares alone
EVALUATED = RandomResizedCrop(height=224, width=224).in_evaluation()


@pytest.mark.parametrize(
    ("op", "size", "box"),
    [
        (WHOLE, (100, 1000), [0, 433, 100, 133]),
        (WHOLE, (1000, 90), [440, 0, 120, 90]),
        (CenterCrop(height=8, width=9), (5, 4), [-1, -2, 8, 9]),
        (CenterCrop(height=8, width=9), (11, 12), [1, 1, 8, 9]),
        (EVALUATED, (256, 256), [16, 16, 224, 224]),
        (EVALUATED, (256, 401), [16, 88, 224, 224]),
        (EVALUATED, (100, 100), [6, 6, 88, 88]),  # 87.5
    ],
)
def test_a_box_that_is_not_drawn_is_the_largest_one_in_the_center(op, size, box):
    assert (boxes(op, size) == box).all()


def test_the_center_is_that_of_resizing_and_then_cropping():
    assert "shorter=256" in repr(EVALUATED)
    wave = np.sin(np.arange(512)[:, None, None] / 40 + np.arange(640)[None, :, None] / 70)
    image = {"image": tf.constant(np.uint8(127 + 120 * wave)), "key": tf.constant(1, tf.int64)}
    whole = compute(Resize(shorter=256, antialias=True), image, draw())
    assert whole["image"].shape == (256, 320, 1)
    expected = compute(CenterCrop(height=224, width=224), whole, draw())["image"].numpy()
    crop = compute(EVALUATED, image, draw())["image"].numpy()
    assert abs(crop.astype(int) - expected).max() <= 2


def test_pixels_are_copied_averaged_or_interpolated_and_mirrored_into_aligned_memory():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    out = pixels.empty_images((3, 2, 2, 3))
    out[...] = 1
    copied = [[1, 2, 2, 2, 0], [1, 2, 2, 2, 1], [-1, 5, 2, 2, 0]]
    pixels.crop([image] * 3, np.asarray(copied), out)
    beyond = [[[0] * 3] * 2, [[15, 16, 17], [0] * 3]]
    np.testing.assert_array_equal(out, [image[1:3, 2:4], image[1:3, 3:1:-1], beyond])
    pixels.crop([image], np.asarray([[0, 2, 4, 4, 1]]), out[:1], method="area")
    means = image.reshape(2, 2, 3, 2, 3).astype(float).mean(axis=(1, 3))
    assert abs(out[0] - means[:, :0:-1]).max() <= 0.5
    wide = np.empty((1, 31, 2, 1), np.uint8)
    pixels.crop([np.full((5, 7, 1), 93, np.uint8)], np.asarray([[1, 1, 3, 5, 0]]), wide)
    assert (wide == 93).all()
    for shape in ((3, 5, 7, 3), (1, 1, 1, 1), (64, 224, 224, 3)):
        images = pixels.empty_images(shape)
        assert images.shape == shape and images.flags.c_contiguous
        assert images.ctypes.data % pixels.ALIGNMENT == 0, "TensorFlow takes it as it is"


def test_rows_of_a_snapshot_are_cut_as_they_are_stored(stored):
    data = stored["arrays"]
    images, rows = data.memmap("train", "image"), np.asarray([5, 0, 5, 17])
    crop = make_crop_fn(data, "train", RandomCrop(height=3, width=2))
    found = crop(tf.constant(rows), tf.constant([[1, 2, 3, 2, 0]] * 3 + [[7, 1, 3, 2, 1]]))
    expected = [*(images[row, 1:4, 2:4] for row in rows[:3]), images[17, 7:10, 2:0:-1]]
    np.testing.assert_array_equal(found, expected)


def test_two_flips_are_drawn_apart_and_undo_each_other():
    crop, one, other = RandomCrop(height=2, width=2), draw("one"), draw("other")

    def flipped(*flips):
        sizes, keys = tf.constant((9, 9)), tf.constant(KEYS[:200])
        return draw_crops((crop,), sizes, keys, [draw("crop"), *flips]).numpy()[:, 4]

    both = flipped(one, other)
    assert (both == (flipped(one) ^ flipped(other))).all() and 0 < both.mean() < 1
