"""Snapshots in small chunks, whole or in part, also in many small objects of a store."""

import itertools
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.object_stores import Proxy
from tests.support.small_pipelines import PREPROCESS, open_snapshot
from tests.support.stack import wait_for
from throughline.data.columns import fetching, stored
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.settings import SnapshotSettings
from throughline.shared.object_store import open_store

CHUNK_BYTES, RANGE_BYTES = 1_200, 400  # so that small data make many chunks and objects


def use_small_pieces(patched):
    patched.setattr(snapshot_writer, "ROWS_BYTES", CHUNK_BYTES)
    patched.setattr(stored, "OBJECT_BYTES", RANGE_BYTES)
    patched.setattr(fetching, "RANGE_BYTES", RANGE_BYTES)


def write(folder: Path, out: Path, url: str = "", *, kind: str = "arrays", fraction: float = 1.0):
    """The snapshot of prepared data, in a folder or with its columns in a store."""
    shards = folder / "shards"
    destination = Destination(folder=out, store=open_store(url) if url else None)
    options = {"preprocess": PREPROCESS[kind], "settings": SnapshotSettings(fraction=fraction)}
    write_snapshot(read_shard_index(shards), ShardFiles(folder=shards), destination, **options)


def open_stored(
    folder: Path, out: Path, url: str, cache: Path, *, kind: str = "arrays"
) -> PreparedData:
    return open_snapshot(folder, out, kind, storage=Storage(url=url, cache=cache))


def fetch_all(data: PreparedData) -> dict[str, bytes]:
    """The bytes of all columns, by split and name."""
    return {
        f"{split}/{column.name}": np.asarray(data.memmap(split, column.name)).tobytes()
        for split in data.snapshot.splits
        for column in data.snapshot.columns
    }


def _in_small_pieces(work: Callable, arguments: tuple[object, ...]) -> None:
    use_small_pieces(pytest.MonkeyPatch())
    work(*arguments)


def kill_at(
    proxy: Proxy, request: tuple[str, str, int], work: Callable, arguments: tuple[object, ...]
) -> None:
    """Do work in a process that is killed at its n-th request of a kind, before the answer."""
    wanted, part, number = request
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_in_small_pieces, args=(work, arguments))
    begun, counted = [], itertools.count(1)

    def kill(method: str, path: str) -> None:
        begun.append(path)
        if method == wanted and part in path and next(counted) == number:
            process.kill()

    proxy.requests.clear()
    proxy.fault = kill
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    wait_for(lambda: len(proxy.requests) == len(begun))  # what was under way arrives
    proxy.fault = lambda method, path: None
