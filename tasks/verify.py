"""Compare everything that is read of data/shards/ and data/snapshot/ with the digests that were
taken when it was written.

Opening checks sizes and keys only; this reads every byte. Exit code 2 and a list of what is damaged
(file, record or rows), if anything is. Where the snapshot holds repaired shards, these are read
instead of the damaged ones.
"""

from __future__ import annotations

from throughline.config.cli import stage_cli
from throughline.data.columns.index import verify
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.shared.errors import CorruptShard
from throughline.shared.layout import Layout
from throughline.shared.progress import echo, progress


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
        problems = [
            problem
            for shard in progress(shards, total=len(shards), label="verify", unit="shards")
            for problem in stored.find_damage(shard)
        ]
        if problems:
            raise CorruptShard("\n".join(problems))
        for split in stored.snapshot.splits if stored.fetched else ():
            for column in stored.snapshot.columns:
                stored.memmap(split, column.name)
        verify(stored.columns_folder, stored.snapshot)
        if stored.fetched:
            stored.fetched.verify_regions()
        repaired = [shard.name for shard in shards if shard.repaired]
        if repaired:
            echo(f"verify: read repaired, in {stored.snapshot_folder}: {', '.join(repaired)}")
        splits, column = stored.snapshot.splits.values(), stored.input_column
        rows = sum(split.count for split in splits)
        values = sum(split.rows(column) for split in splits)
        part = "" if values == rows else f", {column.name} of {values:,},"
        echo(
            f"verify: {len(shards)} shards and {len(stored.snapshot.columns)} columns of {rows:,}"
            f" rows{part} OK: all digests match"
        )


if __name__ == "__main__":
    main()
