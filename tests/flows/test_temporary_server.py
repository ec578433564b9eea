"""Where a server is configured, no other is started; test_flows.py has flows on a temporary one."""

from __future__ import annotations

import psutil
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.servers.temporary_server import prefect_server


def test_a_configured_server_is_used_as_it_is():
    before = psutil.Process().children()
    url = "http://127.0.0.1:9/api"  # nothing listens there, and nothing asks
    with temporary_settings(updates={PREFECT_API_URL: url}), prefect_server():
        assert PREFECT_API_URL.value() == url
        assert psutil.Process().children() == before
