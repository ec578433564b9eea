"""Draws are pinned: crops, flips, colors and RandAugment."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import small_pipelines
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
from throughline.shared.files import digest_blake2b, digest_blake3, digest_file, digest_json

pytestmark = pytest.mark.integration

GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}


def positions(count: int) -> tf.Tensor:
    return tf.range(count, dtype=tf.int64)


def epoch(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def test_global_permutations_of_a_small_and_of_a_large_split_and_draws_by_class():
    small = samplers.permute(positions(12), count=12, seed=5, epoch=epoch(3))
    assert small.numpy().tolist() == [0, 3, 2, 8, 7, 10, 9, 6, 5, 4, 1, 11]
    large = samplers.permute(positions(8), count=samplers.CIPHER_FROM, seed=5, epoch=epoch(3))
    assert large.numpy().tolist() == [6413, 9525, 3699, 11532, 14769, 12335, 3862, 7457]

    index = samplers.index_by_class(np.asarray([0, 0, 0, 0, 0, 0, 0, 1, 1, 2]), np.ones(3))
    places, third = positions(10)[None], epoch(3)[None, None]
    rows = samplers.sample_by_class(places, index=index, seed=5, epoch=third)
    assert rows.numpy().tolist() == [[9, 9, 9, 8, 5, 6, 1, 7, 0, 8]]


@pytest.mark.parametrize(
    ("op", "boxes"),
    [
        (RandomCrop(height=20, width=24), [[236, 9, 20, 24], [94, 229, 20, 24]]),
        (RandomResizedCrop(height=8, width=8), [[55, 39, 229, 210], [57, 40, 235, 221]]),
    ],
)
def test_the_boxes_of_random_crops(op, boxes):
    keys, stream = tf.constant([0, 2], tf.int64), RandomStream(seed=5, epoch=epoch(3))
    assert draw_crop_windows(op, tf.constant((300, 400)), keys, stream).numpy().tolist() == boxes


def test_who_is_blurred_and_which_changes_randaugment_makes():
    keys, stream = tf.constant([0, 1, 2, 2**62], tf.int64), RandomStream(seed=5, epoch=epoch(3))
    assert draw_sigma(Blur(), keys, stream).numpy().round(4).tolist() == pytest.approx(
        [0.0, 1.4677, 1.2589, 1.4742]
    )
    changes = draw_changes(RandAugment(), keys, stream).numpy().tolist()
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


def first_batch(pipe: InputPipeline) -> dict[str, np.ndarray]:
    """The first batch of the second epoch."""
    rest = pipe.dataset(first_step=pipe.steps_per_epoch, epochs=2)
    return next(rest.as_numpy_iterator())


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
    assert rows_of(stored, first_batch(pipeline(stored, **config))["key"]) == rows


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
    batch = first_batch(pipeline(stored, augment=(Flip(), Brightness(delta=0.5)), **GLOBAL))
    means = batch["image"].mean(axis=(1, 2, 3)).round(3).tolist()
    assert means == [36.133, 146.4, 145.158, 202.95, 185.717, 111.283, 161.525, 100.175]


def test_the_digest_of_a_split(stored):
    assert digest_examples(pipeline(stored, **GLOBAL)).digest == "6331f61e582f339cd805a965505fea94"


NAMES = (
    "identity", "shear_x", "shear_y", "move_x", "move_y", "rotate", "brightness", "color",
    "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
IMAGE = np.random.default_rng(0).integers(40, 200, (31, 31, 3), np.uint8)


def change(name: str, image: np.ndarray = IMAGE, *, magnitude=30, reverse=0) -> np.ndarray:
    out = np.empty_like(image)[None]
    number = NAMES.index(name)
    randaugment.augment(image[None], np.asarray([[[number], [reverse]]]), out, magnitude=magnitude)
    return out[0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_change_keeps_size_and_type_and_does_something_above_magnitude_0(name, channels):
    image = np.ascontiguousarray(IMAGE[..., :channels])
    changed = change(name, image, reverse=1)
    assert changed.shape == image.shape and changed.dtype == np.uint8
    unchanged = name == "identity" or (name, channels) == ("color", 1)
    assert np.array_equal(changed, image) == unchanged
    if name not in ("autocontrast", "equalize"):
        np.testing.assert_array_equal(change(name, image, magnitude=0), image)


def test_strengths_are_those_of_torchvision():
    assert len(NAMES) == len(CHANGES) == 14
    at_nine = [round(item.strength(9, reverse=False), 4) for item in CHANGES]
    assert at_nine[1:11] == [0.09, 0.09, 0.136, 0.136, 9.0, 0.27, 0.27, 0.27, 0.27, 1.2]
    assert [item.strength(9, reverse=True) for item in CHANGES if item.signed] == [
        -item.strength(9, reverse=False) for item in CHANGES if item.signed
    ]


def test_places_move_to_either_side_by_shares_of_its_length_and_what_comes_in_is_black():
    right = change("move_x", magnitude=15)  # 31 · 150 / 331 / 2 = 7 pixels
    np.testing.assert_array_equal(right[:, 7:], IMAGE[:, :-7])
    assert not right[:, :7].any()
    np.testing.assert_array_equal(change("move_y", magnitude=15, reverse=1)[:-7], IMAGE[7:])
    wide = np.ascontiguousarray(IMAGE[:10])  # 31 · 150 / 331 = 14 pixels of the width, 10 · … = 5
    np.testing.assert_array_equal(change("move_x", wide)[:, 14:], wide[:, :-14])
    np.testing.assert_array_equal(change("move_y", wide)[5:], wide[:-5])
    turned = change("rotate")
    assert not turned[0, 0].any() and np.array_equal(turned[15, 15], IMAGE[15, 15])
    np.testing.assert_array_equal(change("shear_x")[15, 1:-1], IMAGE[15, 1:-1])
    both, out = [NAMES.index(name) for name in ("solarize", "move_x")], np.empty_like(IMAGE)[None]
    randaugment.augment(IMAGE[None], np.asarray([[both, [0, 1]]]), out, magnitude=30)
    expected = change("move_x", change("solarize"), reverse=1)
    np.testing.assert_array_equal(out[0], expected, "one after another")


def test_every_channel_has_its_own_levels():
    shifted = IMAGE // 2 + np.uint8([0, 40, 90])
    for name in ("autocontrast", "equalize"):
        changed = change(name, shifted)
        assert changed.min(axis=(0, 1)).tolist() == [0] * 3, name
        assert changed.max(axis=(0, 1)).tolist() == [255] * 3, name
        alone = change(name, np.ascontiguousarray(shifted[..., 1:2]))
        np.testing.assert_array_equal(changed[..., 1:2], alone)


def test_levels_change_as_they_should():
    assert (change("solarize") == 255 - IMAGE).all()
    threshold = np.full((3, 3, 1), 128, np.uint8)
    assert (change("solarize", threshold, magnitude=15) == 127).all(), "from it on"
    gray = np.ascontiguousarray(IMAGE[..., :1])
    assert abs(change("contrast", gray, magnitude=5).mean() - gray.mean()) < 1
    assert set(np.unique(change("posterize"))) <= set(range(0, 256, 16))
    stretched = change("autocontrast")
    assert stretched.min() == 0 and stretched.max() == 255
    brighter = np.minimum(IMAGE * 1.3, 255)
    np.testing.assert_allclose(change("brightness", magnitude=10), brighter, atol=0.51)
    gray = change("color", reverse=1, magnitude=30).astype(int)
    assert np.ptp(gray, axis=-1).max() <= 0.11 * np.ptp(IMAGE.astype(int), axis=-1).max() + 1
    assert change("contrast").std() > 1.5 * IMAGE.std() > 2.5 * change("contrast", reverse=1).std()
    assert change("sharpness", reverse=1).std() < IMAGE.std() < change("sharpness").std()
    flat = np.full((5, 5, 3), 9, np.uint8)
    np.testing.assert_array_equal(change("autocontrast", flat), flat)
