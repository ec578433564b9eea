"""Commands of the local stack refuse what cannot work before they start or change anything."""

from __future__ import annotations

import socket

import psutil
import pytest

from infra.local.__main__ import input_service, stores
from infra.local.stack_config import load_stack
from throughline.shared.errors import ServiceFailed


@pytest.mark.parametrize("option", ["postgres-port", "s3-port"])
def test_a_port_that_is_taken_is_named_with_its_option(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {option.replace("-", "_"): taken.getsockname()[1]}
        opened = load_stack(tmp_path / "stack", **ports)
        with (
            pytest.raises(ServiceFailed, match=f"is taken, .* choose another with --{option}"),
            stores(opened),
        ):
            pytest.fail("the stores were started")


def test_without_workers_there_is_no_service_of_tf_data(tmp_path):
    opened = load_stack(tmp_path / "stack")
    before = psutil.Process().children()
    with input_service(opened, 0):
        assert psutil.Process().children() == before
