"""Cropping, resizing, flipping and blurring images in NumPy and OpenCV, without TensorFlow.

Images are uint8 (height, width, channels) in any memory; a slice of a mapped file is read in place.
Each call uses one thread and releases the GIL, since tf.data makes calls in parallel.
"""

from collections.abc import Iterable

import cv2
import numpy as np

from throughline.plan.augmentations import Method

ALIGNMENT = 64  # bytes; TensorFlow uses such an array without a copy
FLIP = 1  # OpenCV's code for flipping left to right

cv2.setNumThreads(1)


def empty_images(shape: tuple[int, ...]) -> np.ndarray:
    """Return uninitialized uint8 memory of this shape that TensorFlow need not copy."""
    size = int(np.prod(shape))
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size].reshape(shape)


def crop(
    images: Iterable[np.ndarray], boxes: np.ndarray, out: np.ndarray, *, method: Method = "area"
) -> None:
    """Crop a rectangle out of every image into `out` (images, height, width, channels).

    `boxes` (images, 5) are top, left, height, width, and whether to flip the result. A box of
    another size than the result is resized. The part of a box outside its image becomes zero; such
    a box must have the size of the result.
    """
    size = out.shape[1:3]
    for image, (top, left, height, width, flipped), target in zip(
        images, boxes.tolist(), out, strict=True
    ):
        bottom, right = top + height, left + width
        if top < 0 or left < 0 or bottom > image.shape[0] or right > image.shape[1]:
            target.fill(0)
            inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
            above, before = max(-top, 0), max(-left, 0)
            target[above : above + inside.shape[0], before : before + inside.shape[1]] = inside
        elif (height, width) != size:
            shrinks = method == "area" and height >= size[0] and width >= size[1]
            cv2.resize(
                image[top:bottom, left:right],
                dsize=size[::-1],
                dst=target,
                interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
            )
        elif flipped:
            cv2.flip(image[top:bottom, left:right], FLIP, dst=target)
            continue
        else:
            target[...] = image[top:bottom, left:right]
        if flipped:
            cv2.flip(target, FLIP, dst=target)


def blur(images: Iterable[np.ndarray], sigmas: np.ndarray, out: np.ndarray) -> None:
    """Blur each image into `out`, by Gaussians of `sigmas` (images,) pixels; 0 copies the image.

    The kernel ends at three sigmas. Images are reflected at their border.
    """
    for image, sigma, target in zip(images, sigmas.tolist(), out, strict=True):
        if sigma:
            cv2.GaussianBlur(
                image, (0, 0), sigmaX=sigma, dst=target, borderType=cv2.BORDER_REFLECT_101
            )
        else:
            target[...] = image
