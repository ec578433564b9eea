"""The kinds of input that `data.source` can name, with what the rest of the program must know of
each before anything is read.

A kind is a line here and, unless it is a folder of files, a function among the `SCANNERS` in
`throughline/data/sources/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """How the examples are encoded, by the encoding's name, and the model that `auto` stands for,
    where it is not the first that fits. Whether labels, and perhaps columns that the model sees,
    are `in_table`; whether `label_kind` says what labels are. How it is read from a bucket: object
    by object, or from a copy that is made for as long as ingest reads it, or not at all.
    """

    encoding: str
    auto_model: str = ""
    in_table: bool = False
    label_kind: bool = False
    in_bucket: Literal["objects", "copy", ""] = "copy"


SOURCES: Mapping[str, SourceKind] = {
    "fashion_mnist": SourceKind(encoding="pixels", auto_model="mlp"),  # 28×28, of one channel
    "arrays": SourceKind(encoding="pixels", label_kind=True),
    "image_folder": SourceKind(encoding="image", in_bucket="objects"),
    "image_table": SourceKind(encoding="image", in_table=True, label_kind=True, in_bucket=""),
    "table": SourceKind(encoding="numbers", in_table=True, label_kind=True),
    # Or numbers, or images in shards: their records say.
    "tfds": SourceKind(encoding="pixels", label_kind=True),
    "tfrecord": SourceKind(encoding="pixels", label_kind=True),
    "text_folder": SourceKind(encoding="text", in_bucket="objects"),
    "text_lines": SourceKind(encoding="text", in_table=True, label_kind=True),
    "text_table": SourceKind(encoding="text", in_table=True, label_kind=True),
    "time_series": SourceKind(encoding="series"),
}
