"""Boxes are drawn as the field draws them, each of its own, and cut out pixel by pixel; of a
snapshot nothing but them is read.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import tensorflow as tf

from throughline.kernels import pixels
from throughline.kernels.crop_windows import draw_crop_windows
from throughline.kernels.cropping import draw_crops
from throughline.kernels.kernels import compute
from throughline.kernels.randomness import RandomStream
from throughline.pipelines.read.cropped_rows import make_crop_fn
from throughline.plan.augmentations import Flip, RandomCrop, RandomResizedCrop, ResizedCenterCrop
from throughline.plan.ops import CenterCrop, Op, Resize

pytestmark = pytest.mark.integration

KEYS = np.arange(20_000, dtype=np.int64) * 7919
CROP = RandomResizedCrop(height=8, width=8)


def draw(epoch: int = 1, op: str = "op") -> RandomStream:
    return RandomStream(seed=3, epoch=tf.constant(epoch, tf.int64), salts=(op, 0))


def boxes(op: Op, size: tuple[int, int], **changes) -> np.ndarray:
    return draw_crop_windows(op, tf.constant(size), tf.constant(KEYS), draw(**changes)).numpy()


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
SMALL = CenterCrop(height=8, width=9)
EVALUATED = RandomResizedCrop(height=224, width=224).in_evaluation()


@pytest.mark.parametrize(
    ("op", "size", "box"),
    [
        (WHOLE, (100, 1000), [0, 433, 100, 133]),
        (WHOLE, (1000, 90), [440, 0, 120, 90]),
        (SMALL, (5, 4), [-1, -2, 8, 9]),
        (SMALL, (11, 12), [1, 1, 8, 9]),
        (EVALUATED, (256, 256), [16, 16, 224, 224]),
        (EVALUATED, (256, 401), [16, 88, 224, 224]),
        (EVALUATED, (100, 100), [6, 6, 88, 88]),  # 87.5
    ],
)
def test_a_box_that_is_not_drawn_is_the_largest_one_in_the_center(op, size, box):
    assert (boxes(op, size) == box).all()


def test_the_center_is_that_of_resizing_and_then_cropping():
    assert ResizedCenterCrop(height=224, width=224, shorter=256) == EVALUATED
    wave = np.sin(np.arange(512)[:, None, None] / 40 + np.arange(640)[None, :, None] / 70)
    image = {"image": tf.constant(np.uint8(127 + 120 * wave)), "key": tf.constant(1, tf.int64)}
    whole = compute(Resize(shorter=256, antialias=True), image, draw())
    assert whole["image"].shape == (256, 320, 1)
    expected = compute(CenterCrop(height=224, width=224), whole, draw())["image"].numpy()
    crop = compute(EVALUATED, image, draw())["image"].numpy()
    assert abs(crop.astype(int) - expected).max() <= 2


def test_pixels_are_copied_averaged_or_interpolated_and_mirrored_into_aligned_memory():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    out = pixels.empty_images((1, 2, 2, 3))
    pixels.crop([image], np.asarray([[1, 2, 2, 2, 0]]), out)
    np.testing.assert_array_equal(out[0], image[1:3, 2:4])
    pixels.crop([image], np.asarray([[1, 2, 2, 2, 1]]), out)
    np.testing.assert_array_equal(out[0], image[1:3, 3:1:-1])
    pixels.crop([image], np.asarray([[-1, 5, 2, 2, 0]]), out)
    np.testing.assert_array_equal(out[0], [[[0] * 3] * 2, [[15, 16, 17], [0] * 3]])
    means = image.reshape(2, 2, 3, 2, 3).astype(float).mean(axis=(1, 3))
    pixels.crop([image], np.asarray([[0, 2, 4, 4, 1]]), out, method="area")
    assert abs(out[0] - means[:, :0:-1]).max() <= 0.5
    flat = np.full((5, 7, 1), 93, np.uint8)
    wide = np.empty((1, 31, 2, 1), np.uint8)
    pixels.crop([flat], np.asarray([[1, 1, 3, 5, 0]]), wide)
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
    streams = [draw(op=name) for name in ("crop", "one", "other")]
    ops = (RandomCrop(height=2, width=2), Flip(), Flip())
    keys = tf.constant(KEYS[:200])
    flipped = draw_crops(ops, tf.constant((9, 9)), keys, streams).numpy()[:, 4]
    one, other = (
        draw_crops(ops[:2], tf.constant((9, 9)), keys, [streams[0], stream]).numpy()[:, 4]
        for stream in streams[1:]
    )
    assert (flipped == (one ^ other)).all() and 0 < flipped.mean() < 1
