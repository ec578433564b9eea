"""The manifest of a dataset: its usable examples, classes, rejected examples and digest.

Its folder holds `examples.parquet`, `rejected.csv`, `values.npy` (arrays and series),
`documents.bin` (texts), `images.bin` (images in a column of a table), `columns.npy` (table inputs),
`converted/` (if files had to be converted), the data at a glance, and `manifest.json`, which is
written last: its presence means that the manifest is complete.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from throughline.data import encodings  # noqa: F401 - schemas name them
from throughline.plan.schema import Schema, TableColumns
from throughline.results.base import parse, to_json
from throughline.shared.errors import MissingInput, expect_current_schema
from throughline.shared.files import digest_blake2b, read_json, write_json

SPLITS = ("train", "validation", "test")
EXAMPLES, VALUES, TABLE_INPUT = "examples.parquet", "values.npy", "columns.npy"
DOCUMENTS, IMAGES = "documents.bin", "images.bin"
COLUMNS = ("id", "key", "uri", "row", "label", "bytes", "digest", "split")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All usable examples of a dataset.

    `examples` is ordered by id and has the columns id (str), key (int; unique), uri (str; empty for
    arrays, texts and series), row (int), label (int class, float, or a tuple of floats), bytes
    (int), digest (str) and split (str). `row` is the index into the values, or the first byte of a
    document or of an image in a file of many; it is -1 for a whole file. In a series, a row is a
    block of time steps: `row` and `key` are its first step, and `label` is the number of steps.
    """

    examples: pd.DataFrame
    classes: tuple[str, ...]
    schema: Schema
    rejected: pd.DataFrame
    stats: dict[str, Any]
    folder: Path

    def for_split(self, split: str) -> pd.DataFrame:
        return pd.DataFrame(self.examples[self.examples["split"] == split])

    @cached_property
    def columns(self) -> np.ndarray | None:
        """The table input (examples, columns) float32, memory-mapped; None if there is none."""
        if self.schema.table_input is None:
            return None
        shape = (len(self.examples), *self.schema.table_input.shape)
        with expect_current_schema(self.folder / TABLE_INPUT):
            values = np.load(self.folder / TABLE_INPUT, mmap_mode="r", allow_pickle=False)
            if values.shape != shape:
                raise ValueError(f"shape {values.shape}, but manifest.json says {shape}")
        return values

    @property
    def cuts(self) -> tuple[int, ...]:
        """The time steps of a series before which others are missing."""
        return tuple(self.stats.get("cuts", ()))

    @cached_property
    def digest(self) -> str:
        """Digest of ids, contents, labels, classes, splits, gaps (`cuts`) and column codes.

        Two datasets with the same digest train the same model.
        """
        contents = [
            "\n".join(map(str, self.examples[name].tolist()))
            for name in ("id", "digest", "label", "split")
        ]
        contents.append("\n".join(self.classes))
        columns = self.schema.columns
        if columns.names:
            # Digests of rows depend on neither the order of columns nor the codes of categories.
            contents.append(json.dumps([columns.names, columns.categories]))
        if self.columns is not None:
            contents.append("\n".join(digest_rows(self.columns, columns)))
        if self.cuts:
            contents.append("\n".join(map(str, self.cuts)))
        return digest_blake2b(*(content.encode() for content in contents))


def digest_rows(values: np.ndarray, columns: TableColumns) -> list[str]:
    """Return the digest of each row of `values` (rows, ...).

    If columns have names, their order and the codes of categories do not affect digests.
    """
    names: list[bytes] = []
    if values.dtype.kind == "f":
        values = values + values.dtype.type(0)  # -0.0 is the same number as 0.0
    if columns.names:
        order = sorted(range(len(columns.names)), key=columns.names.__getitem__)
        names = [json.dumps([columns.names[place] for place in order]).encode()]
        parts = [_column_bytes(values[..., place], columns, place) for place in order]
        values = np.concatenate(parts, axis=-1)
    contents = values.reshape(len(values), -1).view(np.uint8)
    return [digest_blake2b(*names, row.tobytes()) for row in contents]


def _column_bytes(column: np.ndarray, columns: TableColumns, place: int) -> np.ndarray:
    """Return bytes of numbers, or digests of categories' words, as (rows, ..., bytes) uint8."""
    if place < columns.numeric:
        return np.ascontiguousarray(column)[..., None].view(np.uint8)
    return _digest_words(columns.categories[place - columns.numeric])[column.astype(np.int64)]


@lru_cache(maxsize=256)  # rows come in blocks, and a vocabulary may be long
def _digest_words(words: tuple[str, ...]) -> np.ndarray:
    digests = bytes.fromhex("".join(digest_blake2b(word.encode()) for word in words))
    return np.frombuffer(digests, np.uint8).reshape(len(words), -1)


def write_manifest(manifest: Manifest) -> None:
    """Write a manifest into its folder; `manifest.json` comes last."""
    folder = manifest.folder
    manifest.examples.to_parquet(folder / EXAMPLES, index=False)
    manifest.rejected.to_csv(folder / "rejected.csv", index=False)
    summary = {
        "digest": manifest.digest,
        "classes": manifest.classes,
        "schema": to_json(manifest.schema),
        "stats": manifest.stats,
    }
    write_json(folder / "manifest.json", summary)


def read_manifest(folder: Path) -> Manifest:
    """Read a complete manifest.

    Raises:
      MissingInput: ingest has not finished, a file is missing, or another version wrote it.
      DamagedFile: a file of the manifest is empty, cut off or of another manifest; names it.
    """
    if not (folder / "manifest.json").exists():
        raise MissingInput(f"{folder} holds no complete manifest; run `dvc repro ingest`")
    with expect_current_schema(folder / "manifest.json"):
        summary = read_json(folder / "manifest.json")
        stats, schema, classes = (
            summary["stats"],
            parse(Schema, summary["schema"]),
            tuple(summary["classes"]),
        )
        count, rejects = sum(stats["examples"].values()), stats["rejected"]
    examples = _read_table(folder / EXAMPLES, COLUMNS, rows=count)
    if schema.target and schema.target.shape:
        examples["label"] = [tuple(numbers.tolist()) for numbers in examples["label"]]
    return Manifest(
        examples=examples,
        classes=classes,
        schema=schema,
        rejected=_read_table(folder / "rejected.csv", ("id", "reason"), rows=rejects),
        stats=stats,
        folder=folder,
    )


def _read_table(path: Path, columns: Sequence[str], *, rows: int) -> pd.DataFrame:
    with expect_current_schema(path):
        table = (
            pd.read_parquet(path)
            if path.suffix == ".parquet"
            else pd.read_csv(path, dtype=str, keep_default_na=False)
        )
        if len(table) != rows:
            raise ValueError(f"{len(table)} rows, but manifest.json says {rows}")
        return pd.DataFrame(table[list(columns)])


def map_documents(folder: Path) -> np.ndarray:
    """Memory-map the documents of a manifest of texts, (bytes,) uint8."""
    with expect_current_schema(folder / DOCUMENTS):
        return np.memmap(folder / DOCUMENTS, np.uint8, mode="r")


def map_values(folder: Path) -> np.ndarray:
    """Memory-map the values of all examples of a manifest of arrays or of a series."""
    with expect_current_schema(folder / VALUES):
        return np.load(folder / VALUES, mmap_mode="r", allow_pickle=False)
