"""The kinds of input that `data.source` can name, with what the rest of the program must know of
each before anything is read.

A kind is a line here and, unless it is a folder of files, a function among the `SCANNERS` in
`throughline/data/sources/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """How the examples are encoded, by the encoding's name, and the model that `auto` stands for,
    where it is not the first that fits.
    """

    encoding: str
    auto_model: str = ""


SOURCES: Mapping[str, SourceKind] = {
    "fashion_mnist": SourceKind(encoding="pixels", auto_model="mlp"),  # 28×28, of one channel
    "arrays": SourceKind(encoding="pixels"),
    "image_folder": SourceKind(encoding="image"),
    "image_table": SourceKind(encoding="image"),
    "table": SourceKind(encoding="numbers"),
    "tfds": SourceKind(encoding="pixels"),  # or numbers, or images in shards: their records say
    "tfrecord": SourceKind(encoding="pixels"),
    "text_folder": SourceKind(encoding="text"),
    "text_lines": SourceKind(encoding="text"),
    "text_table": SourceKind(encoding="text"),
    "time_series": SourceKind(encoding="series"),
}
