"""Draws are pinned: crops, flips, colors and RandAugment."""

import itertools
import math
import random

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tests.support import small_pipelines
from tests.support.small_data import picture
from tests.support.small_pipelines import batches
from throughline.data.shards.records import example_key
from throughline.kernels import randaugment
from throughline.kernels.augmentations import draw_changes, draw_sigma
from throughline.kernels.crop_windows import draw_crop_windows
from throughline.kernels.randaugment import CHANGES
from throughline.kernels.randomness import RandomStream
from throughline.measurement.equality import digest_examples
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.order import samplers
from throughline.plan.augmentations import (
    Blur,
    Brightness,
    Flip,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
)
from throughline.plan.ops import CenterCrop
from throughline.shared.files import digest_blake2b, digest_blake3, digest_file, digest_json

pytestmark = pytest.mark.integration

GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}


THIRD = tf.constant(3, tf.int64)  # epoch
STREAM = RandomStream(seed=5, epoch=THIRD)


def test_global_permutations_of_a_small_and_of_a_large_split_and_draws_by_class():
    positions, drawn = tf.range(12, dtype=tf.int64), {"seed": 5, "epoch": THIRD}
    small = samplers.permute(positions, count=12, **drawn)
    assert small.numpy().tolist() == [0, 3, 2, 8, 7, 10, 9, 6, 5, 4, 1, 11]
    large = samplers.permute(positions[:8], count=samplers.CIPHER_FROM, **drawn)
    assert large.numpy().tolist() == [6413, 9525, 3699, 11532, 14769, 12335, 3862, 7457]
    index = samplers.index_by_class(np.asarray([0, 0, 0, 0, 0, 0, 0, 1, 1, 2]), np.ones(3))
    rows = samplers.sample_by_class(
        positions[None, :10], index=index, seed=5, epoch=THIRD[None, None]
    )
    assert rows.numpy().tolist() == [[9, 9, 9, 8, 5, 6, 1, 7, 0, 8]]


CROP = RandomResizedCrop(height=8, width=8)
KEYS = np.arange(20_000, dtype=np.int64) * 7919


def boxes(op, size, keys=KEYS):
    """Top, left, height and width of the crops of images of this size, (keys, 4)."""
    return draw_crop_windows(op, tf.constant(size), tf.constant(keys), STREAM).numpy()


@pytest.mark.parametrize(
    ("op", "drawn"),
    [
        (RandomCrop(height=20, width=24), [[236, 9, 20, 24], [94, 229, 20, 24]]),
        (CROP, [[55, 39, 229, 210], [57, 40, 235, 221]]),
    ],
)
def test_the_boxes_of_random_crops(op, drawn):
    assert boxes(op, (300, 400), np.array([0, 2])).tolist() == drawn


def as_torchvision_draws(size, op, count):
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
def test_rectangles_have_the_sizes_that_torchvision_gives_them_within_their_image(op, size):
    drawn, expected = boxes(op, size), as_torchvision_draws(size, op, len(KEYS))
    places, sizes = drawn[:, :2], drawn[:, 2:]
    assert places.min() >= 0 and sizes.min() >= 1 and (places + sizes <= size).all()
    for mine, theirs in ((sizes, expected), (np.log(sizes), np.log(expected))):
        np.testing.assert_allclose(mine.mean(axis=0), theirs.mean(axis=0), rtol=0.015)
        np.testing.assert_allclose(mine.std(axis=0), theirs.std(axis=0), rtol=0.04)
        correlations = [np.corrcoef(each.T)[0, 1] for each in (mine, theirs)]
        assert abs(correlations[0] - correlations[1]) < 0.04


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


def test_who_is_blurred_and_which_changes_randaugment_makes():
    keys = tf.constant([0, 1, 2, 2**62], tf.int64)
    sigmas = draw_sigma(Blur(), keys, STREAM).numpy().round(4).tolist()
    assert sigmas == pytest.approx([0.0, 1.4677, 1.2589, 1.4742])
    changes = draw_changes(RandAugment(), keys, STREAM).numpy().tolist()
    assert changes == [[[4, 13], [1, 0]], [[6, 5], [1, 0]], [[5, 4], [1, 0]], [[4, 2], [1, 0]]]


def test_identities_and_digests_of_contents(tmp_path):
    assert example_key("train/cat/000.jpg") == 2232826047724114548
    assert digest_blake2b(b"ab", b"c") == "4826ed043ab3cdec576d8541fa5d5a80"
    assert digest_json({"b": [1, None], "a": 1.5}) == "117096492d1a1f23b2a8f293ecc6a332"
    (tmp_path / "file").write_bytes(b"abc")
    assert digest_blake3(b"abc") == "6437b3ac38465133ffb63b75273a8db5"
    assert digest_file(tmp_path / "file") == digest_blake3(b"abc")


def pipeline(stored, **config) -> InputPipeline:
    """A pipeline of two hundred gray images."""
    usual = {"postprocess": (), "seed": 5, "batch_size": 8, "with_keys": True}
    return small_pipelines.pipeline(stored, **usual, **config)


def rows_of(stored, keys: np.ndarray) -> list[int]:
    """The rows of the snapshot that hold the examples with these keys."""
    return [stored["arrays"].memmap("train", "key").tolist().index(key) for key in keys]


def first_batch(stored, **config) -> dict[str, np.ndarray]:
    """The first batch of the second epoch."""
    pipe = pipeline(stored, **config)
    return batches(pipe, first_step=pipe.steps_per_epoch, epochs=2)[0]


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (GLOBAL, [91, 5, 68, 104, 92, 86, 83, 26]),
        (GLOBAL | {"sampling": "balanced"}, [34, 112, 75, 104, 35, 15, 6, 85]),
        (GLOBAL | {"shuffle": {"kind": "window", "size": 16}}, [119, 14, 32, 54, 41, 23, 113, 70]),
        ({"shuffle": {"kind": "none"}, "sampling": "balanced"}, [64, 12, 13, 54, 65, 16, 19, 57]),
        ({"shuffle": {"kind": "buffer", "size": 1}}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"shuffle": {"kind": "buffer", "size": 32}}, [22, 17, 24, 7, 12, 0, 32, 29]),
    ],
    ids=["global", "balanced", "window", "balanced stream", "mixed shards", "buffer"],
)
def test_the_order_of_the_second_epoch(stored, config, rows):
    assert rows_of(stored, first_batch(stored, **config)["key"]) == rows


@pytest.mark.parametrize("config", [GLOBAL, {"read": "shards"}], ids=["gathered", "streamed"])
def test_which_images_are_flipped(stored, config):
    pipe = pipeline(stored, augment=(Flip(),), **config)
    images = stored["arrays"].memmap("train", "image")
    flipped = {}
    for batch in batches(pipe):
        for row, image in zip(rows_of(stored, batch["key"]), batch["image"], strict=True):
            flipped[row] = int(np.array_equal(image, images[row, :, ::-1]))
            assert flipped[row] or np.array_equal(image, images[row])
    assert "".join(str(flipped[row]) for row in range(32)) == "10111111100001010010101111011110"


def test_how_bright_images_become(stored):
    batch = first_batch(stored, augment=(Flip(), Brightness(delta=0.5)), **GLOBAL)
    means = batch["image"].mean(axis=(1, 2, 3)).round(3).tolist()
    assert means == [36.133, 146.4, 145.158, 202.95, 185.717, 111.283, 161.525, 100.175]


def test_the_digest_of_a_split(stored):
    assert digest_examples(pipeline(stored, **GLOBAL)).digest == "6331f61e582f339cd805a965505fea94"


def warp(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


PILLOW = {  # in the order of CHANGES, each of an image and a strength
    "identity": lambda image, _: image,
    "shear_x": lambda image, by: warp(image, 1, -by, by * image.height / 2, 0, 1, 0),
    "shear_y": lambda image, by: warp(image, 1, 0, 0, -by, 1, by * image.width / 2),
    "move_x": lambda image, by: warp(image, 1, 0, -round(by * image.width), 0, 1, 0),
    "move_y": lambda image, by: warp(image, 1, 0, 0, 0, 1, -round(by * image.height)),
    "rotate": lambda image, degrees: image.rotate(-degrees, Image.Resampling.BILINEAR),
    "brightness": lambda image, by: ImageEnhance.Brightness(image).enhance(1 + by),
    "color": lambda image, by: ImageEnhance.Color(image).enhance(1 + by),
    "contrast": lambda image, by: ImageEnhance.Contrast(image).enhance(1 + by),
    "sharpness": lambda image, by: ImageEnhance.Sharpness(image).enhance(1 + by),
    "posterize": lambda image, bits: ImageOps.posterize(image, 8 - round(bits)),
    "solarize": ImageOps.solarize,
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
}
NAMES = (*PILLOW, "equalize")
IMAGE = np.asarray(picture(0))


def change(*names: str, image: np.ndarray = IMAGE, magnitude=30, reverse=0) -> np.ndarray:
    """An image after these changes, one after another."""
    out = np.empty_like(image)[None]
    chosen = [[*map(NAMES.index, names)], [reverse] * len(names)]
    images = np.ascontiguousarray(image)[None]
    randaugment.augment(images, np.asarray([chosen]), out, magnitude=magnitude)
    return out[0]


@pytest.mark.parametrize("image", [IMAGE, IMAGE[..., :1]], ids=["color", "gray"])
@pytest.mark.parametrize("name", PILLOW)
def test_a_change_does_what_pillow_does(name, image):
    for magnitude, reverse in itertools.product((0, 15, 30), (0, 1)):
        strength = CHANGES[NAMES.index(name)].strength(magnitude, reverse=bool(reverse))
        found = change(name, image=image, magnitude=magnitude, reverse=reverse)
        expected = np.asarray(PILLOW[name](Image.fromarray(image.squeeze()), strength))
        apart = abs(found.astype(int) - expected.reshape(found.shape))
        inside = apart[1:-1, 1:-1]  # the edge is not sharpened by Pillow, and blended when warped
        assert np.quantile(inside, 0.9 if name in NAMES[1:6] else 1) <= 2, (magnitude, reverse)


def test_strengths_are_those_of_torchvision():
    at_nine = [round(item.strength(9, reverse=False), 4) for item in CHANGES]
    assert at_nine[1:11] == [0.09, 0.09, 0.136, 0.136, 9.0, 0.27, 0.27, 0.27, 0.27, 1.2]
    reversed_ = [round(item.strength(9, reverse=True), 4) for item in CHANGES]
    assert reversed_ == [0, *(-strength for strength in at_nine[1:10]), *at_nine[10:]]


def test_every_channel_has_its_own_levels_and_changes_come_one_after_another():
    changed = change("equalize")
    assert (changed.min(axis=(0, 1)) == 0).all() and (changed.max(axis=(0, 1)) == 255).all()
    np.testing.assert_array_equal(changed[..., 1:2], change("equalize", image=IMAGE[..., 1:2]))
    threshold = np.full((3, 3, 1), 128, np.uint8)
    assert (change("solarize", image=threshold, magnitude=15) == 127).all(), "from it on"
    flat = np.full((5, 5, 3), 9, np.uint8)
    np.testing.assert_array_equal(change("autocontrast", image=flat), flat)
    expected = change("move_x", image=change("solarize"))
    np.testing.assert_array_equal(change("solarize", "move_x"), expected)
