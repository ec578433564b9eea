"""Problems of a configuration or an op with the data: with its kind, windows, sizes and targets.

`constraints.py` has the constraints for all data, and lists where each constraint belongs.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from throughline.plan.ops import Categories, Op, Rescale, Standardize
from throughline.plan.schema import Encoding
from throughline.plan.text_ops import Tokenize
from throughline.settings import PipelineConfig


def find_variable_size_problems(
    config: PipelineConfig, ops_to_uniform_shape: Sequence[Op]
) -> Iterator[str]:
    """Yield problems that these ops and the configuration have with images of variable size."""
    for op in ops_to_uniform_shape:
        if op.takes == "batch":
            yield f"augment: {op.name} needs batches of one size; put the crop or resize before it"
    if ops_to_uniform_shape and config.snapshot_on == "device":
        yield (
            "snapshot_on: variable-size images are cropped per example on the host; resize them in"
            " preprocess, or use host"
        )


def find_data_problems(
    config: PipelineConfig,
    encoding: Encoding,
    ops: Sequence[tuple[str, Op]],
    *,
    windows: bool,
    predicts_number: bool,
    columns: bool,
) -> Iterator[str]:
    """Yield problems of a configuration with data of this encoding.

    `windows`: the data is cut into windows. `columns`: it has a table input. `ops`: (section, op).
    """
    text = encoding.modality == "text"
    yield from find_fraction_problems(config.snapshot.fraction, encoding)
    if windows:
        yield from _of_windows(config, encoding)
    elif text:
        yield from _of_sequences(config)
    elif config.batch:
        yield "batch: only text differs in length; drop `batch`, and set `batch_size` alone"
    on_device = config.postprocess_on == "device"
    for section, op in ops if config.read == "snapshot" else ():
        # For other data, a snapshot runs augmenting ops on examples.
        in_batches = windows or text or (section == "postprocess" and not (on_device and op.device))
        if in_batches and section != "preprocess" and op.takes == "example":
            yield (
                f"{section}: {op.name} takes one example at a time, and a snapshot of"
                f" {encoding.noun} gives whole batches; use `read: shards`"
            )
    if encoding.name == "image" and config.decode.ratio != 1:
        yield from _of_sizes([op for section, op in ops if section != "postprocess"])
    if predicts_number and config.sampling != "uniform":
        yield "sampling: the targets are numbers, not classes; drop `sampling`"
    if config.batch and config.batch.pack and (columns or predicts_number):
        what = "columns" if columns else "numbers to predict"
        yield f"batch.pack: texts with {what} cannot be packed; use `batch: {{pad_to: auto}}`"


def _of_sequences(config: PipelineConfig) -> Iterator[str]:
    if config.service:
        yield "service: its workers' batches differ in length and cannot be joined; drop `service`"
    if config.snapshot_on == "device":
        yield "snapshot_on: texts differ in length and are gathered on the host; use host"


def _of_windows(config: PipelineConfig, encoding: Encoding) -> Iterator[str]:
    """Yield problems of windows, which cross from one record into the next."""
    noun, text = encoding.noun, encoding.modality == "text"
    parts = "documents" if text else "blocks"
    if config.batch:
        yield f"batch: windows of {noun} have one length; drop `batch`, and set `batch_size` alone"
    if config.read == "indexed_shards":
        yield (
            f"read: a window of {noun} is made of several records; use `read: snapshot`, or"
            " `shards`"
        )
    for field, given in (
        ("interleave", config.interleave),
        ("deterministic", not config.deterministic),
    ):
        if given:
            yield f"{field}: windows of {noun} need the {parts} in their order; drop `{field}`"
    if config.sampling != "uniform":
        yield f"sampling: windows of {noun} have no class; drop `sampling`"
    if config.vectorize:
        yield "vectorize: windows are batched only after they are cut; drop `vectorize`"
    if config.service:
        yield f"service: its workers would cut windows out of different {parts}; drop `service`"
    if text and config.snapshot_on == "device":
        yield f"snapshot_on: windows of {noun} are gathered on the host; use host"


def _of_sizes(ops: Sequence[Op]) -> Iterator[str]:
    """Yield problems of ops with images that are decoded at a smaller size."""
    for op in ops:
        if op.counts_pixels:
            yield (
                f"decode.ratio: {op.name} counts pixels of the full size, so it would do something"
                " else to smaller images; drop `ratio`, or resize before"
            )
            return
        if op.shape((64, 128, 3)) == op.shape((128, 256, 3)):  # the same at any ratio
            return
    yield (
        "decode.ratio: nothing resizes the images, and the model would see smaller ones; add"
        " `resize` to preprocess, or drop `ratio`"
    )


def find_ops_problems(
    encoding: Encoding, ops: Sequence[tuple[str, Op]], *, predicts_number: bool, columns: bool
) -> Iterator[str]:
    """Yield problems that ops, given as (section, op), have with data of this encoding.

    `columns`: the data has a table input.
    """
    for section, op in ops:
        yield from _of_op(op, section=section, encoding=encoding)
    names = [op.name for _, op in ops]
    if "categories" in names and "rescale" in names[: names.index("categories")]:
        yield (
            "postprocess: rescale changes the numbers of the categories; use `standardize`, which"
            " keeps them, or put rescale after `categories`"
        )
    changing = [op for section, op in ops if section == "postprocess" and not op.on_labels]
    for before, op in pairwise(changing):
        if isinstance(op, Standardize) and op.mean is None:
            yield (
                f"postprocess: standardize uses mean and deviation of the stored values, but"
                f" {before.name} changes these before; put standardize first, drop {before.name},"
                " or give standardize `mean` and `deviation`"
            )
    for section, op in ops:
        if predicts_number and (op.mixes_labels or op.on_labels):
            yield (
                f"{section}: {op.name} needs labels that are classes, and these are numbers to"
                " predict; drop it"
            )
        if columns and op.mixes_labels:
            yield (
                f"{section}: {op.name} mixes images of different examples, but not their columns;"
                f" drop {op.name}, or data.numeric and data.categorical"
            )


def _of_op(op: Op, *, section: str, encoding: Encoding) -> Iterator[str]:
    modality = encoding.modality
    if op.works_on and modality not in op.works_on:
        yield (
            f"{section}: {op.name} works on {' and '.join(op.works_on)}, not on {encoding.noun};"
            f" drop it, in an overlay by setting `{section}` without it"
        )
    if section == "preprocess" and op.on_labels:
        yield (
            f"preprocess: {op.name} changes labels, but they are stored unchanged; move it to"
            " postprocess"
        )
    made_by_rescaling = modality == "images" and isinstance(op, Rescale | Standardize)
    measured = isinstance(op, Standardize) and op.mean is None
    if section == "preprocess" and (isinstance(op, Categories) or made_by_rescaling or measured):
        yield (
            f"preprocess: {op.name} makes the floats that a model sees, but a snapshot stores the"
            " values before that; move it to postprocess"
        )
    if section != "postprocess":
        return
    # params.yaml has rescale without arguments, for images.
    if modality == "numbers" and isinstance(op, Rescale) and "scale" not in op.model_fields_set:
        yield (
            "postprocess: rescale divides by 255, which is for pixels; use `standardize`, in a"
            " table with `categories` after it, or give rescale its `scale`"
        )
    if not (op.random or op.on_labels or op.device or hasattr(op, "layer")):
        yield (
            f"postprocess: {op.name} has no Keras layer, but a model holds what postprocess does;"
            " move it to preprocess, or give a class of your own a method layer()"
        )


def find_text_problems(preprocess: Sequence[Op]) -> Iterator[str]:
    names = [op.name for op in preprocess]
    if names.count("tokenize") != 1:
        yield (
            "preprocess: text needs one `tokenize`, such as `- tokenize: {kind: sentencepiece,"
            " vocabulary: 8000}`"
        )
        return
    early = names[: names.index("tokenize")]
    for name, what in (("truncate", "counts"), ("end_document", "follows the last of the")):
        if name in early:
            yield f"preprocess: {name} {what} tokens; put it after `tokenize`"
    op = next(op for op in preprocess if isinstance(op, Tokenize))
    at = "preprocess: tokenize.model:"
    if op.model and not op.file:
        yield f"{at} `kind: {op.kind}` needs no file; drop `model`, or set another kind"
    elif op.model and not Path(op.model).is_file():
        yield f"{at} {op.model} does not exist"


def find_fraction_problems(fraction: float, encoding: Encoding) -> Iterator[str]:
    """Yield a reason against storing or reading only a `fraction` of a snapshot's rows, if any."""
    if fraction != 1 and encoding.modality != "images":
        yield f"snapshot.fraction: only images can be stored in part, not {encoding.noun}; drop it"
