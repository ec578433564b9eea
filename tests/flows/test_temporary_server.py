"""Where a server is configured, no other is started; test_flows.py has flows on a temporary one."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.orchestration.artifacts import link_to_report
from flows.servers.services import HOST, find_free_port
from flows.servers.temporary_server import prefect_server
from throughline.shared.errors import ServiceFailed


def test_a_configured_server_is_used_as_it_is():
    before = psutil.Process().children()
    # Whatever it answers, here that it knows no GET.
    with HTTPServer((HOST, 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://{HOST}:{server.server_port}/api"
        with temporary_settings(updates={PREFECT_API_URL: url}), prefect_server():
            assert PREFECT_API_URL.value() == url
            assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("by_environment", "advice"),
    [(True, "`unset PREFECT_API_URL`"), (False, "`prefect config unset PREFECT_API_URL`")],
)
def test_a_configured_server_that_is_gone_is_named_with_what_to_do(
    monkeypatch, by_environment, advice
):
    url = f"http://{HOST}:{find_free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    if not by_environment:
        monkeypatch.delenv("PREFECT_API_URL")
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(ServiceFailed) as failed,
        prefect_server(),
    ):
        pytest.fail("the block was entered")
    assert url in str(failed.value) and advice in str(failed.value)


def test_a_server_that_goes_away_ends_a_run_as_such_and_not_for_want_of_a_bar(tmp_path):
    with HTTPServer((HOST, 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://{HOST}:{server.server_port}/api"
        with (
            temporary_settings({PREFECT_API_URL: url}),
            disable_run_logger(),
            pytest.raises(ServiceFailed, match="the same command goes on"),
            prefect_server(),
        ):
            server.server_close()
            link_to_report(tmp_path)
            with get_client(sync_client=True) as client:
                client.hello()
