"""TFRecord files: framing, writing, reading back and naming their damage. No TensorFlow.

A record is framed as length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the
data, little-endian. Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import gzip
import io
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import BinaryIO, Literal

import google_crc32c
import numpy as np

from throughline.shared.errors import CorruptShard, rebuild_hint
from throughline.shared.files import HashingWriter, atomic_file

Compression = Literal["none", "gzip"]
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_LARGEST = 1 << 31


def shard_name(split: str, index: int, count: int, compression: Compression) -> str:
    """File name of one shard, in the form that TFDS and most readers expect, e.g.
    `train-00003-of-00016.tfrecord`.
    """
    return f"{split}-{index:05d}-of-{count:05d}.tfrecord" + (".gz" if compression == "gzip" else "")


def frame(*parts: bytes) -> tuple[bytes, ...]:
    """Frame one record, given in parts, for a TFRecord file; large parts are not copied."""
    length = sum(map(len, parts)).to_bytes(8, "little")
    return length + _CRC.pack(_masked(length)), *parts, _CRC.pack(_masked(*parts))


def frame_buffer(count: int, size: int) -> np.ndarray:
    """Reusable buffer for framed records of one size: (count,) with the fields head, record (size,)
    uint8 and check.
    """
    frames = np.empty(
        count,
        np.dtype([("head", np.void, _HEAD.size), ("record", np.uint8, (size,)), ("check", "<u4")]),
    )
    frames["head"] = np.void(frame(bytes(size))[0])
    return frames


def seal_frames(frames: np.ndarray) -> memoryview:
    """Fill in the checksums of the records in a `frame_buffer` in place; returns its bytes as a
    view.
    """
    whole = np.dtype(
        [
            ("head", np.void, _HEAD.size),
            ("record", np.void, frames["record"].shape[1]),
            ("check", "<u4"),
        ]
    )
    checksums = np.fromiter(
        map(google_crc32c.value, frames.view(whole)["record"].tolist()), np.uint32, len(frames)
    )
    frames["check"] = ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + np.uint32(
        0xA282EAD8
    )
    return frames.view(np.uint8).data


def write_frames(
    path: Path, frames: Iterable[bytes | memoryview], *, compression: Compression
) -> str:
    """Write framed records as one TFRecord file, atomically, and return its digest. The same
    records give the same bytes.
    """
    with (
        atomic_file(path) as temporary,
        HashingWriter(temporary) as file,
        io.BufferedWriter(file, 1 << 20) as raw,
    ):
        if compression == "gzip":
            # No name and no time in the header: the file is a pure function of its records.
            with gzip.GzipFile(
                filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0
            ) as packed:
                packed.writelines(frames)
        else:
            raw.writelines(frames)
    return file.digest


def read_records(
    path: Path, *, compression: Compression, damaged: list[str] | None = None
) -> Iterator[bytes]:
    """Yield the records of one shard, checking every length and checksum.

    With a list for `damaged`, records that cannot be read are left out and named there; after a
    broken length or the end of a stream nothing more can be found in the file.

    Raises:
      CorruptShard: names the file, the offset and the number of the first damaged record, unless
        `damaged` takes it.
    """
    opened: BinaryIO
    with gzip.open(path, "rb") if compression == "gzip" else path.open("rb") as opened:  # type: ignore[assignment]
        offset, number = 0, 0
        try:
            while head := opened.read(_HEAD.size):
                data, problem = _one_record(opened, head)
                if problem and damaged is None:
                    raise CorruptShard(
                        f"{path}: record {number} at byte {offset}: {problem};"
                        f" {rebuild_hint(path, 'shard')}"
                    )
                if problem and damaged is not None:
                    damaged.append(f"{path}: record {number} at byte {offset}: {problem}")
                if data is None:
                    return
                if not problem:
                    yield data
                offset += _HEAD.size + len(data) + _CRC.size
                number += 1
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if damaged is None:
                raise CorruptShard(
                    f"{path}: GZIP stream broken after record {number} ({error});"
                    f" {rebuild_hint(path, 'shard')}"
                ) from error
            damaged.append(f"{path}: GZIP stream broken after record {number} ({error})")


def _one_record(file: BinaryIO, head: bytes) -> tuple[bytes | None, str]:
    """The data of the record that begins with `head`, and what is wrong with it; no data where the
    file cannot be read on.
    """
    problem = _head_problem(head)
    if problem:
        return None, problem
    length = _HEAD.unpack(head)[0]
    data, tail = file.read(length), file.read(_CRC.size)
    if len(data) < length or len(tail) < _CRC.size:
        return None, "the file ends within the record"
    return data, _data_problem(data, tail)


def _head_problem(head: bytes) -> str:
    """What is wrong with the length of a record and its checksum."""
    if len(head) < _HEAD.size:
        return "the file ends within a record's header"
    length, length_crc = _HEAD.unpack(head)
    if _masked(head[:8]) != length_crc or length > _LARGEST:
        return "the checksum of the length does not match"
    return ""


def _data_problem(data: bytes, tail: bytes) -> str:
    """What is wrong with a record whose checksum is `tail`."""
    matches = _masked(data) == _CRC.unpack(tail)[0]
    return "" if matches else "the checksum of the data does not match"


def _masked(*parts: bytes) -> int:
    crc = reduce(google_crc32c.extend, parts, 0)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def map_file(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file, mapped and not read; those of an empty one are none."""
    with path.open("rb") as file:
        empty = os.fstat(file.fileno()).st_size == 0
        return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def find_edges(data: mmap.mmap | bytes) -> tuple[np.ndarray, str]:
    """Where the frames of an uncompressed TFRecord file begin, then where the last one ends:
    (records + 1,) int64 bytes; and what is wrong after that, empty if nothing.

    Only lengths and their checksums are read, so that of a large file only few pages are.
    """
    edges, at, end = [0], 0, len(data)
    while at < end:
        head = data[at : at + _HEAD.size]
        problem = _head_problem(head)
        if not problem:
            at += _HEAD.size + _HEAD.unpack(head)[0] + _CRC.size
            problem = "" if at <= end else "the file ends within the record"
        if problem:
            return np.asarray(edges), f"record {len(edges) - 1} at byte {edges[-1]}: {problem}"
        edges.append(at)
    return np.asarray(edges), ""


def read_frame(data: mmap.mmap | bytes, start: int, stop: int) -> tuple[bytes, str]:
    """The record in the frame data[start:stop], and what is wrong with it, empty if nothing."""
    record = data[start + _HEAD.size : stop - _CRC.size]
    head, tail = data[start : start + _HEAD.size], data[stop - _CRC.size : stop]
    if len(head) + len(tail) < _HEAD.size + _CRC.size or _HEAD.unpack(head)[0] != len(record):
        return record, "no record of this length begins there"
    return record, _data_problem(record, tail)


def record_offset(frame_start: int) -> int:
    """Where the record begins in its file, of a frame that begins at `frame_start`."""
    return frame_start + _HEAD.size
