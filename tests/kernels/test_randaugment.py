"""RandAugment's changes do what they are named for, at the strength of a magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from throughline.kernels import randaugment
from throughline.kernels.randaugment import CHANGES

pytestmark = pytest.mark.integration

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
def test_every_change_keeps_size_and_type_and_changes_something_above_magnitude_zero(
    name, channels
):
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
    np.testing.assert_allclose(
        change("brightness", magnitude=10), np.minimum(IMAGE * 1.3, 255), atol=0.51
    )
    gray = change("color", reverse=1, magnitude=30).astype(int)
    assert np.ptp(gray, axis=-1).max() <= 0.11 * np.ptp(IMAGE.astype(int), axis=-1).max() + 1
    assert change("contrast").std() > 1.5 * IMAGE.std() > 2.5 * change("contrast", reverse=1).std()
    assert change("sharpness", reverse=1).std() < IMAGE.std() < change("sharpness").std()
    flat = np.full((5, 5, 3), 9, np.uint8)
    np.testing.assert_array_equal(change("autocontrast", flat), flat)
