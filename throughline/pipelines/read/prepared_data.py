"""Opens and checks the prepared data of an input pipeline: shards, snapshot, original files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from throughline.data.columns import ragged
from throughline.data.columns.fetching import FetchedColumns
from throughline.data.columns.index import (
    Column,
    SnapshotIndex,
    count_stored,
    holds_columns,
    map_column,
    read_index,
)
from throughline.data.manifest import read_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import Shard, ShardIndex, read_shard_index
from throughline.data.splits import shard_order
from throughline.data.storage import Storage
from throughline.plan.ops import DataFacts, Op
from throughline.plan.shapes import resolve_decode
from throughline.plan.steps import TokenWindow, Window
from throughline.settings import Sampling
from throughline.shared.errors import CorruptColumn, ImpossiblePlan, StaleSnapshot, did_you_mean
from throughline.shared.files import digest_json
from throughline.shared.libraries import installed_versions


@dataclass(frozen=True, kw_only=True)
class FileList:
    """Image files in the order of the shards; `columns` are (files, columns) float32."""

    paths: tuple[str, ...]
    labels: tuple[float | tuple[float, ...], ...]
    keys: tuple[int, ...]
    columns: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """The shards, the snapshot and, on demand, the original files of a dataset.

    `storage` holds shards that are not local; `fetched` are columns that are in an object store.
    """

    shards_folder: Path
    shards: ShardIndex
    snapshot_folder: Path
    snapshot: SnapshotIndex
    preprocess: tuple[Op, ...]
    files: Callable[[str], FileList]
    storage: Storage | None = None
    fetched: FetchedColumns | None = None

    @property
    def shard_files(self) -> ShardFiles:
        return ShardFiles(
            folder=self.shards_folder, snapshot_folder=self.snapshot_folder, storage=self.storage
        )

    @property
    def columns_folder(self) -> Path:
        return self.fetched.folder if self.fetched else self.snapshot_folder

    def for_rows(self, rows: tuple[int, int]) -> PreparedData:
        """Return the data for a reader of rows [first, stop) only: no others are fetched."""
        fetched = replace(self.fetched, rows=rows) if self.fetched else None
        return replace(self, fetched=fetched)

    def find_damage(self, shard: Shard) -> list[str]:
        """List the problems of a shard's bytes, with a remedy; empty for an intact shard."""
        problems = self.shard_files.find_damage(shard)
        return [*problems, self.shard_files.fix_hint(shard)] if problems else []

    def column(self, name: str) -> Column:
        return next(column for column in self.snapshot.columns if column.name == name)

    @property
    def input_column(self) -> Column:
        return self.column(self.shards.schema.input.name)

    def memmap(self, split: str, name: str, *, rows: int | None = None) -> np.ndarray:
        """Memory-map the values of the first `rows` of a column, or of all that it stores.

        Columns in an object store are fetched first.
        """
        column = self.column(name)
        if self.fetched:
            self.fetched.fetch(split, column)
        stored = self.snapshot.splits[split].rows(column)
        values = map_column(self.columns_folder, split, column, stored)
        if rows is None or not column.ragged:
            return values[:rows]
        extents = self.memmap(split, column.extent.name, rows=rows)
        return values[: ragged.end_offset(extents, values.itemsize) // values.itemsize]

    def stored_fraction(self, split: str) -> float:
        rows = self.snapshot.splits[split]
        return rows.rows(self.input_column) / rows.count if rows.count else 1.0

    def find_rows(self, split: str, fraction: float) -> int:
        """Return the number of rows, from the first on, that make up this fraction of a split.

        Raises:
          StaleSnapshot: The snapshot stores the model's input for fewer rows.
        """
        rows = self.snapshot.splits[split]
        wanted, stored = count_stored(rows.count, fraction), rows.rows(self.input_column)
        if wanted > stored:
            raise StaleSnapshot(
                f"{self.snapshot_folder} stores {stored:,} of the {wanted:,} rows of the {split}"
                " split that are to be read; run `dvc repro snapshot`"
            )
        return wanted

    def tokens(self, split: str) -> int:
        column = self.input_column
        return self.snapshot.splits[split].bytes(column) // np.dtype(column.dtype).itemsize

    def count_examples(self, split: str, window: Window | TokenWindow | None) -> int:
        """Count the examples of a split: rows, or windows of its time steps or tokens."""
        if window is None:
            return self.shards.examples(split)
        if isinstance(window, TokenWindow):
            return window.count(self.tokens(split))
        return window.count(split, self.shards.examples(split))

    def bind_to_data(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """Return ops completed with statistics, classes, categories and the stored tokenizer."""
        categories = tuple(len(names) for names in self.shards.schema.input.columns.categories)
        statistics = self.snapshot.statistics
        numeric = len(statistics.mean) - len(categories)
        facts = DataFacts(
            mean=(*statistics.mean[:numeric], *(0.0 for _ in categories)),
            deviation=(*statistics.deviation[:numeric], *(1.0 for _ in categories)),
            classes=len(self.shards.classes),
            categories=categories,
            snapshot=self.snapshot_folder,
        )
        return tuple(op.bind(facts) for op in ops)


def open_prepared_data(
    *,
    manifest: Path,
    shards: Path,
    snapshot: Path,
    preprocess: Sequence[Op],
    storage: Storage | None = None,
) -> PreparedData:
    """Open the data of earlier stages, and check that its parts belong together.

    Shards and columns that are not in their folders are fetched from `storage` when first read.

    Raises:
      MissingInput, CorruptShard, CorruptColumn: Something is missing or damaged.
      StaleSnapshot: The snapshot was made from other shards, or by other ops, code or versions.
    """
    index = read_shard_index(shards)
    fetches = storage is not None and not holds_columns(snapshot)
    key = compute_snapshot_key(index, preprocess)
    written = read_index(snapshot, key=key, with_columns=not fetches)
    whole, fetched = index.with_repaired(written.repaired), None
    if storage is not None and fetches:
        fetched = FetchedColumns(
            storage=storage, snapshot_folder=snapshot, index=written, shards=whole
        )
    data = PreparedData(
        shards_folder=shards,
        shards=whole,
        snapshot_folder=snapshot,
        snapshot=written,
        preprocess=tuple(preprocess),
        files=lambda split: list_files(
            manifest, split, among=data.memmap(split, "key") if written.repaired else None
        ),
        storage=storage,
        fetched=fetched,
    )
    data.shard_files.check(data.shards)
    return data


def compute_snapshot_key(shards: ShardIndex, preprocess: Sequence[Op]) -> str:
    """Return the digest of the shards' contents, the ops' identities and library versions."""
    ops = resolve_decode(preprocess, shards.schema)
    libraries = sorted({"tensorflow", *(name for op in ops for name in op.libraries)})
    return digest_json(
        {
            "shards": shards.digest,
            "ops": [op.identity for op in ops],
            "libraries": installed_versions(libraries),
        }
    )


def list_files(manifest_folder: Path, split: str, *, among: np.ndarray | None = None) -> FileList:
    """List a split's image files in the order of the shards; with `among`, only of these keys."""
    manifest = read_manifest(manifest_folder)
    rows = manifest.for_split(split)
    rows = rows.iloc[shard_order(rows)]
    rows = rows if among is None else rows[rows["key"].isin(among)]
    columns = manifest.columns
    return FileList(
        paths=tuple(rows["uri"]),
        labels=tuple(rows["label"].tolist()),
        keys=tuple(rows["key"].tolist()),
        columns=None if columns is None else columns[rows.index.to_numpy()],
    )


def read_labels_and_weights(
    sampling: Sampling, data: PreparedData, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return each example's class, (examples,) int64, and each class's weight, (classes,) float64.

    Raises:
      ImpossiblePlan: A weight is for an unknown class, all are 0, or a drawn class has no example.
      CorruptColumn: A label is no class.
    """
    classes = data.shards.classes
    labels = np.asarray(data.memmap(split, "label"))
    weight_of = sampling if isinstance(sampling, dict) else {}
    for name in weight_of:
        if name not in classes:
            raise ImpossiblePlan(
                f"sampling: {name} is not a class; {did_you_mean(name, list(classes))}"
            )
    weights = np.asarray([weight_of.get(name, 1.0) for name in classes], np.float64)
    if not weights.any():
        raise ImpossiblePlan("sampling: all classes have weight 0; give one a larger weight")
    counts = np.bincount(labels, minlength=len(classes))
    if len(counts) > len(classes):
        raise CorruptColumn(
            f"{data.snapshot_folder} has the class {len(counts) - 1} of {len(classes)}; find the"
            " damage with `python -m tasks.verify`"
        )
    missing = [classes[number] for number in np.flatnonzero((weights > 0) & (counts == 0))]
    if missing:
        raise ImpossiblePlan(
            f"sampling: the {split} split has no example of {', '.join(missing)}; give such classes"
            " weight 0, or add examples to the data"
        )
    return labels, weights
