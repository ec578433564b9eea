"""Why a configuration or an op does not fit the data: its kind, windows, sizes and targets.

`constraints.py` has what holds for all data, and lists where each constraint belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from throughline.plan.ops import Categories, Op, Rescale, Standardize
from throughline.plan.schema import Encoding
from throughline.plan.text_ops import Tokenize
from throughline.settings import PipelineConfig


def find_variable_size_problems(
    config: PipelineConfig, ops_to_uniform_shape: Sequence[Op]
) -> list[str]:
    """List problems of these ops and of the configuration with images of variable size."""
    unbatched = [op.name for op in ops_to_uniform_shape if op.takes == "batch"]
    problems = [
        f"augment: {name} needs batches, and images must have the same size before: put the crop"
        " first"
        for name in unbatched
    ]
    if ops_to_uniform_shape and config.snapshot_on == "device":
        problems.append(
            "snapshot_on: variable-size images are cropped per example on the host; resize them in"
            " preprocess, or use host"
        )
    return problems


def find_data_problems(
    config: PipelineConfig,
    encoding: Encoding,
    ops: Sequence[tuple[str, Op]],
    *,
    windows: bool,
    predicts_number: bool,
    columns: bool,
) -> list[str]:
    """List problems of a configuration with data of this encoding.

    The data may be cut into `windows`, or have a table input (`columns`); `ops` are (section, op).
    """
    text = encoding.modality == "text"
    problems = find_fraction_problems(config.snapshot.fraction, encoding)
    if windows:
        problems += _of_windows(config, encoding)
    else:
        problems += _of_sequences(config) if text else _of_equal_lengths(config)
    on_device = config.postprocess_on == "device"
    in_batches = [  # for other data, a snapshot runs augmenting ops on examples
        (section, op)
        for section, op in ops
        if windows or text or (section == "postprocess" and not (on_device and op.device))
    ]
    problems += _of_single_examples(config, encoding, in_batches)
    if encoding.name == "image":
        problems += _of_sizes(config, [op for section, op in ops if section != "postprocess"])
    if predicts_number and config.sampling != "uniform":
        problems.append("sampling: a number to predict is no class to draw by; drop `sampling`")
    if config.batch and config.batch.pack and (columns or predicts_number):
        what = "columns" if columns else "numbers to predict"
        problems.append(
            f"batch.pack: texts with {what} are not packed; use `batch: {{pad_to: auto}}` instead"
        )
    return problems


def _of_sequences(config: PipelineConfig) -> Iterator[str]:
    if config.service:
        yield "service: its workers' batches differ in length and cannot be joined; drop `service`"
    if config.snapshot_on == "device":
        yield "snapshot_on: texts differ in length and are gathered on the host; use host"


def _of_equal_lengths(config: PipelineConfig) -> Iterator[str]:
    if config.batch:
        yield (
            "batch: only text differs in length; drop `batch`, the number of examples is batch_size"
        )


def _of_windows(config: PipelineConfig, encoding: Encoding) -> Iterator[str]:
    """Yield problems of windows, which cross from one record into the next."""
    noun, text = encoding.noun, encoding.modality == "text"
    parts = "documents" if text else "blocks"
    refused = {
        f"batch: windows of {noun} have one length; drop `batch`, their number is batch_size": (
            config.batch
        ),
        f"read: a window of {noun} is made of several records; use `read: snapshot`, or `shards`": (
            config.read == "indexed_shards"
        ),
        f"interleave: windows of {noun} need the {parts} in their order; drop `interleave`": (
            config.interleave
        ),
        f"deterministic: windows of {noun} need the {parts} in their order; drop `deterministic`": (
            not config.deterministic
        ),
        f"sampling: windows of {noun} have no class; drop `sampling`": config.sampling != "uniform",
        "vectorize: windows are batched when they exist; drop `vectorize`": config.vectorize,
        f"service: its workers would cut windows out of different {parts}; drop `service`": (
            config.service
        ),
        f"snapshot_on: windows of {noun} are gathered on the host; use host": (
            text and config.snapshot_on == "device"
        ),
    }
    yield from (problem for problem, holds in refused.items() if holds)


def _of_single_examples(
    config: PipelineConfig, encoding: Encoding, ops: Sequence[tuple[str, Op]]
) -> Iterator[str]:
    """Yield problems of ops on single examples: a snapshot delivers whole batches."""
    if config.read == "snapshot":
        yield from (
            f"{section}: {op.name} takes one example at a time, and a snapshot of {encoding.noun}"
            " gives whole batches; use `read: shards`"
            for section, op in ops
            if section != "preprocess" and op.takes == "example"
        )


def _of_sizes(config: PipelineConfig, ops: Sequence[Op]) -> Iterator[str]:
    if config.decode.ratio == 1:
        return
    end = next((number for number, op in enumerate(ops) if _sets_size(op)), None)
    sized = next((op.name for op in ops[:end] if op.counts_pixels), None)
    if sized:
        yield (
            f"decode.ratio: {sized} counts pixels of the full size; decoded at another size it"
            " would cut something else"
        )
    elif end is None:
        yield (
            "decode.ratio: nothing resizes the images, and the model would see smaller ones; add"
            " `resize` to preprocess, or drop `ratio`"
        )


def _sets_size(op: Op) -> bool:
    """Return whether images have the same size after it at any decoding ratio."""
    return not op.counts_pixels and op.shape((64, 128, 3)) == op.shape((128, 256, 3))


def find_ops_problems(encoding: Encoding, ops: Sequence[tuple[str, Op]]) -> list[str]:
    """List problems of ops, each given with its section, with data of this encoding."""
    takes = " and ".join
    problems = [
        f"{section}: {op.name} works on {takes(op.works_on)}, not on {encoding.noun}; drop it,"
        f" in an overlay by a {section} of its own"
        for section, op in ops
        if op.works_on and encoding.modality not in op.works_on
    ]
    problems += [
        f"preprocess: {op.name} changes labels, which are stored as they are; move it to"
        " postprocess"
        for section, op in ops
        if section == "preprocess" and op.on_labels
    ]
    problems += [
        f"preprocess: {op.name} makes the floats that a model sees, which are not what is stored;"
        " move it to postprocess"
        for section, op in ops
        if section == "preprocess" and _makes_floats(op, encoding)
    ]
    problems += [
        "postprocess: rescale divides by 255, as pixels need it; use `standardize`, in a table with"
        " `categories` after it, or give rescale its `scale`"
        for section, op in ops
        if section == "postprocess" and encoding.modality == "numbers" and _divides_pixels(op)
    ]
    problems += [
        f"postprocess: {op.name} has no layer, and a model holds what postprocess does; move it to"
        " preprocess, or give a class of your own a method layer()"
        for section, op in ops
        if section == "postprocess"
        and not (op.random or op.on_labels or op.device or hasattr(op, "layer"))
    ]
    names = [op.name for _, op in ops]
    if "categories" in names and "rescale" in names[: names.index("categories")]:
        problems.append(
            "postprocess: rescale changes the numbers of the categories; use `standardize`, which"
            " leaves them as they are, or put it after `categories`"
        )
    return problems + _of_measured_values([op for section, op in ops if section == "postprocess"])


def _makes_floats(op: Op, encoding: Encoding) -> bool:
    """Return whether its result is not stored: floats of pixels, or values from statistics."""
    if encoding.modality == "images":
        return isinstance(op, Categories | Rescale | Standardize)
    return isinstance(op, Categories) or (isinstance(op, Standardize) and op.mean is None)


def _divides_pixels(op: Op) -> bool:
    """Return whether it is `rescale` without arguments, which params.yaml has for images."""
    return isinstance(op, Rescale) and "scale" not in op.model_fields_set


def _of_measured_values(postprocess: Sequence[Op]) -> list[str]:
    """List problems of `standardize` after other ops: its statistics are of stored values."""
    changing = [op for op in postprocess if not op.on_labels]
    return [
        f"postprocess: standardize takes mean and deviation of the stored values, which"
        f" {before.name} has changed by then; put it first, drop {before.name}, or give it `mean`"
        " and `deviation`"
        for before, op in pairwise(changing)
        if isinstance(op, Standardize) and op.mean is None
    ]


def find_label_problems(ops: Sequence[tuple[str, Op]]) -> list[str]:
    """List ops, each given with its section, that need classes as labels."""
    return [
        f"{section}: {op.name} needs labels that are classes, and these are numbers to predict;"
        " drop it"
        for section, op in ops
        if op.mixes_labels or op.on_labels
    ]


def find_table_input_problems(ops: Sequence[tuple[str, Op]]) -> list[str]:
    """List ops, each given with its section, that would separate examples from their columns."""
    return [
        f"{section}: {op.name} mixes images of different examples, and not their columns; drop it,"
        " or data.numeric and data.categorical"
        for section, op in ops
        if op.mixes_labels
    ]


def find_text_problems(preprocess: Sequence[Op]) -> list[str]:
    names = [op.name for op in preprocess]
    if names.count("tokenize") != 1:
        return [
            "preprocess: text needs one `tokenize`, such as `- tokenize: {kind: sentencepiece,"
            " vocabulary: 8000}`"
        ]
    early = names[: names.index("tokenize")]
    for name, what in (("truncate", "counts"), ("end_document", "follows the last of the")):
        if name in early:
            return [f"preprocess: {name} {what} tokens; put it after `tokenize`"]
    return [
        f"preprocess: tokenize.model: {reason}"
        for op in preprocess
        if isinstance(op, Tokenize) and op.model and (reason := _problem_of_file(op))
    ]


def _problem_of_file(op: Tokenize) -> str:
    if not op.file:
        return f"{op.kind} need no file; drop `model`, or set kind"
    return "" if Path(op.model).is_file() else f"{op.model} does not exist"


def find_fraction_problems(fraction: float, encoding: Encoding) -> list[str]:
    """List reasons against storing or reading only a `fraction` of a snapshot's rows."""
    if fraction == 1 or encoding.modality == "images":
        return []
    return [
        f"snapshot.fraction: a part of the rows can be stored of images, not of {encoding.noun};"
        " drop it"
    ]
