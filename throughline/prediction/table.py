"""Predicts the labels of examples in files, and writes them as CSV."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import tensorflow as tf

from throughline.data.found import Rejected
from throughline.data.tables.table_start import SIGNATURES
from throughline.models.inference import InferenceSpec, TrainedModel
from throughline.models.serving import make_input_signature, make_serve_fn
from throughline.plan.schema import Schema
from throughline.prediction import files, tables, texts
from throughline.prediction.examples import ARRAYS, Example, Examples, Wanted, in_batches
from throughline.settings.source_kinds import TABLES
from throughline.shared.errors import ImpossiblePlan, UnreadableSource, UserError
from throughline.shared.progress import progress
from throughline.shared.wording import name_some

MOST_CLASSES = 3  # likeliest classes that have columns
REASONS_SHOWN = 10
COLUMNS_SHOWN = 12
# First bytes of files that are given for texts and tables by mistake.
_MISTAKEN = {**SIGNATURES, b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text"}
Reader = Callable[[Path, TrainedModel, Wanted], Examples]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A model's output: probabilities (classes,), or values (targets,) or (horizon, targets)."""

    example: Example
    output: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of predicted and rejected inputs, the first rejects, and the accepted inputs."""

    predicted: int
    rejected: int
    first: Sequence[Rejected]
    takes: str


def write_predictions(
    trained: TrainedModel,
    paths: Sequence[Path],
    out: IO[str],
    *,
    wanted: Wanted,
    batch_size: int,
    show_progress: bool = True,
) -> Counts:
    """Predict all inputs at `paths` and write the CSV; ImpossiblePlan for next tokens."""
    if trained.spec.task == "next_token":
        raise ImpossiblePlan(
            "this model predicts the next token of a text, not a label; export it as a SavedModel"
            " with `python -m tasks.export` and call serve(text)"
        )
    examples = read_examples(paths, trained, wanted)
    items: Iterable = predict(trained, examples.items, batch_size=batch_size)
    if show_progress:
        items = progress(items, total=examples.total, label="predict")
    writer = csv.writer(out, lineterminator="\n")
    predicted, rejected, first = 0, 0, []
    waiting: list[Iterable[list[str]]] = [[make_header(trained.spec)]]
    for item in items:
        waiting.append(make_rows(item, trained.spec))
        if isinstance(item, Rejected):
            rejected += 1
            first += [item] if len(first) < REASONS_SHOWN else []
        else:
            predicted += 1
        if predicted:
            writer.writerows(chain.from_iterable(waiting))
            waiting.clear()
    return Counts(
        predicted=predicted, rejected=rejected, first=first, takes=describe_inputs(trained.spec)
    )


def make_header(spec: InferenceSpec) -> list[str]:
    """Return the names of the columns; each input is a line, or each time step of a series.

    `error` says why an input has no prediction; `row` is the number of a time step, from 1.
    """
    if spec.task == "regression":
        names = [*(["row"] if spec.schema.is_series else []), *spec.targets]
    else:
        ranks = ["", *(f"_{rank}" for rank in range(2, _shown(spec) + 1))]
        names = [f"{name}{rank}" for rank in ranks for name in ("class", "probability")]
    return ["input", *names, "error"]


def make_rows(item: Prediction | Rejected, spec: InferenceSpec) -> Iterator[list[str]]:
    width = len(make_header(spec)) - 2
    if isinstance(item, Rejected):
        yield [item.id, *[""] * width, item.reason]
    elif spec.task == "regression":
        series = spec.schema.is_series
        for ahead, values in enumerate(np.atleast_2d(item.output), start=1):
            row = [str(item.example.row + ahead)] if series else []
            yield [item.example.id, *row, *(f"{value:.7g}" for value in values), ""]
    else:
        likeliest = np.argsort(-item.output, kind="stable")[: _shown(spec)]
        cells = [(spec.classes[place], f"{item.output[place]:.6f}") for place in likeliest]
        yield [item.example.id, *(cell for pair in cells for cell in pair), ""]


def _shown(spec: InferenceSpec) -> int:
    return min(MOST_CLASSES, len(spec.classes))


def predict(
    trained: TrainedModel, items: Iterable[Example | Rejected], *, batch_size: int
) -> Iterator[Prediction | Rejected]:
    """Predict all examples; rejected ones pass through in their place."""
    signature = [make_input_signature(trained.spec)]
    serve = tf.function(make_serve_fn(trained), input_signature=signature, autograph=False)
    for batch in in_batches(items, batch_size):
        examples = [item for item in batch if isinstance(item, Example)]
        outputs = iter(())
        if examples:
            (answer,) = serve(_stack(examples, trained.spec.schema)).values()
            outputs = iter(answer.numpy())
        for item in batch:
            if isinstance(item, Example):
                yield Prediction(example=item, output=next(outputs))
            else:
                yield item


def _stack(examples: list[Example], schema: Schema) -> tf.Tensor | dict[str, tf.Tensor]:
    values = [example.value for example in examples]
    first = tf.constant(values if isinstance(values[0], bytes) else np.stack(values))
    if schema.table_input is None:
        return first
    columns = np.stack([np.asarray(example.columns) for example in examples])
    return {schema.input.name: first, schema.table_input.name: tf.constant(columns)}


def read_examples(paths: Sequence[Path], trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read all examples at `paths`; a file that cannot be read at all becomes a reject."""
    encoding = trained.spec.schema.input.encoding
    readers: dict[str, Reader] = {
        "files": files.read,
        "rows": files.read if encoding.modality == "images" else tables.read_rows,
        "blocks": tables.read_series,
        "documents": texts.read,
    }
    read = files.read_arrays if takes_arrays(trained.spec) else readers[encoding.storage]
    opened = [(path, _open(read, path, trained, wanted)) for path in paths]
    return Examples(
        items=(item for path, one in opened for item in _guarded(path, one.items)),
        total=sum(one.total for _, one in opened),
    )


def takes_arrays(spec: InferenceSpec) -> bool:
    """Return whether a model takes arrays of two axes or more per example, not rows of a table."""
    value, encoding = spec.schema.input, spec.schema.input.encoding
    numbers = encoding.modality == "numbers" and encoding.storage == "rows"
    return numbers and len(value.shape) > 1


def describe_inputs(spec: InferenceSpec) -> str:
    data, schema, encoding = spec.data, spec.schema, spec.schema.input.encoding
    named = name_some(schema.columns.names, most=COLUMNS_SHOWN)
    tables = f"tables (CSV, TSV ({data.encoding}) or Parquet)"
    if takes_arrays(spec):
        shape = ", ".join(map(str, ("examples", *schema.input.shape)))
        what = f".npy or .npz arrays ({shape}) of {schema.input.dtype}"
    elif schema.table_input and schema.is_text:
        what = (
            f".jsonl, .csv, .tsv ({data.encoding}) and .parquet files with the columns"
            f" {data.text_column}, {named}"
        )
    elif schema.table_input:
        what = f"{tables} with paths of {encoding.noun} in column {data.path_column}, and the"
        what += f" columns {named}"
    elif encoding.modality == "images":
        arrays = "" if encoding.storage == "files" else ", .npy or .npz arrays of images"
        what = "images (JPEG, PNG, GIF, BMP or WebP), folders of them, or tables with their paths"
        what += f" in column {data.path_column}{arrays}"
    elif encoding.storage == "files":
        what = f"{encoding.noun}: files, folders of them, and tables with their paths in column"
        what += f" {data.path_column}"
    elif schema.is_text:
        what = (
            f"texts ({data.encoding}): files, folders of them, and .jsonl, .csv, .tsv or .parquet"
            f" files whose column {data.text_column} holds the text"
        )
    elif schema.is_series:
        columns = ", ".join([*data.time_columns, named])
        what = f"series of at least {spec.window.length} time steps: {tables} with the columns"
        what += f" {columns}, or .npy arrays of {named}"
    else:
        what = f"{tables} with the columns {named}"
    return f"This model takes {what}."


def _open(read: Reader, path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    try:
        problem = _find_misuse(path, trained.spec)
        if problem is None:
            return read(path, trained, wanted)
    except UserError as error:
        problem = _explain(error, path)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    return Examples(items=[Rejected(id=str(path), reason=problem)], total=1)


def _find_misuse(path: Path, spec: InferenceSpec) -> str | None:
    """Return why a model cannot take a path, by its kind, suffix and first bytes; or None."""
    encoding = spec.schema.input.encoding
    if not path.exists():
        return "does not exist"
    if path.is_dir():
        return "is a folder, not a file" if encoding.modality == "numbers" else None
    if not path.is_file():
        return "is not a regular file"
    suffix = path.suffix.lower()
    arrays = ARRAYS if takes_arrays(spec) else {".npy"} if encoding.storage == "blocks" else ()
    as_text = suffix != ".parquet" and (
        suffix in TABLES
        if encoding.modality == "images" or encoding.storage == "files"
        else suffix not in arrays
    )
    with path.open("rb") as file:
        start = file.read(1 << 12)
    if not start:
        return "is empty"
    # In other encodings any bytes may be characters.
    if not as_text or "\n".encode(spec.data.encoding) != b"\n":
        return None
    known = [what for signature, what in _MISTAKEN.items() if start.startswith(signature)]
    what = next(iter(known), "binary, not text" if b"\0" in start else None)
    return what and f"is {what}"


def _guarded(path: Path, items: Iterable[Example | Rejected]) -> Iterator[Example | Rejected]:
    """Yield the items; an error in them, or a path without items, becomes a reject."""
    last = ""
    try:
        for item in items:
            last = f", after {item.id}"
            yield item
        if not last:
            yield Rejected(id=str(path), reason="holds no example")
    except UserError as error:
        yield Rejected(id=str(path), reason=f"{_explain(error, path)}{last}")


def _explain(error: UserError, path: Path) -> str:
    """Return the problem of the file at `path` in one line, without its path or a remedy."""
    found = [str(error)]
    if isinstance(error, UnreadableSource):
        found = [one.problem for one in error.several or [error]]
    whats = [" ".join(one.split()).removeprefix(str(path)).lstrip(":, ") for one in found]
    return "; ".join(what.rstrip(".") for what in whats)
