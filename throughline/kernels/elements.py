"""Runs ops on elements, and selects the features of an element that the model or trainer needs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from throughline.kernels import augmentations, tokenizers  # noqa: F401 - they add kernels
from throughline.kernels.kernels import Element, compute
from throughline.kernels.randomness import RandomStream
from throughline.plan.ops import Op
from throughline.plan.schema import COLUMNS, Schema

Function = TypeVar("Function", bound=Callable[..., Any])
# A TensorFlow error that quotes bytes other than UTF-8 reaches Python as UnicodeDecodeError.
TENSORFLOW_ERRORS = (tf.errors.OpError, UnicodeDecodeError)


def without_autograph(function: Function) -> Function:
    """Keep AutoGraph from rewriting this function and those that it calls; a decorator.

    This program's functions use `tf.cond`, not `if`, on tensors; rewriting them took two of the six
    seconds in which a configuration was built. Users' own ops are still rewritten.
    """
    return tf.autograph.experimental.do_not_convert(function)


@without_autograph
def apply_ops(
    ops: Sequence[Op],
    element: Element,
    *,
    seed: int,
    epoch: tf.Tensor,
    first_op_position: int = 0,
    kernels: Any = compute,
) -> Element:
    """Run ops on an element, one example or a batch.

    `kernels` is `compute`, or its counterpart within the train step or a SavedModel. Random draws
    depend on an op's name and position in `augment`, from `first_op_position` on, not on its
    arguments: equal ops draw independently, and a stronger op draws the same numbers as a weaker
    one in its place.
    """
    for position, op in enumerate(ops, first_op_position):
        with tf.name_scope(op.name):
            element = kernels(op, element, random_stream(op, position, seed=seed, epoch=epoch))
    return element


def process_record(ops: Sequence[Op], record: tf.Tensor) -> Element:
    """Parse and preprocess a record, or a batch of records if all ops accept batches."""
    return apply_ops(ops, {"record": record}, seed=0, epoch=tf.constant(0, tf.int64))


def read_message(error: tf.errors.OpError | UnicodeDecodeError) -> str:
    """Return the message of one of `TENSORFLOW_ERRORS`, with escapes for bytes that are no text."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="backslashreplace")
    return error.message


def random_stream(op: Op, position: int, *, seed: int, epoch: tf.Tensor) -> RandomStream:
    return RandomStream(seed=seed, epoch=epoch, salts=(op.name, position))


def select_outputs(element: Element, schema: Schema, *, with_keys: bool) -> Element | tuple:
    """Return (input, label) as the model takes them, and a weight for packed rows.

    With `with_keys`, return the whole element. Texts of a batch are padded to the longest.
    """
    element = {
        name: value.to_tensor() if isinstance(value, tf.RaggedTensor) else value
        for name, value in element.items()
    }
    if with_keys:
        return element
    weight = ("weight",) if "weight" in element else ()
    return select_inputs(element, schema), *(element[name] for name in ("label", *weight))


def select_inputs(element: Element, schema: Schema) -> Element | tf.Tensor:
    """Return the model's input: one value, or several by name for packed rows and table columns."""
    value = schema.input.name
    if "segment_ids" in element:
        return {name: element[name] for name in (value, "segment_ids", "positions")}
    return (
        {name: element[name] for name in (value, COLUMNS)} if schema.table_input else element[value]
    )


def split_tokens(tokens: tf.Tensor) -> Element:
    """Split windows (…, length + 1) into text and label, the next tokens: (…, length) int32."""
    tokens = tf.cast(tokens, tf.int32)
    return {"text": tokens[..., :-1], "label": tokens[..., 1:]}


def split_window(time_steps: tf.Tensor, length: int, targets: tuple[int, ...]) -> Element:
    """Split windows into features (…, length, columns) and label (…, horizon, targets)."""
    label = time_steps[..., length:, :]
    all_columns = targets == tuple(range(time_steps.shape[-1]))
    return {
        "features": time_steps[..., :length, :],
        "label": label if all_columns else tf.gather(label, targets, axis=-1),
    }
