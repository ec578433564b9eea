"""Values of variable shape in one column: back to back in a file. Needs no TensorFlow.

A second column holds their extents, which say where each value begins, and its shape:

    data/snapshot/train/image.bin           values, each beginning at a multiple of 64 bytes,
                                            so that a slice of the file needs no copy
    data/snapshot/train/image.extent.bin    examples × (1 + rank), int64: where the value
                                            begins [elements], and its shape

A document's tokens have one dimension, and no gaps between documents, so that all of a split can be
read as one long document. The position of a value depends on all values before it. So each shard's
values are first written into a part of their own, and the parts are concatenated in order.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ALIGNMENT = 64  # bytes, as TensorFlow aligns its tensors
COPY_BYTES = 1 << 24


def compute_offsets(shapes: np.ndarray, itemsize: int) -> np.ndarray:
    """Return the extents of values that are stored back to back, (values, 1 + rank) int64.

    Extents are begin [elements] and shape; `shapes` is (values, rank).
    """
    aligned = _alignment(shapes.shape[1]) // itemsize or 1
    sizes = -(-shapes.prod(axis=1) // aligned) * aligned
    return np.column_stack([np.cumsum(sizes) - sizes, shapes]).astype(np.int64)


def end_offset(offsets: np.ndarray, itemsize: int) -> int:
    """Return the byte at which the next value would begin, after those with extents `offsets`."""
    if len(offsets) == 0:
        return 0
    size = int(offsets[-1, 0] + offsets[-1, 1:].prod()) * itemsize
    aligned = _alignment(offsets.shape[1] - 1)
    return -(-size // aligned) * aligned


def pack(values: Sequence[np.ndarray]) -> bytes:
    """Return the bytes of values of one dtype, each padded to its alignment."""
    return b"".join(
        value.tobytes() + bytes(-value.nbytes % _alignment(value.ndim)) for value in values
    )


def flatten_pixels(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return all pixels (pixels, channels) of images (height, width, channels) of variable size."""
    return np.concatenate([value.reshape(-1, value.shape[-1]) for value in values])


def concatenate_parts(parts: Sequence[Path], path: Path) -> None:
    """Write the parts into `path`, back to back; overwrite an existing file, and keep the parts."""
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                while os.sendfile(whole.fileno(), file.fileno(), None, COPY_BYTES):
                    pass
        os.fsync(whole.fileno())


def _alignment(rank: int) -> int:
    return 1 if rank == 1 else ALIGNMENT
