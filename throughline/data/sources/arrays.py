"""Images in NumPy files: an .npz archive, or a folder with one .npy per array. Pickled content is
never loaded.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.sources.base import Arrays
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource, did_you_mean

_CHANNELS = (1, 3)
_SINGLE = b"\x93NUMPY"  # as an .npy file begins
# What damaged archives raise; RuntimeError where a member seems to be encrypted.
_UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def scan(settings: DataSettings) -> Arrays:
    """Read `data.features` (examples, height, width[, channels]) uint8 and `data.labels`
    (examples,) from `data.path`.
    """
    path = Path(settings.path)
    for key, name in (("features", settings.features), ("labels", settings.labels)):
        if path.is_dir() and Path(name).name != name:
            raise UnreadableSource(
                f"data.{key}: {name} is not the name of an array; needed is NAME of a NAME.npy in"
                f" {path}"
            )
    _refuse_single(path)
    images = read_array(path, settings.features)
    labels = read_array(path, settings.labels)
    images = images[..., None] if images.ndim == 3 else images  # noqa: PLR2004 - gray images without a channel axis
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in _CHANNELS:  # noqa: PLR2004
        raise UnreadableSource(
            f"{path}: {settings.features} has dtype {images.dtype} and shape {images.shape}; "
            "needed is uint8 (examples, height, width) or (examples, height, width, 1 or 3)"
        )
    if labels.ndim != 1 or len(labels) != len(images):
        raise UnreadableSource(
            f"{path}: {settings.labels} has shape {labels.shape}, needed is ({len(images)},), one"
            " class per image"
        )
    if labels.dtype.kind not in "iubUS":
        raise UnreadableSource(
            f"{path}: {settings.labels} has dtype {labels.dtype}; classes are integers or strings"
        )
    distinct = np.unique(labels)  # sorted: integers by value, strings by spelling
    names = [_class_name(value) for value in labels]
    return Arrays(
        values=images,
        labels=names,
        ids=[f"{number:08d}" for number in range(len(names))],
        splits=[None] * len(names),
        classes=[_class_name(value) for value in distinct],
        schema=labeled(pixels_feature(images.shape[1:])),
    )


def _refuse_single(path: Path) -> None:
    """Refuse an .npy file, which holds one array."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        single = file.read(len(_SINGLE)) == _SINGLE
    if single:
        raise UnreadableSource(
            f"{path} holds a single array; `data.path` is an .npz file with the arrays"
            " data.features and data.labels, or a folder with one .npy file for each of them"
        )


def read_array(path: Path, name: str) -> np.ndarray:
    """The array of this name in an .npz file or in a folder, or the one of an .npy file, whatever
    the file is called.

    Raises:
      DataNotFound: there is no such file.
      UnreadableSource: it is none of NumPy's, damaged, or holds no such array; says which it holds.
    """
    known: list[str] = []
    try:
        file = path / f"{name}.npy" if path.is_dir() else path
        opened = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(opened, NpzFile):
            return opened
        with opened as archive:
            known = archive.files
            return archive[name]
    except FileNotFoundError as error:
        raise DataNotFound(
            f"{error.filename} is missing; `data.path` is an .npz file or a folder with {name}.npy"
        ) from error
    except KeyError as error:
        raise UnreadableSource(
            f"{path}: no array {name}; {did_you_mean(name, known)}",
            "set data.features and data.labels",
        ) from error
    except _UNREADABLE as error:
        raise UnreadableSource(
            f"{path}: {name} cannot be read ({error}); pickled arrays are refused, save plain ones"
            " with numpy.savez"
        ) from error


def _class_name(value: object) -> str:
    """A class as text; what is no UTF-8 is written as escapes."""
    return (
        value.decode("utf-8", "backslashreplace")
        if isinstance(value, bytes)
        else str(value).encode("utf-8", "backslashreplace").decode()
    )
