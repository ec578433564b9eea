"""Finds how data is decoded and cut into windows, and its shape after each op. No TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from throughline.plan.ops import Decode, DecodeImage, Op, Shape
from throughline.plan.schema import Schema
from throughline.plan.steps import TokenWindow, Window
from throughline.settings import PipelineConfig, WindowSettings
from throughline.shared.errors import ImpossiblePlan, InvalidParams


def resolve_decode(
    preprocess: Sequence[Op], schema: Schema, config: PipelineConfig | None = None
) -> tuple[Op, ...]:
    """Replace `decode`, and a crop fused with it, by the encoding's op for `config`, if any."""
    value = schema.input
    decode = value.encoding.decode(value, config)
    ops = [decode if isinstance(op, Decode) else op for op in preprocess]
    fused = config is not None and config.decode.crop == "fused" and len(ops) > 1
    if fused and isinstance(decode, DecodeImage) and ops[1] and ops[1].name == "center_crop":
        crop = ops[1].shape((None, None, None)) or ()
        ops[:2] = [decode.model_copy(update={"crop": crop[:2]})]
    return tuple(op for op in ops if op is not None)


def ops_until_uniform(ops: Sequence[Op], schema: Schema) -> int | None:
    """Return the number of first `ops` after which shapes stay equal; None if they never do."""
    shape: Shape = schema.input.batch_shape
    needed = None if shape is None else 0
    for count, op in enumerate(ops, 1):
        shape = op.shape(shape)
        if shape is None:
            needed = None
        elif needed is None:
            needed = count
    return needed


def widen_schema(schema: Schema, ops: Sequence[Op]) -> Schema:
    """Return the schema for image files of any size if `ops` give them one size; else unchanged."""
    value = schema.input
    if value.encoding.storage != "files":
        return schema
    any_size = replace(value, shape=(*(None for _ in value.shape[:-1]), value.channels))
    others = tuple(one for one in schema.features if one is not value)
    wide = Schema(features=(any_size, *others))
    return schema if ops_until_uniform(ops, wide) is None else wide


def stored_shape(preprocess: Sequence[Op], schema: Schema) -> tuple[int | None, ...]:
    """Return the shape of the model's input in a snapshot, with None for sizes that differ."""
    if ops_until_uniform(preprocess, schema) is not None:
        return output_shape(preprocess, schema)
    value = schema.input
    return (*(None for _ in value.shape[:-1]), value.channels)


def output_shape(
    ops: Sequence[Op], schema: Schema, window: Window | TokenWindow | None = None
) -> tuple[int | None, ...]:
    """Return the shape of the model's input after `ops`; (None,) for the tokens of a text.

    Raises:
      ImpossiblePlan: Images differ in size and no op makes them equal, or an op does not fit them.
    """
    value = schema.input
    if value.encoding.padded:
        return value.shape
    shape: Shape = value.batch_shape
    shape = (window.length, *(shape or ())) if window else shape
    for op in ops:
        shape = op.shape(shape)
        if shape and shape[-1] is None:  # for ops that know their size, but not the channels
            shape = (*shape[:-1], value.channels)
    if shape is None or any(size is None for size in shape):
        raise ImpossiblePlan(
            "preprocess: the images differ in size, so they cannot be batched; add `- resize:"
            " {height: …, width: …}`, or `- random_crop: {height: …, width: …}` to augment"
        )
    return tuple(int(size or 0) for size in shape)


def choose_window(
    settings: WindowSettings,
    steps: Mapping[str, int],
    columns: Sequence[str],
    *,
    cuts: Sequence[int] = (),
) -> Window:
    """Return the windows of a series of these `columns`; `steps` counts each split's time steps.

    The splits follow one another. No window crosses one of the `cuts`, counted in the whole series.

    Raises:
      InvalidParams: A target is not a column, or no window fits into a split.
    """
    for name in settings.targets:
        if name not in columns:
            known = ", ".join(columns)
            raise InvalidParams([f"window.targets: {name} is not a column; known: {known}"])
    window = Window(
        length=settings.length,
        horizon=settings.horizon,
        stride=settings.stride,
        targets=tuple(columns.index(name) for name in settings.targets or columns),
        cuts=tuple(
            (split, cut - end + count)
            for (split, count), end in zip(steps.items(), accumulate(steps.values()), strict=True)
            for cut in cuts
            if end - count < cut < end
        ),
    )
    for split, count in steps.items():
        if window.count(split, count) == 0:
            cuts = window.cuts_of(split)
            longest = max(end - begin for begin, end in pairwise([0, *cuts, count]))
            between = f"at most {longest} between gaps, " if cuts else ""
            lack = f"fewer than window.length + window.horizon = {window.size}"
            if longest >= window.size:
                lack = f"where no multiple of window.stride begins a window of {window.size}"
            fill = ", or fill empty cells (data.missing: interpolate or previous)" if cuts else ""
            raise InvalidParams(
                [
                    f"window: the {split} split has {count} time steps, {between}{lack}; shorten"
                    f" the window or give the split more data{fill}"
                ]
            )
    return window


def choose_token_window(length: int, tokens: Mapping[str, int]) -> TokenWindow:
    """Return windows of `length` tokens; `tokens` counts the tokens of each split.

    Raises:
      InvalidParams: A split has fewer tokens than one window and the token after it.
    """
    window = TokenWindow(length=length)
    for split, count in tokens.items():
        if window.count(count) == 0:
            problem = (
                f"window.tokens: the {split} split has {count:,} tokens, fewer than {length:,} plus"
                " one to predict; shorten the window or give the split more text"
            )
            raise InvalidParams([problem])
    return window
