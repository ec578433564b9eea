"""The kinds of input that `data.source` can name, with the facts needed before reading.

A kind is a line here and, unless its files are in class folders, a function in `SCANNERS` of
`throughline/data/sources/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of input.

    Attributes:
      encoding: Name of the examples' encoding.
      auto_model: What `model.name: auto` means, if not the first model that fits.
      in_table: A table or JSON lines hold labels, and perhaps columns that the model also sees.
      label_kind: `data.label_kind` applies.
      in_bucket: How a bucket is read: objects one by one, a temporary copy, or not at all.
    """

    encoding: str
    auto_model: str = ""
    in_table: bool = False
    label_kind: bool = False
    in_bucket: Literal["objects", "copy", ""] = "copy"


DELIMITED = frozenset({".csv", ".tsv", ".psv"})  # suffixes of tables as text
TABLES = DELIMITED | {".parquet"}
SOURCES: Mapping[str, SourceKind] = {
    "fashion_mnist": SourceKind(encoding="pixels", auto_model="mlp"),  # 28×28, one channel
    "arrays": SourceKind(encoding="pixels", label_kind=True),
    "image_folder": SourceKind(encoding="image", in_bucket="objects"),
    "image_table": SourceKind(encoding="image", in_table=True, label_kind=True, in_bucket=""),
    "table": SourceKind(encoding="numbers", in_table=True, label_kind=True),
    # Their records decide: numbers, or images in shards, instead of pixels.
    "tfds": SourceKind(encoding="pixels", label_kind=True),
    "tfrecord": SourceKind(encoding="pixels", label_kind=True),
    "text_folder": SourceKind(encoding="text", in_bucket="objects"),
    "text_lines": SourceKind(encoding="text", in_table=True, label_kind=True),
    "text_table": SourceKind(encoding="text", in_table=True, label_kind=True),
    "time_series": SourceKind(encoding="series"),
}
