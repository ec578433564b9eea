"""What the ops make of the data: how `decode` is done, and the shape of an example after each op.
Pure; no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence

from throughline.data.shards.records import RecordSchema
from throughline.plan.ops import Decode, DecodeImage, DecodeRaw, Op, Shape
from throughline.plan.steps import TokenWindow, Window
from throughline.settings import PipelineConfig
from throughline.shared.errors import ImpossiblePlan


def resolve_decode(
    preprocess: Sequence[Op], schema: RecordSchema, config: PipelineConfig | None = None
) -> tuple[Op, ...]:
    """Replace `decode` by decoding of encoded images or reinterpretation of raw values, as schema
    and configuration say; text needs none.
    """
    if schema.payload == "text":
        return tuple(op for op in preprocess if not isinstance(op, Decode))
    if schema.payload == "series":
        decode: Op = DecodeRaw(size=(None, *(schema.shape or ())), dtype=schema.dtype)
    elif schema.payload == "raw":
        decode = DecodeRaw(size=schema.shape or (), dtype=schema.dtype)
    else:
        decode = DecodeImage(channels=schema.channels)
        if config is not None:
            decode = DecodeImage(
                channels=schema.channels, dct=config.decode.dct, ratio=config.decode.ratio
            )
    ops = [decode if isinstance(op, Decode) else op for op in preprocess]
    fused = config is not None and config.decode.crop == "fused" and schema.payload == "encoded"
    if fused and isinstance(decode, DecodeImage) and len(ops) > 1 and ops[1].name == "center_crop":
        crop = ops[1].shape((None, None, None)) or ()
        ops[:2] = [decode.model_copy(update={"crop": crop[:2]})]
    return tuple(ops)


def ops_until_uniform(ops: Sequence[Op], schema: RecordSchema) -> int | None:
    """How many of `ops` it takes until all examples have the same shape, so that they can be
    batched; None: not even all of them.
    """
    shape: Shape = schema.shape
    for count, op in enumerate(ops):
        if shape is not None:
            return count
        shape = op.shape(shape)
    return None if shape is None else len(ops)


def stored_shape(preprocess: Sequence[Op], schema: RecordSchema) -> tuple[int | None, ...]:
    """Shape of what a snapshot stores of an example; (None, None, channels) where images keep their
    own sizes, (None,) for tokens of text.
    """
    variable = ops_until_uniform(preprocess, schema) is None
    return (None, None, schema.channels) if variable else output_shape(preprocess, schema)


def output_shape(
    ops: Sequence[Op], schema: RecordSchema, window: Window | TokenWindow | None = None
) -> tuple[int | None, ...]:
    """Shape of the model's input after `ops`, derived from the data: (height, width, channels),
    (columns,), (length, columns), or (None,) for the tokens of a text.

    Raises:
      ImpossiblePlan: the images differ in size and no op makes them the same size.
    """
    start: Shape = schema.shape
    if schema.payload == "text":
        return (None,)
    shape: Shape = (window.length, *(start or ())) if window else start
    for op in ops:
        shape = op.shape(shape)
    if shape is None or schema.payload == "encoded":
        shape = None if shape is None else (*shape[:-1], schema.channels)
    if shape is None or any(size is None for size in shape):
        raise ImpossiblePlan(
            "preprocess: the images differ in size, so they cannot be batched; add `- resize:"
            " {height: …, width: …}`, or `- random_crop: {height: …, width: …}` to augment"
        )
    return tuple(int(size or 0) for size in shape)
