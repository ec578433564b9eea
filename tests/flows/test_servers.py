"""Servers that end are started again, configured ones are used as they are."""

import asyncio
import json
import os
import signal
import threading
import warnings
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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

from flows import ui
from flows.orchestration.artifacts import link_to_report
from flows.servers import services
from flows.servers.credentials import exclusive, published_environment, use_running_servers
from flows.servers.services import (
    HOST,
    MOST_RESTARTS,
    RESTARTS_WITHIN_S,
    STARTUP_TIMEOUT_S,
    ServerProcess,
    keep_running,
)
from flows.servers.temporary_server import prefect_server
from flows.servers.tracking_server import is_foreign, own_pages_only
from flows.ui import STORE, Endpoints, tracking_process
from tests.support.shared_servers import prefect_template
from tests.support.stack import wait_for
from throughline.shared.errors import ServiceFailed

GONE_S = 120  # by then a process that was to end has ended
API_USER = {PREFECT_API_AUTH_STRING: "me:right"}


def shell(name: str, script: str, *, folder: Path, healthy=lambda: True) -> ServerProcess:
    command = ["sh", "-c", f"cd {folder}; {script}"]
    return ServerProcess(name=name, command=command, healthy=healthy, environment={})


@pytest.mark.integration
def test_a_server_that_ends_is_started_again_a_few_times_with_the_reason(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(services, "monotonic", lambda: 0.0)
    server = shell("worker", "echo the reason; exit 3", folder=tmp_path)
    other = shell("mlflow", "exec sleep 600", folder=tmp_path)
    with (
        keep_running(other, server, logs=tmp_path) as look_after,
        pytest.raises(ServiceFailed, match="worker ended with exit code 3") as failed,
    ):
        wait_for(look_after)
    assert "the reason" in str(failed.value)
    assert (tmp_path / "worker.log").read_text() == "the reason\n" * (1 + MOST_RESTARTS)
    said = capsys.readouterr().err
    assert said.count("restarting worker") == MOST_RESTARTS == said.count("restarting ")
    assert "the reason" in said


@pytest.mark.slow
def test_a_server_that_is_never_healthy_again_is_not_waited_for_without_end(
    tmp_path, capsys, monkeypatch
):
    """Each wait is longer than the time within which so many restarts are too many."""
    monkeypatch.setattr(services, "monotonic", lambda: now)
    now, starts = 0.0, 0

    def healthy() -> bool:
        nonlocal now, starts
        now, starts = now + STARTUP_TIMEOUT_S + RESTARTS_WITHIN_S, starts + 1
        assert starts <= 1 + MOST_RESTARTS
        return starts == 1

    script = "test -e died && sleep 600; touch died; exit 3"
    server = shell("mlflow", script, folder=tmp_path, healthy=healthy)
    ended = pytest.raises(ServiceFailed, match="mlflow ended with exit code 3")
    with keep_running(server, logs=tmp_path) as look_after, ended:
        wait_for(look_after)
    said = capsys.readouterr().err
    assert said.count("restarting mlflow") == MOST_RESTARTS == said.count("was not healthy within")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_whatever_is_waited_for_and_later_ones_are_ignored(
    monkeypatch, number
):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(ui.time, "sleep", lambda _: None)
    try:
        ui.run_until_interrupted(lambda: signal.raise_signal(number))
        signal.raise_signal(number)  # of someone impatient
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_store_s_password_is_not_on_the_command_line_that_all_users_see():
    store = "postgresql://user:secret@host/mlflow"
    process = tracking_process(Endpoints(prefect_port=1, mlflow_port=2, store=store))
    assert not any("secret" in word for word in process.command)
    assert process.environment[STORE] == store


class Api(BaseHTTPRequestHandler):
    """As much of Prefect's API as a client asks for first."""

    def do_GET(self):
        password = f"Basic {b64encode(b'me:right').decode()}"
        status = 401 if self.headers["Authorization"] != password else 200
        self.send_response(status if self.path.startswith("/api/") else 404)
        self.end_headers()
        self.wfile.write(json.dumps(prefect.__version__).encode())

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer((HOST, 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_a_configured_server_is_used_as_it_is(server):
    before = psutil.Process().children()
    url = f"http://{HOST}:{server.server_port}/api"
    with temporary_settings({PREFECT_API_URL: url, **API_USER}), prefect_server():
        assert PREFECT_API_URL.value() == url
        assert psutil.Process().children() == before


@pytest.mark.parametrize(("path", "password"), [("", "right"), ("/api", "wrong")])
def test_what_answers_and_is_no_api_or_wants_another_password_is_named(server, path, password):
    url = f"http://{HOST}:{server.server_port}{path}"
    settings = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: f"me:{password}"}
    said = r"does not answer as a Prefect server does.*end in /api"
    with temporary_settings(settings), pytest.raises(ServiceFailed, match=said), prefect_server():
        pytest.fail("the block was entered")


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("the environment", r"of the environment \(.*: `unset PREFECT_API_URL`"),
        ("a profile", r"settings \(.*: `prefect config unset PREFECT_API_URL`"),
        ("make ui", r"of `make ui` \("),
        ("make ui, sourced", r"of `make ui` \("),
    ],
)
def test_a_server_that_is_gone_is_named_with_what_to_do(
    tmp_path, monkeypatch, absent_server, source, advice
):
    """That of `make ui` is not there for a moment, such as while it is started again."""
    url = f"{absent_server}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)  # goes with the test, whoever sets it
    if source in ("a profile", "make ui"):
        monkeypatch.delenv("PREFECT_API_URL")
    updates, left_out = {PREFECT_API_URL: url}, set()
    if source == "make ui":
        updates, left_out = {}, {PREFECT_API_URL}
    running = {"PREFECT_API_URL": url} if source.startswith("make ui") else {}
    with (
        temporary_settings(updates, restore_defaults=left_out),
        exclusive(tmp_path),
        published_environment(tmp_path, running),
        use_running_servers(tmp_path) as found,
        pytest.raises(ServiceFailed, match=advice) as failed,
        prefect_server(found),
    ):
        pytest.fail("the block was entered")
    assert url in str(failed.value)
    assert ("unset" in str(failed.value)) is not source.startswith("make ui")


@pytest.mark.slow
def test_a_temporary_server_that_is_killed_is_started_again(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    prefect_template.copy(tmp_path / "home", dict(os.environ))
    others = psutil.Process().children(recursive=True)

    def list_new() -> list[psutil.Process]:
        return [it for it in psutil.Process().children(recursive=True) if it not in others]

    with (
        temporary_settings({PREFECT_HOME: tmp_path / "home"}, restore_defaults={PREFECT_API_URL}),
        prefect_server(),
        get_client(sync_client=True) as client,
    ):
        client.hello()
        (first,) = [it for it in list_new() if it.cmdline()[1:3] == ["-m", "uvicorn"]]
        first.kill()
        first.wait()
        client.hello()  # waits for the next one
        below = list_new()
    assert not psutil.wait_procs(below, timeout=GONE_S)[1]
    assert "restarting temporary-prefect-server" in capfd.readouterr().err


@pytest.mark.slow
def test_a_server_that_goes_away_ends_a_run_as_such_and_not_for_want_of_a_bar(server, tmp_path):
    url, went_on = f"http://{HOST}:{server.server_port}/api", False
    with (
        temporary_settings({PREFECT_API_URL: url, **API_USER}),
        disable_run_logger(),
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # there is no run here
        pytest.raises(ServiceFailed, match="the same command continues"),
        prefect_server(),
    ):
        server.shutdown()
        server.server_close()
        link_to_report(tmp_path)
        went_on = True
        with get_client(sync_client=True) as client:
            client.hello()
    assert went_on


OWN_HOST = (b"host", b"127.0.0.1:5000")
OWN = {"origin": "http://127.0.0.1:5000"}


@pytest.mark.parametrize(
    ("headers", "foreign", "who"),
    [
        ({}, False, "a program"),
        (OWN | {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, False, "its own page"),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, False, "an address, typed"),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False, "a link, followed"),
        ({"origin": "http://localhost:5000"}, True, "another name of the machine"),
        ({"origin": "http://127.0.0.1:9999"}, True, "another port"),
        ({"origin": "null"}, True, "a sandboxed frame"),
        ({"origin": "http://evil.example/127.0.0.1:5000"}, True, "another site"),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, True, "its picture"),
        ({"Sec-Fetch-Site": "same-site", "sec-fetch-mode": "cors"}, True, "another port, unnamed"),
    ],
)
def test_requests_of_foreign_pages_are_told_apart(headers, foreign, who):
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert is_foreign([OWN_HOST, *sent]) is foreign, who


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [("http", ("status", 403)), ("websocket", ("code", 1008)), ("lifespan", None)],
)
def test_the_application_sees_none_of_them(kind, refusal):
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "headers": [OWN_HOST, (b"origin", b"http://evil.example")]}
    asyncio.run(own_pages_only(app)(scope, None, send))
    assert seen == ([] if refusal else [kind])
    assert bool(sent) is bool(refusal) and (not refusal or refusal in sent[0].items())
