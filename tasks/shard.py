"""The shard stage: write the examples of the manifest into TFRecord shards
(throughline/data/shards/writing.py).
"""

import time

from tasks.earlier import check_identity, open_earlier
from throughline.config.cli import stage_cli
from throughline.data.known_files import open_known_files
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.data.storage import Storage
from throughline.shared.engine import use_engine
from throughline.shared.file_lock import hold_outputs
from throughline.shared.layout import Layout
from throughline.shared.progress import echo_result
from throughline.shared.scratch import Scratch


def main() -> None:
    """Write the examples of data/manifest/ into TFRecord files, in data/shards/ or in the store."""
    with stage_cli(main) as params:
        check_identity()
        layout = Layout()
        manifest = read_manifest(layout.manifest)
        scratch = Scratch()
        earlier = open_earlier("shard", layout.root, scratch)
        started_at = time.perf_counter()
        with (
            hold_outputs(layout.shards.parent, "preparing data"),
            use_engine(**params.engine.model_dump()),
            open_known_files(manifest, params.data, layout.inspections) as is_known,
        ):
            index = shard(
                manifest,
                layout.shards,
                settings=params.shard,
                earlier=earlier.shards if earlier else None,
                is_known=is_known,
                storage=Storage.of(params.storage, layout),
            )
        seconds = time.perf_counter() - started_at
        examples = sum(map(index.examples, index.splits))
        size = sum(item.bytes for item in index.shards) / 2**20
        what = "time steps" if index.schema.is_series else "examples"
        rate = f"{examples / seconds:,.0f} {what}/s"
        shards = f"{len(index.shards)} shard{'s' if len(index.shards) != 1 else ''}"
        echo_result(f"{examples:,} {what} in {shards}, {size:,.1f} MiB, {rate}")


if __name__ == "__main__":
    main()
