"""Snapshots that tests share, in small chunks, whole or in part."""

import functools
from collections.abc import Callable

import pytest

from tests.support.small_pipelines import prepare_snapshot
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.write import snapshot_writer


@pytest.fixture(scope="session")
def snapshot_of(arrays, photos, tmp_path_factory) -> Callable[..., PreparedData]:
    """A function that opens a kind's snapshot of a fraction of the rows, in small chunks."""

    @functools.cache
    def make(kind: str, fraction: float = 1.0) -> PreparedData:
        folder = tmp_path_factory.mktemp(f"{kind}-{fraction}") / "snapshot"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot_writer, "ROWS_BYTES", 5000)
            prepared = arrays if kind == "arrays" else photos
            return prepare_snapshot(prepared, folder, kind, fraction=fraction)

    return make
