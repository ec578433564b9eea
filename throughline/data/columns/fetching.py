"""Fetches a snapshot's columns from an object store into a local folder, to be mapped.

A column is fetched into `COLUMN.bin.partial`, and renamed when each of its chunks has matched its
digest: a file named `COLUMN.bin` has all requested rows; missing rows would read as 0. A file
whose length has changed is fetched again. If a host reads only some rows, as with a shuffle of
lanes, only the objects with these are fetched, into a folder named by the rows. An interrupted
fetch is continued: objects whose chunks match their digests are not fetched again.
"""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from throughline.data.columns.index import INDEX, Column, SnapshotIndex, column_path
from throughline.data.columns.stored import ColumnObject, check_stored_index, list_objects
from throughline.data.object_folder import RANGE_BYTES, READERS, write_at
from throughline.data.shards.index import ShardIndex
from throughline.data.storage import (
    Storage,
    has_size,
    hold_fetch,
    name_unfinished,
    open_unfinished,
)
from throughline.shared.errors import CorruptColumn, ObjectStoreFailed
from throughline.shared.files import digest_file
from throughline.shared.object_store import RETRIES, ObjectStore, open_store
from throughline.shared.progress import echo_fact, in_threads, progress

_REGION = re.compile(r"rows-(\d+)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class FetchedColumns:
    """The columns of one snapshot in an object store; `rows` [first, stop) are fetched, None: all.

    Several threads and processes may use this at once, even on several hosts that share the folder.
    """

    storage: Storage
    snapshot_folder: Path
    index: SnapshotIndex
    shards: ShardIndex
    rows: tuple[int, int] | None = None

    @cached_property
    def folder(self) -> Path:
        """The folder of fetched columns; each index, and each range of rows, has its own."""
        if self.rows:
            return self._whole.folder / f"rows-{self.rows[0]}-{self.rows[1]}"
        digest = digest_file(self.snapshot_folder / INDEX)
        return self.storage.cache / f"{self.index.key}-{digest}"

    @cached_property
    def _whole(self) -> FetchedColumns:
        return replace(self, rows=None)

    @cached_property
    def store(self) -> ObjectStore:
        """The store, after a check that it holds this snapshot."""
        store = open_store(self.storage.url)
        check_stored_index(store, self.index.key, self.snapshot_folder)
        return store

    def fetch(self, split: str, column: Column) -> None:
        """Fetch the requested rows of a column, unless they are in the folder already.

        For a ragged column, the extents of all rows are fetched, too. Raises ObjectStoreFailed for
        missing or damaged objects, StaleSnapshot for another snapshot's store, and DiskRefused.
        """
        path, size = self._path(split, column), self.index.splits[split].bytes(column)
        if size == 0 or has_size(path, size):
            return
        if column.ragged:
            self._whole.fetch(split, column.extent)
        with hold_fetch(path, f"{split}/{column.name}"):
            if has_size(path, size):
                return
            path.unlink(missing_ok=True)
            whole = self._whole._path(split, column)
            for link in (path.hardlink_to, path.symlink_to) if has_size(whole, size) else ():
                with suppress(OSError):
                    link(whole.resolve())
                    return
            self._fetch_into(path, split, column, size)

    def verify_regions(self) -> None:
        """Check the columns of which only some rows were fetched; raise CorruptColumn."""
        for folder in sorted(self._whole.folder.glob("rows-*-*")):
            if not (found := _REGION.fullmatch(folder.name)):
                continue
            region = replace(self, rows=(int(found[1]), int(found[2])))
            for split, column in itertools.product(self.index.splits, self.index.columns):
                if region._path(split, column).exists():
                    region._compare(split, column)

    def _compare(self, split: str, column: Column) -> None:
        path = self._path(split, column)
        with path.open("rb") as file:
            for one in self._list_objects(split, column):
                data = memoryview(os.pread(file.fileno(), one.bytes, one.begin))
                if wrong := one.find_wrong_chunk(data):
                    raise CorruptColumn(
                        f"{path} does not match its digest ({one.describe(wrong)}); delete it to"
                        " fetch it again"
                    )

    def _path(self, split: str, column: Column) -> Path:
        return column_path(self.folder, split, column.name)

    def _fetch_into(self, path: Path, split: str, column: Column, size: int) -> None:
        objects, count = self._list_objects(split, column), self.index.splits[split].count
        first, stop = self.rows or (0, count)
        size_mib = sum(one.bytes for one in objects) / 2**20
        echo_fact(
            f"{split}/{column.name}: rows {first:,} to {stop - 1:,} of {count:,},"
            f" {size_mib:,.1f} MiB, from {self.store.url}"
        )
        resumes = has_size(name_unfinished(path), size)
        begin, end = (objects[0].begin, objects[-1].end) if objects else (0, 0)

        def fetch_object(one: ColumnObject) -> None:
            there = memoryview(os.pread(descriptor, one.bytes, one.begin) if resumes else b"")
            if len(there) != one.bytes or one.find_wrong_chunk(there):
                write_at(descriptor, fetch_checked(self.store, one), one.begin)

        with open_unfinished(path, size, begin=begin, end=end) as descriptor:
            fetched = in_threads(fetch_object, objects, workers=READERS)
            for _ in progress(fetched, total=len(objects), label=f"fetch {split}", unit="objects"):
                pass

    def _list_objects(self, split: str, column: Column) -> list[ColumnObject]:
        found = list_objects(self.index, self.shards, split, column, self._whole.folder)
        first, stop = self.rows or (0, self.index.splits[split].count)
        return [one for one in found if one.rows.start < stop and first < one.rows.stop]


def fetch_checked(store: ObjectStore, one: ColumnObject) -> memoryview:
    """Return the bytes of an object; fetch it again if they do not match its digests.

    Raises ObjectStoreFailed, which names object and rows, if it is missing, or damaged each time.
    """
    for _ in range(1 + RETRIES):
        data = memoryview(bytearray(one.bytes))
        with one.naming_rows():
            for start in range(0, one.bytes, RANGE_BYTES):
                length = min(RANGE_BYTES, one.bytes - start)
                data[start : start + length] = store.read_range(
                    one.name, start=start, length=length
                )
        if not (wrong := one.find_wrong_chunk(data)):
            return data
    raise ObjectStoreFailed(
        f"{store.address(one.name)} does not match its digest, even after {RETRIES} more"
        f" fetches ({one.describe(wrong)}); remove the object and run `dvc repro --force snapshot`,"
        " which puts it there again"
    )
