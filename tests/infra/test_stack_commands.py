"""Commands of the local stack refuse what cannot work before they start or change anything."""

from __future__ import annotations

import socket

import psutil
import pytest

from infra.local import clusters
from infra.local.__main__ import stores
from infra.local.clusters import dask_cluster, input_service
from infra.local.stack_config import load_stack
from throughline.shared.errors import ServiceFailed


@pytest.mark.parametrize(
    ("option", "above"), [("postgres-port", 0), ("s3-port", 0), ("s3-port", 10_003)]
)
def test_a_port_that_is_taken_is_named_with_its_option(tmp_path, option, above):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {option.replace("-", "_"): taken.getsockname()[1] - above}
        refused = pytest.raises(ServiceFailed, match=f"is taken, .* another with --{option}")
        with refused, stores(load_stack(tmp_path / "stack", **ports)):
            pytest.fail("the stores were started")


@pytest.mark.parametrize("start", [input_service, dask_cluster])
def test_without_workers_or_dask_nothing_is_started(tmp_path, monkeypatch, start):
    opened = load_stack(tmp_path / "stack")
    before = psutil.Process().children()
    with start(opened, 0):
        assert psutil.Process().children() == before
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    if start is dask_cluster:
        with pytest.raises(ServiceFailed, match="Dask is not installed"), start(opened, 1):
            pytest.fail("a cluster was started")
