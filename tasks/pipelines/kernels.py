"""What each op of the registry computes, in TensorFlow.

A kernel takes and returns an element: a dict of features `image`, `label` and `key` (before parsing: `record` or `path`).
Kernels of batchable ops accept one example or a batch with the same code. Randomness is a pure function of
(seed, epoch, example key, op), so it does not depend on order or parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import tensorflow as tf

from tasks.pipelines.ops import Brightness, CenterCrop, DecodeImage, DecodeRaw, Flip, Load, Op, Parse, Rescale, Resize

Element = dict[str, tf.Tensor]
_GOLDEN = 0x9E3779B97F4A7C15
_PIXELS = (-3, -2, -1)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A stateless source of randomness: `seed` (int), `epoch` (int64 scalar tensor) and `salt` (which op is drawing)."""

    seed: int
    epoch: tf.Tensor | tf.Variable
    salt: int = 0

    def uniform(self, key: tf.Tensor) -> tf.Tensor:
        """Return float32 in [0, 1) of the shape of `key`, a function of (seed, epoch, salt, key) alone."""
        origin = tf.constant((self.seed * _GOLDEN + self.salt) % 2**64, tf.uint64)
        mixed = mix64(mix64(tf.cast(self.epoch, tf.uint64) + origin) ^ tf.cast(key, tf.uint64))
        top24 = tf.bitwise.right_shift(mixed, tf.constant(40, tf.uint64))
        return tf.cast(top24, tf.float32) / float(1 << 24)


def mix64(value: tf.Tensor) -> tf.Tensor:
    """Scatter the bits of uint64 values, a bijection. Source: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ tf.bitwise.right_shift(value, tf.constant(shift, tf.uint64))) * tf.constant(factor, tf.uint64)
    return value ^ tf.bitwise.right_shift(value, tf.constant(31, tf.uint64))


@singledispatch
def compute(op: Op, element: Element, draw: Draw) -> Element:
    """Run one op on an element. A user's own op brings its kernel as a method `compute(element, draw)`."""
    own = getattr(op, "compute", None)
    if own is None:
        raise NotImplementedError(f"{type(op).__name__} has no kernel; give it a method compute(element, draw)")
    return own(element, draw)


@compute.register
def _(op: Load, element: Element, draw: Draw) -> Element:
    return {"image": tf.io.read_file(element["path"]), "label": element["label"], "key": element["key"]}


@compute.register
def _(op: Parse, element: Element, draw: Draw) -> Element:
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "key": tf.io.FixedLenFeature((), tf.int64),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    record = element["record"]
    return tf.io.parse_single_example(record, features) if record.shape.rank == 0 else tf.io.parse_example(record, features)


@compute.register
def _(op: DecodeImage, element: Element, draw: Draw) -> Element:
    image = tf.io.decode_image(element["image"], channels=op.channels, expand_animations=False)
    image.set_shape((None, None, op.channels))
    return {**element, "image": image}


@compute.register
def _(op: DecodeRaw, element: Element, draw: Draw) -> Element:
    image = element["image"]
    if image.dtype == tf.uint8:  # arrays in memory are pixels already
        return element
    lead = (tf.shape(image)[0],) if image.shape.rank else ()
    return {**element, "image": tf.reshape(tf.io.decode_raw(image, tf.uint8), (*lead, *op.shape))}


@compute.register
def _(op: Resize, element: Element, draw: Draw) -> Element:
    resized = tf.image.resize(element["image"], (op.height, op.width), method=op.method, antialias=op.antialias)
    return {**element, "image": _to_uint8(resized)}


@compute.register
def _(op: CenterCrop, element: Element, draw: Draw) -> Element:
    return {**element, "image": tf.image.resize_with_crop_or_pad(element["image"], op.height, op.width)}


@compute.register
def _(op: Flip, element: Element, draw: Draw) -> Element:
    image = element["image"]
    heads = draw.uniform(element["key"]) < 0.5  # noqa: PLR2004
    if image.shape.rank == len(_PIXELS):
        return {**element, "image": tf.cond(heads, lambda: tf.reverse(image, [-2]), lambda: image)}
    return {**element, "image": tf.where(_per_pixel(heads), tf.reverse(image, [-2]), image)}


@compute.register
def _(op: Brightness, element: Element, draw: Draw) -> Element:
    offset = (draw.uniform(element["key"]) * 2 - 1) * (op.delta * 255)
    return {**element, "image": _to_uint8(tf.cast(element["image"], tf.float32) + _per_pixel(offset))}


@compute.register
def _(op: Rescale, element: Element, draw: Draw) -> Element:
    return {**element, "image": tf.cast(element["image"], tf.float32) * op.scale + op.offset}


def _per_pixel(value: tf.Tensor) -> tf.Tensor:
    """Give a value per example (shape () or (batch,)) the trailing axes of an image, for broadcasting."""
    for _ in _PIXELS:
        value = tf.expand_dims(value, -1)
    return value


def _to_uint8(image: tf.Tensor) -> tf.Tensor:
    """Round and saturate to uint8; uint8 passes unchanged."""
    return image if image.dtype == tf.uint8 else tf.saturate_cast(tf.round(image), tf.uint8)
