"""Compare everything that is read of data/shards/ and data/snapshot/ with the digests that were taken when it was written.

Opening checks sizes and keys only; this reads every byte. Exit code 2 and a list of what is damaged (file, record or rows),
if anything is. Where the snapshot holds mended shards, these are read instead of the damaged ones.
"""

from __future__ import annotations

from tasks.cli import door
from tasks.data.columns import verify
from tasks.errors import CorruptShard
from tasks.layout import Layout
from tasks.pipelines.stored import open_stored
from tasks.progress import progress, say


def main() -> None:
    """Check shards and snapshot byte by byte."""
    with door(main) as params:
        layout = Layout()
        stored = open_stored(manifest=layout.manifest, shards=layout.shards, snapshot=layout.snapshot, preprocess=params.preprocess)
        shards = stored.shards.shards
        problems = [problem for shard in progress(shards, total=len(shards), label="verify", unit="shards") for problem in stored.damage(shard)]
        if problems:
            raise CorruptShard("\n".join(problems))
        verify(stored.snapshot_folder, stored.snapshot)
        mended = [shard.name for shard in shards if shard.mended]
        if mended:
            say(f"verify: read mended, in {stored.snapshot_folder}: {', '.join(mended)}")
        rows = sum(split.count for split in stored.snapshot.splits.values())
        say(f"verify: {len(shards)} shards and {len(stored.snapshot.columns)} columns of {rows:,} rows are as they were written")


if __name__ == "__main__":
    main()
