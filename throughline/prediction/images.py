"""Images to predict: files, folders of them, tables with a column of their paths, and arrays of
images. Files are examined and converted as ingest does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tensorflow as tf

from throughline.data.encodings.decoder import Decoder
from throughline.data.encodings.images import RejectedImage, inspect_image
from throughline.data.sources.base import Rejected
from throughline.data.sources.class_folders import ClassFolders, list_class_folders
from throughline.data.sources.image_folder import SUFFIXES
from throughline.data.sources.tabular import TABLES, read_table
from throughline.models.inference import TrainedModel
from throughline.plan.shapes import ops_until_uniform
from throughline.prediction.examples import Example, Examples, Wanted, as_arrays, in_batches
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource
from throughline.shared.limits import usable_cores
from throughline.shared.progress import in_threads, note

ARRAYS = frozenset({".npy", ".npz"})
KINDS_SHOWN = 5  # of files that are no images
FILES_AT_ONCE = 64  # examined together; their bytes are in memory


def read(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """The images at `path`."""
    if path.is_dir():
        listed = list_images(path, trained.spec.data)
        images = _examine([(str(file.path), file.path) for file in listed.files], path, trained)
        unread = [replace(item, id=str(path / item.id)) for item in listed.rejected]
        return replace(images, items=chain(images.items, unread), total=images.total + len(unread))
    if path.suffix.lower() in ARRAYS:
        return _read_arrays(path, trained)
    if path.suffix.lower() in TABLES:
        column = trained.spec.data.path_column
        table = read_table(path, trained.spec.data)
        if column not in table.columns:
            raise UnreadableSource(f"{path} has no column {column}, which would name image files")
        listed = table.cells(column)
        return _examine([(name, path.parent / name) for name in listed], path.parent, trained)
    return _examine([(str(path), path)], Path(path.absolute().anchor), trained)


def list_images(folder: Path, settings: DataSettings) -> ClassFolders:
    """Image files below a folder, listed as ingest does it; says what other files it passes over.

    Raises:
      DataNotFound: there is none.
    """
    named = settings.model_copy(update={"path": str(folder), "folders": "classes"})
    listed = list_class_folders(named, SUFFIXES, what="images", classes=False)
    if others := listed.skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in [*others.items()][:KINDS_SHOWN])
        note(f"{folder}: {sum(others.values())} files that are no images passed over ({kinds})")
    return listed


def _examine(named: Sequence[tuple[str, Path]], root: Path, trained: TrainedModel) -> Examples:
    """Image files by their names, none of which may lead out of `root`."""
    limit = trained.spec.data.max_pixels

    def examine(name: str, path: Path, decoder: Decoder, folder: Path) -> Example | Rejected:
        try:
            # A folder of its own: equal files are converted at the same time, to equal names.
            with TemporaryDirectory(dir=folder) as converted:
                info = inspect_image(
                    path, root=root, max_pixels=limit, converted=Path(converted), decoder=decoder
                )
                data = info.path.read_bytes()
            problem = _find_misfit(info.height, info.width, info.channels, trained)
            if problem:
                return Rejected(id=name, reason=problem)
            return Example(id=name, value=_as_stored(data, trained))
        except (RejectedImage, FileNotFoundError) as reason:
            return Rejected(id=name, reason=str(reason))

    def items() -> Iterator[Example | Rejected]:
        with TemporaryDirectory(prefix="throughline-") as folder, Decoder() as decoder:
            for some in in_batches(named, FILES_AT_ONCE):
                one = partial(_call, examine, decoder, Path(folder))
                yield from in_threads(one, some, workers=usable_cores())

    return Examples(items=items(), total=len(named))


def _call(examine, decoder: Decoder, folder: Path, named: tuple[str, Path]):  # noqa: ANN001, ANN202 - the closure above
    return examine(*named, decoder, folder)


def _find_misfit(height: int, width: int, channels: int, trained: TrainedModel) -> str | None:
    """Why the model cannot see an image as it saw those of its training; None where it can."""
    schema = trained.spec.schema
    if channels > schema.channels:
        return "in color, and the model was trained on grey images; convert it to grey first"
    variable = replace(schema, shape=None) if schema.payload == "encoded" else schema
    needed = None if schema.shape is None else schema.shape[:2]
    resized = schema.payload == "encoded" and ops_until_uniform(trained.ops, variable) is not None
    if needed is None or resized or (height, width) == tuple(needed):
        return None
    return (
        f"{width}×{height} pixels, and the model takes {needed[1]}×{needed[0]}; resize it as the"
        " images of the training were"
    )


def _as_stored(data: bytes, trained: TrainedModel) -> bytes | np.ndarray:
    """The file itself, or its pixels where the training had arrays."""
    schema = trained.spec.schema
    if schema.payload == "encoded":
        return data
    image = tf.io.decode_image(data, channels=schema.channels, expand_animations=False)
    return image.numpy()


def _read_arrays(path: Path, trained: TrainedModel) -> Examples:
    """Images in an array (examples, *shape) uint8."""
    schema, name = trained.spec.schema, trained.spec.data.features
    try:
        values = as_arrays(path, name)
    except (KeyError, OSError, ValueError, EOFError) as error:
        raise UnreadableSource(f"{path}: no array {name} can be read ({error})") from error
    if values.ndim == len(schema.shape or ()) and schema.shape and schema.shape[-1] == 1:
        values = values[..., None]
    if schema.payload != "raw" or values.shape[1:] != schema.shape or values.dtype != schema.dtype:
        raise UnreadableSource(
            f"{path} has dtype {values.dtype} and shape {values.shape}; the model takes"
            f" {schema.dtype} of (examples, {', '.join(map(str, schema.shape or ['files']))})"
        )
    return Examples(
        items=(
            Example(id=f"{path}[{number}]", value=np.asarray(values[number]))
            for number in range(len(values))
        ),
        total=len(values),
    )
