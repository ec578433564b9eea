"""The changes that RandAugment chooses from, in NumPy and OpenCV. No TensorFlow.

Images are uint8 (height, width, channels). The strengths at a magnitude from 0 to 30 are those of
torchvision. Positions between pixels are interpolated; areas from outside the image are black.
"""

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

MOST = 30  # the largest magnitude
LEVELS = np.arange(256, dtype=np.float32)
SMOOTHING = np.asarray([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


@dataclass(frozen=True, kw_only=True)
class ImageChange:
    """A change of an image, whose strength goes from `least` to `most` with the magnitude.

    A `signed` change goes in either direction, equally likely.
    """

    apply: Callable[[np.ndarray, float], np.ndarray]
    least: float = 0.0
    most: float = 0.0
    signed: bool = False

    def strength(self, magnitude: int, *, reverse: bool) -> float:
        strength = self.least + (self.most - self.least) * magnitude / MOST
        return -strength if self.signed and reverse else strength


def augment(images: np.ndarray, changes: np.ndarray, out: np.ndarray, *, magnitude: int) -> None:
    """Apply changes to images (images, height, width, channels), into `out`.

    `changes` (images, 2, ops) are indices into CHANGES, in order, and whether each is reversed.
    """
    for image, (which, reverse), target in zip(images, changes.tolist(), out, strict=True):
        for number, reversed_ in zip(which, reverse, strict=True):
            change = CHANGES[number]
            strength = change.strength(magnitude, reverse=bool(reversed_))
            image = change.apply(image, strength).reshape(target.shape)
        target[...] = image


def _warp(image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
    tall, wide = image.shape[:2]
    center = np.asarray([(wide - 1) / 2, (tall - 1) / 2])
    turn = np.asarray(matrix)
    shift = center - turn @ center
    return cv2.warpAffine(image, np.column_stack([turn, shift]), (wide, tall))


def _shift(image: np.ndarray, right: float, down: float) -> np.ndarray:
    matrix = np.asarray([[1, 0, round(right)], [0, 1, round(down)]], np.float64)
    return cv2.warpAffine(image, matrix, image.shape[1::-1])


def _rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return _warp(image, [[cos, -sin], [sin, cos]])


def _look_up(image: np.ndarray, levels: np.ndarray) -> np.ndarray:
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return cv2.LUT(image, table.reshape(1, 256, -1))


def _luma(image: np.ndarray) -> np.ndarray:
    """Return the image in gray, in the same shape."""
    if image.shape[-1] == 1:
        return image
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB)


def _blend(image: np.ndarray, other: np.ndarray, factor: float) -> np.ndarray:
    """Extrapolate from `other` (factor 0) through the image (1) and beyond."""
    return cv2.addWeighted(image, factor, other, 1 - factor, 0.0)


def _contrast(image: np.ndarray, strength: float) -> np.ndarray:
    mean = round(float(_luma(image)[..., 0].mean()))
    return _look_up(image, mean + (1 + strength) * (LEVELS - mean))


def _posterize(image: np.ndarray, bits: float) -> np.ndarray:
    step = 1 << round(bits)  # number of values that become one
    return _look_up(image, LEVELS // step * step)


def _solarize(image: np.ndarray, threshold: float) -> np.ndarray:
    levels = LEVELS.copy()
    inverted = levels >= threshold
    levels[inverted] = 255 - levels[inverted]
    return _look_up(image, levels)


def _autocontrast(image: np.ndarray, strength: float) -> np.ndarray:
    least, most = (of(image, axis=(0, 1)).astype(np.float32) for of in (np.min, np.max))
    span = np.where(most > least, most - least, 1)
    stretched = (LEVELS[:, None] - least) * np.where(most > least, 255 / span, 1)
    return _look_up(image, np.where(most > least, stretched, LEVELS[:, None]))


def _equalize(image: np.ndarray, strength: float) -> np.ndarray:
    return np.dstack(
        [
            cv2.equalizeHist(np.ascontiguousarray(image[..., channel]))
            for channel in range(image.shape[-1])
        ]
    )


CHANGES = (
    ImageChange(apply=lambda image, strength: image),
    ImageChange(apply=lambda image, by: _warp(image, [[1, by], [0, 1]]), most=0.3, signed=True),
    ImageChange(apply=lambda image, by: _warp(image, [[1, 0], [by, 1]]), most=0.3, signed=True),
    ImageChange(
        apply=lambda image, by: _shift(image, by * image.shape[1], 0), most=150 / 331, signed=True
    ),
    ImageChange(
        apply=lambda image, by: _shift(image, 0, by * image.shape[0]), most=150 / 331, signed=True
    ),
    ImageChange(apply=_rotate, most=30.0, signed=True),
    ImageChange(apply=lambda image, by: _look_up(image, (1 + by) * LEVELS), most=0.9, signed=True),
    ImageChange(apply=lambda image, by: _blend(image, _luma(image), 1 + by), most=0.9, signed=True),
    ImageChange(apply=_contrast, most=0.9, signed=True),
    ImageChange(
        apply=lambda image, by: _blend(image, cv2.filter2D(image, -1, SMOOTHING), 1 + by),
        most=0.9,
        signed=True,
    ),
    ImageChange(apply=_posterize, most=4.0),
    ImageChange(apply=_solarize, least=256.0, most=0.0),
    ImageChange(apply=_autocontrast),
    ImageChange(apply=_equalize),
)
