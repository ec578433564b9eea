"""Data through ingest, shards and snapshot in the process of a test, and links to them."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.small_data import prepared
from throughline.config.params import Params
from throughline.data.columns.index import SnapshotIndex
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import ShardIndex, read_shard_index
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import Op
from throughline.settings import SnapshotSettings
from throughline.shared.layout import Layout


def prepare(params: Params, layout: Layout, *, min_shards: int = 2) -> Layout:
    """Ingest, shards and snapshot of the parameters' data."""
    prepared(params.data, layout.root / "data", min_shards=min_shards)
    take_snapshot(params, layout)
    return layout


def snapshot(
    shards: ShardIndex,
    shards_folder: Path,
    out: Path,
    *,
    preprocess: Sequence[Op],
    settings: SnapshotSettings | None = None,
) -> SnapshotIndex:
    """Write a snapshot of shards that are files."""
    files, destination = ShardFiles(folder=shards_folder), Destination(folder=out)
    options = {"preprocess": preprocess, "settings": settings}
    return write_snapshot(shards, files, destination, **options).index


def take_snapshot(params: Params, layout: Layout) -> SnapshotIndex:
    """Write the snapshot of what the parameters preprocess."""
    options = {"preprocess": params.preprocess, "settings": params.snapshot}
    return snapshot(read_shard_index(layout.shards), layout.shards, layout.snapshot, **options)


def link_data(data: Path, root: Path, *, snapshot: bool = True) -> Layout:
    """A project with links to manifest and shards of a folder, and to its snapshot or none."""
    (root / "data").mkdir(parents=True, exist_ok=True)
    for part in ("manifest", "shards", *(["snapshot"] if snapshot else [])):
        (root / "data" / part).symlink_to((data / part).resolve())
    return Layout(root)
