"""The snapshot stage: run the deterministic preprocessing once, and store its results as columns
that can be memory-mapped (throughline/pipelines/write/snapshot.py).
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from tasks.earlier import check_identity, open_earlier
from tasks.own_code import find_needs
from throughline.config.cli import stage_cli
from throughline.data.columns.stored import Destination
from throughline.data.manifest import read_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.data.storage import Storage
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.data_constraints import (
    find_fraction_problems,
    find_ops_problems,
)
from throughline.plan.shapes import output_shape
from throughline.results.snapshot import SnapshotCost
from throughline.shared.engine import use_engine
from throughline.shared.errors import ImpossiblePlan, UserError
from throughline.shared.file_lock import hold_outputs
from throughline.shared.layout import Layout
from throughline.shared.object_store import open_store
from throughline.shared.progress import echo_result
from throughline.shared.scratch import Scratch


def _names(manifest: Path) -> Mapping[int, str]:
    """Return the examples' ids by key, used in messages only; empty without a manifest."""
    if not (manifest / "manifest.json").exists():
        return {}
    examples = read_manifest(manifest).examples
    return dict(zip(examples["key"].tolist(), examples["id"].tolist(), strict=True))


def main() -> None:
    """Preprocess all shards once, and write the results into data/snapshot/ or the object store."""
    with stage_cli(main) as params:
        check_identity()
        layout = Layout()
        shards = read_shard_index(layout.shards)
        files = ShardFiles(folder=layout.shards, storage=Storage.of(params.storage, layout))
        files.check(shards, sizes=params.snapshot.on_corrupt == "fail")
        # Refuse ops now that could not be computed, or whose results could not be batched later.
        schema, part = shards.schema, params.snapshot.stored_fraction
        unfit = [
            *find_ops_problems(
                schema.input.encoding,
                params.ops,
                predicts_number=schema.predicts_number,
                columns=schema.table_input is not None,
            ),
            *find_fraction_problems(part, schema.input.encoding),
        ]
        if unfit:
            raise ImpossiblePlan("; ".join(unfit))
        output_shape((*params.preprocess, *params.augment), schema)
        store = open_store(params.storage.url) if params.storage.url else None
        scratch = Scratch()
        earlier = open_earlier("snapshot", layout.root, scratch)
        known = None
        with suppress(UserError, OSError):
            known = SnapshotCost.read(earlier.snapshot.parent) if earlier else None
        started_at = time.perf_counter()
        with (
            hold_outputs(layout.snapshot.parent, "preparing data"),
            use_engine(**params.engine.model_dump()),
        ):
            written = write_snapshot(
                shards,
                files,
                Destination(
                    folder=layout.snapshot,
                    store=store,
                    earlier=earlier if known else None,
                    needs=find_needs(layout.root, "snapshot"),
                ),
                preprocess=params.preprocess,
                settings=params.snapshot,
                names=lambda: _names(layout.manifest),
            )
        seconds, index = time.perf_counter() - started_at, written.index
        examples = sum(split.count for split in index.splits.values())
        computed = examples - written.copied - written.resumed
        if known and written.copied:  # estimates the time of a fresh snapshot
            seconds = examples / known.examples_per_s
        elif computed:  # adds the interrupted run's time
            seconds += written.rows_s * written.resumed / computed
        size = sum(map(index.bytes, index.splits))
        read = sum(shard.bytes for shard in shards.shards)
        image, mean = index.columns[0], size / examples
        sizes = "×".join(str(length or "any") for length in image.shape)
        copied = f", {written.copied:,} of them copied" if written.copied else ""
        share = "" if part == 1 else f", the first {part:.0%} of each split stored"
        # A file of its own: later stages depend on the snapshot, not on the time that it took.
        SnapshotCost(
            seconds=seconds, examples_per_s=examples / seconds, bytes_per_example=mean
        ).write(layout.snapshot.parent)
        echo_result(
            f"{examples:,} examples of {np.dtype(image.dtype)} {sizes}{share}{copied},"
            f" {size / 2**20:,.1f} MiB, {size / max(1, read):.2f} × the shards,"
            f" {examples / seconds:,.0f} examples/s"
        )


if __name__ == "__main__":
    main()
