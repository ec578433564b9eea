"""The TensorFlow computation of each registered op.

A kernel takes and returns an element: a dict of `image`, `features` or `text`, `label` and `key`
(before parsing: `record` or `path`). The kernel of an op that takes both examples and batches is
the same code for both. Randomness is a pure function of (seed, epoch, op, example key), so it does
not depend on order or parallelism.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import tensorflow as tf

from throughline.kernels.autograph import rewrite_for_tensors
from throughline.kernels.crop_windows import draw_crop_windows, image_size
from throughline.kernels.randomness import RandomStream
from throughline.kernels.rounding import byte_image, to_uint8
from throughline.plan.augmentations import (
    Brightness,
    Contrast,
    Cutmix,
    Cutout,
    Flip,
    Mixup,
    RandomCrop,
    Rotation,
)
from throughline.plan.ops import (
    Categories,
    CenterCrop,
    DecodeImage,
    DecodeRaw,
    Load,
    OneHot,
    Op,
    Pad,
    Parse,
    Rescale,
    Resize,
    Standardize,
)
from throughline.plan.schema import COLUMNS

Element = dict[str, tf.Tensor]
_PIXELS = (-3, -2, -1)
# Keys of an element besides the input of ops; the last three exist in packed rows only.
_BESIDES_INPUT = ("key", "label", COLUMNS, "weight", "segment_ids", "positions")
_TABLE = 1025  # points of a tabulated distribution


@singledispatch
def compute(op: Op, element: Element, draw: RandomStream) -> Element:
    """Run an op on an element. A user's op has its kernel as method `compute(element, draw)`."""
    own = getattr(op, "compute", None)
    if own is None:
        raise NotImplementedError(
            f"{type(op).__name__} has no kernel; give it a method compute(element, draw)"
        )
    return rewrite_for_tensors(own)(element, draw)


@compute.register
def _(op: Load, element: Element, draw: RandomStream) -> Element:
    others = {name: value for name, value in element.items() if name != "path"}
    return {op.feature: tf.io.read_file(element["path"]), **others}


@compute.register
def _(op: Parse, element: Element, draw: RandomStream) -> Element:
    dtypes, sizes = {**dict(op.dtypes), "key": "int64"}, dict(op.sizes)
    features = {
        name: tf.io.FixedLenFeature((sizes[name],) if name in sizes else (), tf.as_dtype(dtype))
        for name, dtype in dtypes.items()
    }
    record = element["record"]
    parse = tf.io.parse_example if record.shape.rank else tf.io.parse_single_example
    return parse(record, features)


@compute.register
def _(op: DecodeImage, element: Element, draw: RandomStream) -> Element:
    encoded = element["image"]

    def generic_decode() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=op.channels, expand_animations=False)
        image.set_shape((None, None, op.channels))
        return image if op.crop is None else tf.image.resize_with_crop_or_pad(image, *op.crop)

    def as_jpeg() -> tf.Tensor:
        method = f"INTEGER_{op.dct.upper()}"
        if op.crop is None:
            return tf.io.decode_jpeg(
                encoded, channels=op.channels, ratio=op.ratio, dct_method=method
            )
        size = tf.io.extract_jpeg_shape(encoded)
        window = tf.stack([(size[0] - op.crop[0]) // 2, (size[1] - op.crop[1]) // 2, *op.crop])
        fits = tf.reduce_all(size[:2] >= op.crop)
        return tf.cond(
            fits,
            lambda: tf.image.decode_and_crop_jpeg(
                encoded, window, channels=op.channels, dct_method=method
            ),
            generic_decode,
        )

    if (op.dct, op.ratio, op.crop) == ("fast", 1, None):
        return {**element, "image": generic_decode()}
    image = tf.cond(tf.io.is_jpeg(encoded), as_jpeg, generic_decode)
    image.set_shape((*(op.crop or (None, None)), op.channels))
    return {**element, "image": image}


@compute.register
def _(op: DecodeRaw, element: Element, draw: RandomStream) -> Element:
    name = input_name(element)
    stored = element[name]
    if stored.dtype != tf.string:  # arrays in memory are not encoded
        return element
    lead = (tf.shape(stored)[0],) if stored.shape.rank else ()
    shape = (*lead, *(-1 if size is None else size for size in op.size))
    return {**element, name: tf.reshape(tf.io.decode_raw(stored, op.dtype), shape)}


@compute.register
def _(op: Resize, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    shape = op.shape(tuple(image.shape[-3:]))
    if op.shorter is not None:
        known = tuple(image.shape[-3:-1])
        if shape is None:
            known = tf.unstack(tf.cast(image_size(image), tf.int64))
        tall, wide = op.center(*known)
        top, left = (known[0] - tall) // 2, (known[1] - wide) // 2
        image = image[..., top : top + tall, left : left + wide, :]
        size = tf.cast(tf.stack(op.scaled(tall, wide)), tf.int32) if shape is None else shape[:2]
    else:
        size = (op.height, op.width)
    resized = to_uint8(tf.image.resize(image, size, method=op.method, antialias=op.antialias))
    return {**element, "image": resized}


@compute.register
def _(op: CenterCrop, element: Element, draw: RandomStream) -> Element:
    image = tf.image.resize_with_crop_or_pad(element["image"], op.height, op.width)
    return {**element, "image": image}


@compute.register
def _(op: Pad, element: Element, draw: RandomStream) -> Element:
    image, sides = element["image"], [op.pixels, op.pixels]
    border = [*[[0, 0]] * (image.shape.rank - len(_PIXELS)), sides, sides, [0, 0]]
    mode = "REFLECT" if op.mode == "reflect" else "CONSTANT"
    return {**element, "image": tf.pad(image, border, mode=mode)}


@compute.register
def _(op: RandomCrop, element: Element, draw: RandomStream) -> Element:
    image = element["image"]
    batched = image.shape.rank > len(_PIXELS)
    boxes = draw_crop_windows(op, image_size(image), element["key"], draw)
    top, left = boxes[..., 0], boxes[..., 1]
    height, width = image.shape[-3:-1]
    if None in (height, width) or height < op.height or width < op.width:
        image = _pad_to(image, op.height, op.width)
    if not batched:
        cut = tf.slice(image, tf.stack([top, left, 0]), (op.height, op.width, -1))
    else:
        rows = tf.gather(image, top[:, None] + tf.range(op.height), axis=1, batch_dims=1)
        cut = tf.gather(rows, left[:, None] + tf.range(op.width), axis=2, batch_dims=1)
    cut.set_shape((*image.shape[:-3], op.height, op.width, image.shape[-1]))
    return {**element, "image": cut}


@compute.register
def _(op: Flip, element: Element, draw: RandomStream) -> Element:
    image = element["image"]
    heads = draw_flipped(element["key"], draw)
    if image.shape.rank == len(_PIXELS):
        return {**element, "image": tf.cond(heads, lambda: tf.reverse(image, [-2]), lambda: image)}
    return {**element, "image": where_per_example(heads, _flip_horizontal(image), image)}


@compute.register
def _(op: Rotation, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    batched = image.shape.rank > len(_PIXELS)
    images = tf.cast(image if batched else image[None], tf.float32)
    # In float64, because a float32 cosine depends on the example's place in the batch.
    share = tf.reshape(tf.cast(draw.uniform(element["key"]), tf.float64) * 2 - 1, (-1,))
    angle = share * (op.degrees * np.pi / 180)
    tall, wide = (tf.cast(tf.shape(images)[axis] - 1, tf.float64) for axis in (1, 2))
    cos, sin, zero = tf.cos(angle), tf.sin(angle), tf.zeros_like(angle)
    right, down = (wide - (cos * wide - sin * tall)) / 2, (tall - (sin * wide + cos * tall)) / 2
    matrix = tf.stack([cos, -sin, right, sin, cos, down, zero, zero], axis=1)
    turned = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.cast(matrix, tf.float32),
        output_shape=tf.shape(images)[1:3],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )
    turned = to_uint8(turned)
    turned.set_shape(images.shape)
    return {**element, "image": turned if batched else turned[0]}


@compute.register
def _(op: Brightness, element: Element, draw: RandomStream) -> Element:
    offset = (draw.uniform(element["key"]) * 2 - 1) * (op.delta * 255)
    brighter = tf.cast(byte_image(op, element), tf.float32) + per_pixel(offset)
    return {**element, "image": to_uint8(brighter)}


@compute.register
def _(op: Contrast, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    factor = per_pixel(1 + (draw.uniform(element["key"]) * 2 - 1) * op.delta)
    # Sums of integers are exact, so the mean is the same for an example alone and within a batch.
    # The sum of a row fits into 32 bits, that of an image above 8.4 megapixels does not.
    pixels = tf.cast(tf.shape(image)[-3] * tf.shape(image)[-2], tf.float32)
    rows = tf.reduce_sum(tf.cast(image, tf.int32), axis=-2, keepdims=True)
    sums = tf.reduce_sum(tf.cast(rows, tf.int64), axis=-3, keepdims=True)
    mean = tf.cast(sums, tf.float32) / pixels
    return {**element, "image": to_uint8((tf.cast(image, tf.float32) - mean) * factor + mean)}


@compute.register
def _(op: Cutout, element: Element, draw: RandomStream) -> Element:
    image, side = element["image"], tf.constant(float(op.size))
    inside = _rectangle(image, element["key"], draw, height=side, width=side)
    return {**element, "image": tf.where(inside, tf.zeros_like(image), image)}


@compute.register
def _(op: Mixup, element: Element, draw: RandomStream) -> Element:
    quantiles = tf.constant(beta_quantiles(op.alpha), tf.float32)
    point = draw.uniform(element["key"]) * (_TABLE - 1)
    low = tf.cast(point, tf.int32)
    share = tf.gather(quantiles, low) + (point - tf.floor(point)) * (
        tf.gather(quantiles, low + 1) - tf.gather(quantiles, low)
    )
    image = tf.cast(byte_image(op, element), tf.float32)
    label = one_hot(element["label"], op.classes)
    mixed = image * per_pixel(share) + tf.roll(image, -1, 0) * (1 - per_pixel(share))
    labels = label * share[:, None] + tf.roll(label, -1, 0) * (1 - share[:, None])
    return {**element, "image": to_uint8(mixed), "label": labels}


@compute.register
def _(op: Cutmix, element: Element, draw: RandomStream) -> Element:
    image, label = element["image"], one_hot(element["label"], op.classes)
    side = tf.sqrt(draw.uniform(element["key"], 2))
    tall, wide = (tf.cast(tf.shape(image)[axis], tf.float32) for axis in (-3, -2))
    inside = _rectangle(
        image, element["key"], draw, height=tf.round(side * tall), width=tf.round(side * wide)
    )
    covered = tf.reduce_mean(tf.cast(inside, tf.float32), axis=_PIXELS)[:, None]
    labels = label * (1 - covered) + tf.roll(label, -1, 0) * covered
    return {**element, "image": tf.where(inside, tf.roll(image, -1, 0), image), "label": labels}


@compute.register
def _(op: Rescale, element: Element, draw: RandomStream) -> Element:
    name = input_name(element)
    value = element[name]
    if value.dtype != tf.uint8:
        return {**element, name: tf.cast(value, tf.float32) * op.scale + op.offset}
    # One pass over memory instead of three (cast, multiply, add): 32,000 instead of 14,000 images
    # of 224×224×3 per second.
    bits, highest = tf.bitcast(value, tf.quint8), op.offset + 255 * op.scale
    scaled = tf.quantization.dequantize(bits, op.offset, highest, mode="MIN_COMBINED")
    return {**element, name: scaled}


@compute.register
def _(op: Standardize, element: Element, draw: RandomStream) -> Element:
    name = input_name(element)
    scale, offset = (tf.constant(each, tf.float32) for each in affine(op))
    return {**element, name: tf.cast(element[name], tf.float32) * scale + offset}


@compute.register
def _(op: OneHot, element: Element, draw: RandomStream) -> Element:
    return {**element, "label": one_hot(element["label"], op.classes)}


@compute.register
def _(op: Categories, element: Element, draw: RandomStream) -> Element:
    features = element["features"]
    numeric = features.shape[-1] - len(op.sizes)
    coded = [
        tf.one_hot(tf.cast(features[..., numeric + number], tf.int32), size)
        for number, size in enumerate(op.sizes)
    ]
    return {**element, "features": tf.concat([features[..., :numeric], *coded], axis=-1)}


def draw_flipped(key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return whether each example is flipped: boolean, of the shape of `key`."""
    return draw.uniform(key) < 0.5  # noqa: PLR2004


def input_name(element: Element) -> str:
    """Return the name of the feature that ops work on, which is the model's first input."""
    return next(name for name in element if name not in _BESIDES_INPUT)


def affine(op: Standardize) -> tuple[list[float], list[float]]:
    """Return scale and offset per channel of (x − mean) / deviation; constant channels become 0."""
    deviation = [value or 1.0 for value in op.deviation or ()]
    offsets = [-mean / value for mean, value in zip(op.mean or (), deviation, strict=True)]
    return [1 / value for value in deviation], offsets


def one_hot(label: tf.Tensor, classes: int) -> tf.Tensor:
    """Turn class numbers (…) into vectors (…, classes) float32; vectors pass unchanged."""
    return label if label.dtype == tf.float32 else tf.one_hot(label, classes)


def beta_quantiles(alpha: float) -> np.ndarray:
    """Return quantiles of Beta(alpha, alpha) at evenly spaced probabilities, float64.

    With x = t^(1/alpha), the density has no singularity at zero, so plain sums integrate it.
    """
    steps = np.linspace(0, 0.5**alpha, 20_001)
    middle = ((steps[1:] + steps[:-1]) / 2) ** (1 / alpha)
    mass = np.concatenate([[0], np.cumsum((1 - middle) ** (alpha - 1))])
    lower = np.interp(np.linspace(0, mass[-1], (_TABLE + 1) // 2), mass, steps) ** (1 / alpha)
    return np.concatenate([lower, 1 - lower[-2::-1]])


def _rectangle(
    image: tf.Tensor, key: tf.Tensor, draw: RandomStream, *, height: tf.Tensor, width: tf.Tensor
) -> tf.Tensor:
    """Return a boolean mask, with one channel, of a rectangle about a random center."""
    inside = []
    for axis, size, stream in ((-3, height, 0), (-2, width, 1)):
        length = tf.shape(image)[axis]
        center = tf.floor(draw.uniform(key, stream) * tf.cast(length, tf.float32))
        first = center - tf.floor(size / 2)
        pixels = tf.cast(tf.range(length), tf.float32)
        inside.append((pixels >= first[..., None]) & (pixels < (first + size)[..., None]))
    return inside[0][..., :, None, None] & inside[1][..., None, :, None]


def _pad_to(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    size, lead = tf.shape(image), [[0, 0]] * (image.shape.rank - len(_PIXELS))
    below, right = tf.maximum(0, height - size[-3]), tf.maximum(0, width - size[-2])
    return tf.pad(image, [*lead, [0, below], [0, right], [0, 0]])


def _flip_horizontal(images: tf.Tensor) -> tf.Tensor:
    """Mirror images (batch, height, width, channels) as one tall image, which is faster."""
    shape = tf.shape(images)
    rows = tf.reshape(images, tf.stack([-1, shape[2], shape[3]]))
    return tf.reshape(tf.reverse(rows, [1]), shape)


def where_per_example(first: tf.Tensor, images: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Choose `images` where `first` (batch,) is true, else `others`, both (batch, …).

    It works on rows of memory: broadcasting over four dimensions takes six times as long.
    """
    shape = tf.shape(images)
    rows = tf.stack([shape[0], -1])
    chosen = tf.where(first[:, None], tf.reshape(images, rows), tf.reshape(others, rows))
    return tf.ensure_shape(tf.reshape(chosen, shape), images.shape)


def per_pixel(value: tf.Tensor) -> tf.Tensor:
    """Add image axes to a value per example (shape () or (batch,)), for broadcasting."""
    for _ in _PIXELS:
        value = tf.expand_dims(value, -1)
    return value
