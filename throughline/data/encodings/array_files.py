"""NumPy files: lists the arrays of an .npz archive or a folder of .npy files, and reads one.

Arrays that are not compressed are mapped, not read into memory; pickled content is never loaded.
"""

import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from throughline.shared.errors import DataNotFound, UnreadableSource, did_you_mean
from throughline.shared.wording import name_some

_SINGLE = b"\x93NUMPY"  # first bytes of an .npy file
# First bytes of formats that are not read, with how to read them in Python.
_OTHERS = {
    b"MATLAB 5": "a MATLAB file: read it with scipy.io.loadmat",
    b"MATLAB 7": "a MATLAB file in HDF5: read it with h5py.File",
    b"\x89HDF": "an HDF5 file: read it with h5py.File",
    b"\x80": "a pickle: read it with pickle.load if you trust it",
    b"\x1f\x8b": "compressed with GZIP: unpack it with gunzip",
}
# Errors of damaged archives; RuntimeError if a member seems to be encrypted.
_UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_NAME_SIZES = 26  # offset of the sizes of name and extra field in a member's local header
_LOCAL_HEADER = 30


@dataclass(frozen=True, kw_only=True)
class ArrayHeader:
    """An array's shape and dtype: "text" for strings, "unreadable" if damaged or not an array."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}" if self.shape else self.dtype


class JoinedArrays:
    """Arrays that differ only in length, as one array (examples, *shape) that can be sliced."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts, self.dtype = parts, parts[0].dtype
        self.shape = (sum(map(len, parts)), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        blocks, first = [], 0
        for part in self.parts:
            blocks.append(part[max(0, start - first) : max(0, stop - first)])
            first += len(part)
        return np.concatenate(blocks)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


def list_arrays(path: Path) -> dict[str, ArrayHeader]:
    """Return the arrays of an .npz file, or a folder's .npy and one-array .npz files, by name."""
    if not path.is_dir():
        return _list_members(path)
    found = {file.stem: _read_header(file.open("rb")) for file in sorted(path.glob("*.npy"))}
    for file in sorted(path.glob("*.npz")):
        members = [*_list_members(file).values()]
        if len(members) == 1:
            found[file.stem] = members[0]
    return found


def _list_members(path: Path) -> dict[str, ArrayHeader]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                name.removesuffix(".npy"): _read_header(archive.open(name))
                for name in archive.namelist()
            }
    except _UNREADABLE:
        return {}


def _read_header(file: IO[bytes]) -> ArrayHeader:
    try:
        with file:
            shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except (*_UNREADABLE, LookupError, SyntaxError):
        return ArrayHeader(shape=(), dtype="unreadable")
    return ArrayHeader(shape=shape, dtype="text" if dtype.kind in "SU" else dtype.name)


def list_headers(found: Mapping[str, ArrayHeader], names: Collection[str]) -> str:
    return name_some([f"{name} {found[name]}" for name in names])


def _is_single(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SINGLE)) == _SINGLE


def refuse_single(path: Path) -> None:
    if path.is_file() and _is_single(path):
        raise UnreadableSource(
            f"{path} holds a single array; `data.path` must be an .npz file with the"
            " arrays data.features and data.labels, or a folder with one .npy file for each of them"
        )


def read_array(path: Path, name: str) -> np.ndarray:
    """Return the array `name` of an .npz file or a folder, or the only array of an .npy file.

    Raises DataNotFound without such a file, and UnreadableSource if it is damaged, pickled or not
    NumPy's, or has no array `name`.
    """
    known: list[str] = []
    try:
        file = path / f"{name}.npy" if path.is_dir() else path
        single = not file.exists() and path.is_dir() and file.with_suffix(".npz").exists()
        file = file.with_suffix(".npz") if single else file
        if _is_single(file):
            return np.load(file, mmap_mode="r", allow_pickle=False)
        with zipfile.ZipFile(file) as archive:
            members = {member.removesuffix(".npy"): member for member in archive.namelist()}
            known = [*members]
            return _read_member(archive, members[known[0] if single else name], file)
    except FileNotFoundError as error:
        raise DataNotFound(
            f"{error.filename} is missing; data.path must be an .npz file or folder with {name}.npy"
        ) from error
    except LookupError as error:
        raise UnreadableSource(
            f"{path}: no array {name}; {did_you_mean(name, known)}",
            "set data.features and data.labels",
        ) from error
    except _UNREADABLE as error:
        damaged = isinstance(error, zipfile.BadZipFile)
        with file.open("rb") as opened:
            start = opened.read(max(map(len, _OTHERS)))
        if other := next((_OTHERS[one] for one in _OTHERS if start.startswith(one)), ""):
            raise UnreadableSource(
                f"{file} is {other}, and save its arrays with numpy.savez"
            ) from error
        raise UnreadableSource(
            f"{path}: {name} cannot be read ({error})",
            "the file is incomplete or damaged: get it again"
            if damaged
            else "pickled arrays are refused: save plain ones with numpy.save or numpy.savez; if"
            " none is pickled, the file is damaged",
        ) from error


def _read_member(archive: zipfile.ZipFile, member: str, path: Path) -> np.ndarray:
    """Return an array of an archive: mapped if stored uncompressed, else unpacked in memory."""
    info = archive.getinfo(member)
    with archive.open(member) as file:
        known = np.lib.format.read_magic(file) in _HEADERS
        if info.compress_type != zipfile.ZIP_STORED or not known:
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
        while file.read(1 << 20):  # the checksum is compared at the end
            pass
    with path.open("rb") as file:
        file.seek(info.header_offset + _NAME_SIZES)
        sizes = np.frombuffer(file.read(_LOCAL_HEADER - _NAME_SIZES), "<u2")
        file.seek(info.header_offset + _LOCAL_HEADER + int(sizes.sum()))
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        order = "F" if by_column else "C"
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", offset=file.tell(), shape=shape, order=order)
