"""Where a server is configured, no other is started; test_flows.py has flows on a temporary one."""

from __future__ import annotations

import json
import os
import threading
import warnings
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import prefect
import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.logging import disable_run_logger
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    temporary_settings,
)

from flows.orchestration.artifacts import link_to_report
from flows.servers.credentials import exclusive, published_environment, use_running_servers
from flows.servers.services import HOST, find_free_port
from flows.servers.temporary_server import prefect_server
from tests.support.shared_servers import prefect_template
from throughline.shared.errors import ServiceFailed

NONE = {False: {PREFECT_API_URL}, True: set()}  # settings of the user's that are left out


class Api(BaseHTTPRequestHandler):
    """As much of Prefect's API as a client asks for first."""

    def do_GET(self):
        password = f"Basic {b64encode(b'me:right').decode()}"
        status = 401 if self.headers["Authorization"] != password else 200
        status = 404 if not self.path.startswith("/api/") else status
        self.send_response(status)
        self.end_headers()
        said = "Unauthorized" if status == 401 else prefect.__version__
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer((HOST, 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_a_configured_server_is_used_as_it_is(server):
    before = psutil.Process().children()
    url = f"http://{HOST}:{server.server_port}/api"
    settings = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: "me:right"}
    with temporary_settings(updates=settings), prefect_server():
        assert PREFECT_API_URL.value() == url
        assert psutil.Process().children() == before


@pytest.mark.parametrize(("path", "password"), [("", "right"), ("/api", "wrong")])
def test_what_answers_and_is_no_api_or_wants_another_password_is_named(server, path, password):
    url = f"http://{HOST}:{server.server_port}{path}"
    settings = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: f"me:{password}"}
    with (
        temporary_settings(settings),
        pytest.raises(ServiceFailed, match=r"does not answer as a Prefect server.*ends in /api"),
        prefect_server(),
    ):
        pytest.fail("the block was entered")


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


@pytest.mark.parametrize("named", [False, True], ids=["found", "sourced"])
def test_of_the_server_of_make_ui_no_variable_is_to_be_unset(tmp_path, monkeypatch, named):
    """It is not there for a moment, such as while it is started again."""
    url = f"http://{HOST}:{find_free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)  # goes with the test, whoever sets it
    if not named:
        monkeypatch.delenv("PREFECT_API_URL")
    with (
        temporary_settings({PREFECT_API_URL: url} if named else {}, restore_defaults=NONE[named]),
        exclusive(tmp_path),
        published_environment(tmp_path, {"PREFECT_API_URL": url}),
        use_running_servers(tmp_path) as running,
        pytest.raises(ServiceFailed, match="of `make ui` names") as failed,
        prefect_server(running),
    ):
        pytest.fail("the block was entered")
    assert url in str(failed.value) and "unset" not in str(failed.value)


@pytest.mark.slow
def test_a_temporary_server_that_is_killed_is_started_again(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    prefect_template.copy(tmp_path / "home", dict(os.environ))
    others = psutil.Process().children(recursive=True)
    with (
        temporary_settings({PREFECT_HOME: tmp_path / "home"}, restore_defaults={PREFECT_API_URL}),
        prefect_server(),
        get_client(sync_client=True) as client,
    ):
        client.hello()
        (first,) = [
            process
            for process in psutil.Process().children(recursive=True)
            if process not in others and process.cmdline()[1:3] == ["-m", "uvicorn"]
        ]
        first.kill()
        first.wait()
        client.hello()  # waits for the next one
        below = [one for one in psutil.Process().children(recursive=True) if one not in others]
    assert not psutil.wait_procs(below, timeout=20)[1]
    assert "restarting temporary-prefect-server" in capfd.readouterr().err


def test_a_server_that_goes_away_ends_a_run_as_such_and_not_for_want_of_a_bar(server, tmp_path):
    url = f"http://{HOST}:{server.server_port}/api"
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: "me:right"}),
        disable_run_logger(),
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # there is no run here
        pytest.raises(ServiceFailed, match="the same command goes on"),
        prefect_server(),
    ):
        server.shutdown()
        server.server_close()
        link_to_report(tmp_path)
        with get_client(sync_client=True) as client:
            client.hello()
