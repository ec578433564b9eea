"""Snapshots that tests share: in small chunks, whole or in part, and in an object store."""

import functools
import secrets
from collections.abc import Callable

import pytest

from tests.support.object_stores import BUCKET
from tests.support.small_pipelines import prepare_snapshot
from tests.support.stored_snapshots import open_stored, use_small_pieces, write
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


@pytest.fixture
def small_pieces(monkeypatch):
    use_small_pieces(monkeypatch)


@pytest.fixture(scope="session")
def arrays_in_store(arrays, tmp_path_factory, store_variables):
    """Folder and URL of the arrays' snapshot in a store; to read, not to change."""
    folder = tmp_path_factory.mktemp("put") / "snapshot"
    url = f"s3://{BUCKET}/{secrets.token_hex(8)}"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in store_variables.items():
            patched.setenv(name, value)
        use_small_pieces(patched)
        write(arrays, folder, url)
    return folder, url


@pytest.fixture
def put(arrays, arrays_in_store, tmp_path, object_store, small_pieces):
    """A function that opens this snapshot with a cache folder."""
    return lambda cache="cache": open_stored(arrays, *arrays_in_store, tmp_path / cache)
