"""Fashion-MNIST as published: four gzipped IDX files, 60,000 training and 10,000 test images."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.found import Arrays
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
PARTS = {"train": "train", "test": "t10k"}
# SHA-256 of the published labels, by their number.
LABELS = {
    60_000: "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    10_000: "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
}


def scan(settings: DataSettings) -> Arrays:
    folder = Path(settings.path)
    images, labels, ids, splits = [], [], [], []
    for split, prefix in PARTS.items():
        pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", dimensions=3)
        classes = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", dimensions=1)
        if len(pixels) != len(classes):
            raise UnreadableSource(
                f"{folder}: {len(pixels)} {split} images but {len(classes)} labels",
                "get the published files again",
            )
        _refuse_others(classes, folder)
        images.append(pixels[..., None])
        labels += [CLASSES[number] for number in classes]
        ids += [f"{split}/{number:05d}" for number in range(len(classes))]
        splits += ["test" if split == "test" else None] * len(classes)
    values = np.concatenate(images)
    schema = labeled(pixels_feature(values.shape[1:]))
    return Arrays(
        values=values, labels=labels, ids=ids, splits=splits, classes=CLASSES, schema=schema
    )


def _refuse_others(labels: np.ndarray, folder: Path) -> None:
    """Refuse labels of other images that are published in the same format, such as MNIST's."""
    published = LABELS.get(len(labels), digest := hashlib.sha256(labels.tobytes()).hexdigest())
    if digest != published or labels.max(initial=0) >= len(CLASSES):
        raise UnreadableSource(
            f"{folder}: these labels are not those of Fashion-MNIST, but perhaps MNIST's",
            "save x_train, y_train, x_test and y_test with numpy.savez for data.source: arrays",
        )


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes with the given number of dimensions."""
    if not path.exists():
        raise DataNotFound(
            f"{path} is missing; set `data.fetch: fashion_mnist` and data.path to"
            " data/raw/fashion_mnist to download it, or data.path to a folder of your own, outside"
            " of data/raw, with the four published files"
        )
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableSource(
            f"{path} is not a complete GZIP file ({error}); delete it and run `dvc repro fetch`, or"
            " get the published file again"
        ) from error
    again, header = "get the published file again", 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise UnreadableSource(
            f"{path} is not an IDX file of unsigned bytes with {dimensions} dimensions", again
        )
    values = np.frombuffer(content, np.uint8, offset=header)
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(values) != int(np.prod(shape)):
        raise UnreadableSource(
            f"{path} holds {len(values)} values, but its header says {shape}", again
        )
    return values.reshape(shape)
