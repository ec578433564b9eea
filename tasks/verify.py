"""Compare all files that are read from data/shards/ and data/snapshot/, and columns in an object
store, with the digests that were taken when they were written.

Opening checks sizes and keys only; this reads every byte. If anything is damaged, lists it (file,
record or rows) and exits with code 2. If the snapshot holds repaired shards, these are read instead
of the damaged ones.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from throughline.config.cli import stage_cli
from throughline.data.columns.index import Column, verify
from throughline.data.shards.files import REPAIRED
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import PreparedData, open_prepared_data
from throughline.shared.errors import CorruptColumn, CorruptShard, ObjectStoreFailed
from throughline.shared.layout import Layout
from throughline.shared.progress import echo, progress


def find_damaged_shards(stored: PreparedData) -> Iterator[CorruptShard]:
    """Yield an error for each problem of the shards, and after a shard's errors the remedy."""
    shards = stored.shards.shards
    for shard in progress(shards, total=len(shards), label="verify", unit="shards"):
        yield from map(CorruptShard, stored.find_damage(shard))


def find_damaged_columns(stored: PreparedData) -> Iterator[CorruptColumn | ObjectStoreFailed]:
    """Yield an error for each damaged column of the snapshot, fetching those in an object store."""
    snapshot = stored.snapshot

    def check(split: str, column: Column) -> None:
        if stored.fetched:
            stored.memmap(split, column.name)
        alone = replace(snapshot, splits={split: snapshot.splits[split]}, columns=(column,))
        verify(stored.columns_folder, alone)

    pairs = itertools.product(snapshot.splits, snapshot.columns)
    checks: list[Callable[[], None]] = [partial(check, *pair) for pair in pairs]
    checks += [stored.fetched.verify_regions] if stored.fetched else []
    for each in checks:
        try:
            each()
        except (CorruptColumn, ObjectStoreFailed) as error:
            yield error
            if isinstance(error, ObjectStoreFailed):  # it would fail each check, a minute later
                return


def main() -> None:
    """Check shards and snapshot byte by byte."""
    with stage_cli(main, of_runs=True) as params:
        layout = Layout()
        stored = open_prepared_data(
            manifest=layout.manifest,
            shards=layout.shards,
            snapshot=layout.snapshot,
            preprocess=params.preprocess,
            storage=Storage.of(params.storage, layout),
        )
        shards = stored.shards.shards
        damage = [*find_damaged_shards(stored), *find_damaged_columns(stored)]
        if damage:
            raise type(damage[0])("\n".join(map(str, damage)))
        if repaired := [shard.name for shard in shards if shard.repaired]:
            folder = stored.snapshot_folder / REPAIRED
            echo(f"verify: repaired shards are in {folder}: {', '.join(repaired)}")
        splits, column = stored.snapshot.splits.values(), stored.input_column
        rows = sum(split.count for split in splits)
        values = sum(split.rows(column) for split in splits)
        part = "" if values == rows else f" ({values:,} of {column.name})"
        echo(
            f"verify: {len(shards)} shards and {len(stored.snapshot.columns)} columns of {rows:,}"
            f" rows{part} OK: all digests match"
        )


if __name__ == "__main__":
    main()
