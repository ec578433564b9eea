"""Files to predict, examined as ingest does it: files, folders, tables of paths, and arrays."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import numpy as np
import tensorflow as tf

from throughline.data.encodings.array_files import read_array
from throughline.data.encodings.arrays import as_images
from throughline.data.encodings.base import FileEncoding, Inspect, RejectedValue, StoredFile
from throughline.data.found import Files, Rejected
from throughline.data.listed_paths import find_listed
from throughline.data.sources.class_folders import list_class_folders
from throughline.data.tables.table_columns import code_rows
from throughline.data.tables.tabular import read_table
from throughline.models.inference import TrainedModel
from throughline.plan.schema import find_encoding
from throughline.plan.shapes import widen_schema
from throughline.prediction.examples import (
    ARRAYS,
    NO_COLUMNS,
    Example,
    Examples,
    Wanted,
    in_batches,
    note_skipped,
)
from throughline.prediction.tables import read_for
from throughline.settings import DataSettings
from throughline.settings.source_kinds import TABLES
from throughline.shared.errors import UnreadableSource
from throughline.shared.limits import usable_cores
from throughline.shared.progress import echo_fact, in_threads

NOT_FINITE = "holds values that are not finite"
FILES_AT_ONCE = 64  # examined together; their bytes are in memory


def read(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read the files that `path` is, holds or lists, or the images of an array."""
    if path.suffix.lower() in TABLES and path.is_file():
        return _read_listed(path, trained)
    if trained.spec.schema.table_input:
        raise UnreadableSource(f"{path} {NO_COLUMNS}")
    if path.is_dir():
        listed = list_files(path, trained.spec.data, _encoding(trained))
        named = [_Named(str(file.path), file.path) for file in listed.files]
        files = _examine(named, path, trained)
        unread = [replace(item, id=str(path / item.id)) for item in listed.rejected]
        return replace(files, items=chain(files.items, unread), total=files.total + len(unread))
    if path.suffix.lower() in ARRAYS:
        return read_arrays(path, trained, wanted)
    return _examine([_Named(str(path), path)], Path(path.absolute().anchor), trained)


class _Named(NamedTuple):
    name: str
    path: Path
    columns: np.ndarray | None = None
    problem: str | None = None


def _read_listed(path: Path, trained: TrainedModel) -> Examples:
    column, more = trained.spec.data.path_column, trained.spec.schema.table_input
    table = read_for(trained, path) if more else read_table(path, trained.spec.data)
    if column not in table.columns:
        noun = _encoding(trained).noun
        raise UnreadableSource(f"{path} has no column {column} with the paths of {noun}")
    names = table.cells(column)
    paths: Sequence[str] = names
    with suppress(UnreadableSource):  # then each missing file becomes a reject
        paths, notes = find_listed(names, path, path.parent, trained.spec.data)
        for rule in notes:
            echo_fact(rule)
    named = [_Named(name, path.parent / below) for name, below in zip(names, paths, strict=True)]
    if more:
        values, problems = code_rows(table, more.columns)
        named = [
            one._replace(columns=values[row], problem=problems[row])
            for row, one in enumerate(named)
        ]
    return _examine(named, path.parent, trained)


def _encoding(trained: TrainedModel) -> FileEncoding:
    """Return the encoding of files: the training's, or images if the training had arrays."""
    encoding = trained.spec.schema.input.encoding
    image = cast("FileEncoding", find_encoding("image"))
    return encoding if isinstance(encoding, FileEncoding) else image


def list_files(folder: Path, settings: DataSettings, encoding: FileEncoding) -> Files:
    """List files of an encoding below a folder, as ingest does; DataNotFound if there is none."""
    named = settings.model_copy(
        update={"path": str(folder), "layout": "class", "leave_out": [], "follow_links": False}
    )
    listed = list_class_folders(named, encoding, classes=False)
    note_skipped(folder, listed.skipped, encoding.noun)
    return listed


def _examine(named: Sequence[_Named], root: Path, trained: TrainedModel) -> Examples:
    """Examine the named files, which must be below `root` except where links are followed."""
    follow = trained.spec.data.follow_links

    def examine(inspect: Inspect, folder: str, one: _Named) -> Example | Rejected:
        name, path = one.name, one.path
        if one.problem:
            return Rejected(id=name, reason=one.problem)
        # Each has a folder of its own, since equal files are converted to equal names.
        with TemporaryDirectory(dir=folder) as converted:
            try:
                stored = StoredFile(path=path, root=root, follow_links=follow)
                info = inspect(stored, Path(converted))
                data = info.path.read_bytes()
            except (RejectedValue, FileNotFoundError) as reason:
                return Rejected(id=name, reason=str(reason))
        if problem := _find_misfit(info.shape, trained):
            return Rejected(id=name, reason=problem)
        value, feature = data, trained.spec.schema.input
        if feature.encoding.storage != "files":
            channels = feature.channels
            value = tf.io.decode_image(data, channels=channels, expand_animations=False).numpy()
        return Example(id=name, value=value, columns=one.columns)

    def items() -> Iterator[Example | Rejected]:
        opened = _encoding(trained).open_inspector(trained.spec.data)
        with TemporaryDirectory(prefix="throughline-") as folder, opened as inspect:
            for some in in_batches(named, FILES_AT_ONCE):
                one = partial(examine, inspect, folder)
                yield from in_threads(one, some, workers=usable_cores())

    return Examples(items=items(), total=len(named))


def _find_misfit(shape: tuple[int, ...], trained: TrainedModel) -> str | None:
    feature = trained.spec.schema.input
    if feature.encoding.modality == "images" and shape[-1] > feature.channels:
        return "in color, but the model was trained on gray images; convert it to gray first"
    needed = widen_schema(trained.spec.schema, trained.ops).input.shape[:-1]
    if None in needed or shape[:-1] == needed:
        return None
    sizes = ("×".join(map(str, reversed(size))) for size in (shape[:-1], needed))
    return "{} pixels, but the model takes {}; resize it like the training's images".format(*sizes)


def read_arrays(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read images, or other values, from an array (examples, *shape) of the model's dtype."""
    feature = trained.spec.schema.input
    values = read_array(path, trained.spec.data.features)
    shape, rows = feature.shape, feature.encoding.storage == "rows"
    if feature.encoding.modality == "images":
        with suppress(UnreadableSource):  # refused below, with the inputs that the model takes
            values, _ = as_images(values, str(path))
    elif values.ndim == len(shape) and shape[-1] == 1:
        values = values[..., None]
    if not rows or values.shape[1:] != shape or values.dtype != feature.dtype:
        takes = f"{feature.dtype} (examples, {', '.join(map(str, shape))})" if rows else "files"
        raise UnreadableSource(
            f"{path} has dtype {values.dtype} and shape {values.shape}; the model takes {takes}"
        )

    def items() -> Iterator[Example | Rejected]:
        for number in range(len(values)):
            name, value = f"{path}[{number}]", np.asarray(values[number])
            finite = np.isfinite(value).all()
            yield Example(id=name, value=value) if finite else Rejected(id=name, reason=NOT_FINITE)

    return Examples(items=items(), total=len(values))
