"""What the tests of training share: a small dataset, sharded and with a snapshot."""

from __future__ import annotations

import pytest
from project import SMALL

from tasks.data.shards import read_shard_index
from tasks.layout import Layout
from tasks.params import check
from tasks.snapshot import snapshot


@pytest.fixture(scope="session")
def layout(arrays):
    snapshot(
        read_shard_index(arrays / "shards"),
        arrays / "shards",
        arrays / "snapshot",
        preprocess=check(SMALL).preprocess,
    )
    root = arrays.parent / "resume"
    root.mkdir(exist_ok=True)
    (root / "data").symlink_to(arrays)
    return Layout(root)
