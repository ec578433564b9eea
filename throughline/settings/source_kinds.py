"""The kinds of input that `data.source` can name, with what the rest of the program must know of
each before anything is read.

A kind is a line here and the file of its name in `throughline/data/sources/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """What examples are, whether each is an image file of its own (for `read: files`), and the
    model that `auto` stands for, where it is not the first that fits the content.
    """

    content: Literal["images", "text", "table", "time series"] = "images"
    has_files: bool = False
    auto_model: str = ""


SOURCES: Mapping[str, SourceKind] = {
    "fashion_mnist": SourceKind(auto_model="mlp"),  # 28×28, of one channel
    "arrays": SourceKind(),
    "image_folder": SourceKind(has_files=True),
    "image_table": SourceKind(has_files=True),
    "table": SourceKind(content="table"),
    "tfds": SourceKind(),
    "tfrecord": SourceKind(),
    "text_folder": SourceKind(content="text"),
    "text_lines": SourceKind(content="text"),
    "text_table": SourceKind(content="text"),
    "time_series": SourceKind(content="time series"),
}
