"""Compare everything in data/shards/ and data/snapshot/ with the digests that were taken when it was written.

Opening checks sizes and keys only; this reads every byte. Exit code 2 and a list of what is damaged (file, record or rows),
if anything is.
"""

from __future__ import annotations

from tasks.data.columns import read_index, verify
from tasks.data.shards import damage, read_shard_index
from tasks.errors import CorruptShard, made_anew
from tasks.progress import progress, say
from tasks.stage import Layout, door


def main() -> None:
    """Check shards and snapshot byte by byte."""
    with door(main):
        layout = Layout()
        index = read_shard_index(layout.shards)
        shards = progress(index.shards, total=len(index.shards), label="verify", unit="shards")
        problems = [problem for shard in shards for problem in damage(layout.shards / shard.name, shard)]
        if problems:
            raise CorruptShard("\n".join([*problems, made_anew(layout.shards, "shard")]))
        snapshot = read_index(layout.snapshot)
        verify(layout.snapshot, snapshot)
        rows = sum(split.count for split in snapshot.splits.values())
        say(f"verify: {len(index.shards)} shards and {len(snapshot.columns)} columns of {rows:,} rows are as they were written")


if __name__ == "__main__":
    main()
