"""TFRecord files: framing, writing, reading, and describing damage. Needs no TensorFlow.

A record is framed as length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the
data, little-endian. Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import gzip
import io
import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO, Literal

import google_crc32c
import numpy as np

from throughline.shared.errors import CorruptShard, rebuild_hint
from throughline.shared.files import HashingWriter, atomic_file

Compression = Literal["none", "gzip"]
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_LARGEST = 1 << 31


def shard_name(split: str, index: int, count: int, compression: Compression) -> str:
    """Return the name of a shard as most readers expect it: `train-00003-of-00016.tfrecord`."""
    return f"{split}-{index:05d}-of-{count:05d}.tfrecord" + (".gz" if compression == "gzip" else "")


def frame(*parts: bytes) -> tuple[bytes, ...]:
    """Frame one record, given in parts, for a TFRecord file; large parts are not copied."""
    length = sum(map(len, parts)).to_bytes(8, "little")
    return length + _CRC.pack(_masked(length)), *parts, _CRC.pack(_masked(*parts))


def frame_buffer(count: int, size: int) -> np.ndarray:
    """Return a buffer (count,) of frames with the fields head, record (size,) uint8 and check."""
    fields = [("head", np.void, _HEAD.size), ("record", np.uint8, (size,)), ("check", "<u4")]
    frames = np.empty(count, np.dtype(fields))
    frames["head"] = np.void(frame(bytes(size))[0])
    return frames


def seal_frames(frames: np.ndarray) -> memoryview:
    """Fill in the checksums of the records in a `frame_buffer`; return its bytes as a view."""
    checksums = map(google_crc32c.value, frames["record"])
    frames["check"] = _mask(np.fromiter(checksums, np.uint64, len(frames)))
    return frames.view(np.uint8).data


def write_frames(
    path: Path, frames: Iterable[bytes | memoryview], *, compression: Compression
) -> str:
    """Write framed records atomically as one TFRecord file; return its digest.

    The same records give the same bytes.
    """
    with (
        atomic_file(path) as temporary,
        HashingWriter(temporary) as file,
        io.BufferedWriter(file, 1 << 20) as raw,
    ):
        if compression == "gzip":
            # No name and no time in the header: the file depends on its records alone.
            with gzip.GzipFile("", "wb", fileobj=raw, compresslevel=6, mtime=0) as packed:
                packed.writelines(frames)
        else:
            raw.writelines(frames)
    return file.digest


def read_records(
    path: Path, *, compression: Compression, damaged: list[str] | None = None
) -> Iterator[bytes]:
    """Yield the records of one shard, checking every length and checksum.

    With a list for `damaged`, records that cannot be read are left out and described there, else
    CorruptShard is raised. No record after a broken length or gzip stream can be read.
    """

    def report(problem: str) -> None:
        if damaged is None:
            raise CorruptShard(f"{path}: {problem}; {rebuild_hint(path, 'shard')}")
        damaged.append(f"{path}: {problem}")

    opened: BinaryIO
    with gzip.open(path, "rb") if compression == "gzip" else path.open("rb") as opened:  # type: ignore[assignment]
        offset, number = 0, 0
        try:
            while head := opened.read(_HEAD.size):
                data, problem = _one_record(opened, head)
                if problem:
                    report(f"record {number} at byte {offset}: {problem}")
                if data is None:
                    return
                if not problem:
                    yield data
                offset += _HEAD.size + len(data) + _CRC.size
                number += 1
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            report(f"GZIP stream broken after {number} records ({error})")


def _one_record(file: BinaryIO, head: bytes) -> tuple[bytes | None, str]:
    """Return the record after `head`, None if reading must end there, and its damage or ""."""
    if problem := _head_problem(head):
        return None, problem
    length = _HEAD.unpack(head)[0]
    data, tail = file.read(length), file.read(_CRC.size)
    if len(data) < length or len(tail) < _CRC.size:
        return None, "the file ends within the record"
    return data, _data_problem(data, tail)


def _head_problem(head: bytes) -> str:
    if len(head) < _HEAD.size:
        return "the file ends within a record's header"
    length, length_crc = _HEAD.unpack(head)
    if _masked(head[:8]) != length_crc or length > _LARGEST:
        return "the length is too large or does not match its checksum"
    return ""


def _data_problem(data: bytes, tail: bytes) -> str:
    matches = _masked(data) == _CRC.unpack(tail)[0]
    return "" if matches else "the checksum of the data does not match"


def _masked(*parts: bytes) -> int:
    return _mask(reduce(google_crc32c.extend, parts, 0))


def _mask(crc: Any) -> Any:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def map_file(path: Path) -> mmap.mmap | bytes:
    """Map the bytes of a file without reading it; return b"" if it is empty."""
    with path.open("rb") as file, suppress(ValueError):  # of an empty file
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return b""


def find_edges(data: mmap.mmap | bytes) -> tuple[np.ndarray, str]:
    """Return the edges of the frames of an uncompressed TFRecord file, and its damage.

    Edges (records + 1,) int64 [bytes] are the starts of the frames and the end of the last one.
    Damage describes the problem after that, or is "". Only lengths and their checksums are read.
    """
    edges, at = [0], 0
    while at < len(data):
        head = data[at : at + _HEAD.size]
        problem = _head_problem(head)
        if not problem:
            at += _HEAD.size + _HEAD.unpack(head)[0] + _CRC.size
            problem = "" if at <= len(data) else "the file ends within the record"
        if problem:
            return np.asarray(edges), f"record {len(edges) - 1} at byte {edges[-1]}: {problem}"
        edges.append(at)
    return np.asarray(edges), ""


def read_frame(data: mmap.mmap | bytes, start: int, stop: int) -> tuple[bytes, str]:
    """Return the record in the frame data[start:stop], and its damage, empty if there is none."""
    record = data[start + _HEAD.size : stop - _CRC.size]
    head, tail = data[start : start + _HEAD.size], data[stop - _CRC.size : stop]
    if len(head) + len(tail) < _HEAD.size + _CRC.size or _HEAD.unpack(head)[0] != len(record):
        return record, "no record of this length begins there"
    return record, _data_problem(record, tail)


def record_offset(frame_start: int) -> int:
    return frame_start + _HEAD.size
