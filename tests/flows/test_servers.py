"""Servers that end are started again, configured ones are used as they are; the password of
`make ui`, and how flows of the same user find its servers.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
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
    PREFECT_UI_URL,
    temporary_settings,
)

from flows import ui
from flows.orchestration.artifacts import link_to_report
from flows.servers import credentials, services
from flows.servers.credentials import exclusive, find_running, published_environment
from flows.servers.services import HOST, MOST_RESTARTS, ServerProcess, keep_running
from flows.servers.temporary_server import prefect_server
from flows.servers.tracking_server import is_foreign, refuse_foreign_pages
from tests.support.shared_servers import prefect_template
from tests.support.skips import need
from tests.support.small_data import write_files
from tests.support.stack import wait_for
from throughline.shared.errors import ServiceFailed


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
        now, starts = now + services.STARTUP_TIMEOUT_S + services.RESTARTS_WITHIN_S, starts + 1
        assert starts <= 1 + MOST_RESTARTS
        return starts == 1

    script = "test -e died && sleep 600; touch died; exit 3"
    server = shell("mlflow", script, folder=tmp_path, healthy=healthy)
    ended = pytest.raises(ServiceFailed, match="mlflow ended with exit code 3")
    with keep_running(server, logs=tmp_path) as look_after, ended:
        wait_for(look_after)
    said = capsys.readouterr().err
    assert said.count("restarting mlflow") == MOST_RESTARTS == said.count("was not healthy within")


def test_the_first_signal_ends_whatever_is_waited_for_and_later_ones_are_ignored(monkeypatch):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(ui.time, "sleep", lambda _: None)
    try:
        for number in before:
            ui.run_until_interrupted(partial(signal.raise_signal, number))
            signal.raise_signal(number)  # of someone impatient
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


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


@pytest.mark.parametrize(
    ("path", "password", "refused"),
    [("/api", "right", False), ("", "right", True), ("/api", "wrong", True)],
)
def test_a_configured_server_is_used_as_it_is_unless_it_is_no_api_or_wants_another_password(
    server, path, password, refused
):
    before, url = psutil.Process().children(), f"http://{HOST}:{server.server_port}{path}"
    settings = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: f"me:{password}"}
    said = r"does not answer as a Prefect server does.*end in /api"
    outcome = pytest.raises(ServiceFailed, match=said) if refused else nullcontext()
    with temporary_settings(settings), outcome, prefect_server():
        assert not refused and PREFECT_API_URL.value() == url
        assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("variable", "of_ui", "advice"),
    [
        (True, False, r"the environment \(.*: `unset PREFECT_API_URL`"),
        (False, False, r"Prefect's settings \(.*: `prefect config unset PREFECT_API_URL`"),
        (True, True, r"`make ui` \("),  # which may be there again in a moment
    ],
)
def test_a_server_that_is_gone_is_named_with_what_to_do(
    monkeypatch, absent_server, variable, of_ui, advice
):
    url = f"{absent_server}/api"
    if variable:
        monkeypatch.setenv("PREFECT_API_URL", url)
    running = {"PREFECT_API_URL": url} if of_ui else {}
    refused = pytest.raises(ServiceFailed, match=f"{url}, the PREFECT_API_URL of {advice}")
    with temporary_settings({PREFECT_API_URL: url}), refused as failed, prefect_server(running):
        pytest.fail("the block was entered")
    assert ("unset" in str(failed.value)) is not of_ui


@pytest.mark.slow
def test_a_temporary_server_that_is_killed_is_started_again(tmp_path, capfd):
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
    assert not psutil.wait_procs(below, timeout=120)[1]
    assert "restarting temporary-prefect-server" in capfd.readouterr().err


@pytest.mark.slow
def test_a_server_that_goes_away_ends_a_run_as_such_and_not_for_want_of_a_bar(server, tmp_path):
    url, went_on = f"http://{HOST}:{server.server_port}/api", False
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: "me:right"}),
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
FROM = {
    "a program": ({}, False),
    "its own page": (OWN | {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, False),
    "a link": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
    "another port": ({"origin": "http://127.0.0.1:9999"}, True),
    "a sandboxed frame": ({"origin": "null"}, True),
    "another site": ({"origin": "http://evil.example/127.0.0.1:5000"}, True),
    "its picture": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, True),
    "a port, unnamed": ({"Sec-Fetch-Site": "same-site", "sec-fetch-mode": "cors"}, True),
}


@pytest.mark.parametrize(("headers", "foreign"), FROM.values(), ids=FROM)
def test_requests_of_foreign_pages_are_told_apart(headers, foreign):
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert is_foreign([OWN_HOST, *sent]) is foreign


@pytest.mark.parametrize(
    ("kind", "happens"),
    [("http", ("status", 403)), ("websocket", ("code", 1008)), ("lifespan", ("seen", True))],
)
def test_the_application_sees_none_of_them(kind, happens):
    happened = []

    async def app(scope, receive, send):
        happened.append({"seen": True})

    async def send(message):
        happened.append(message)

    scope = {"type": kind, "headers": [OWN_HOST, (b"origin", b"http://evil.example")]}
    asyncio.run(refuse_foreign_pages(app)(scope, None, send))
    assert happens in happened[0].items()
    assert ({"seen": True} in happened) is (kind == "lifespan")


RUNNING = {
    "PREFECT_API_URL": "http://127.0.0.1:4200/api",
    "PREFECT_API_AUTH_STRING": "throughline:secret",
    "PREFECT_UI_URL": "http://127.0.0.1:4200",
    "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000",
    "MLFLOW_TRACKING_PASSWORD": 'it\'s a "secret" $HOME',
}


@pytest.fixture(autouse=True)
def _no_servers_of_the_users(monkeypatch):
    for key in RUNNING:
        monkeypatch.setenv(key, "")  # so that what a test sets goes with the test
        monkeypatch.delenv(key)


def test_the_password_stays_is_its_owners_alone_and_both_servers_ask_clients_for_it(tmp_path):
    own, again = credentials.load_credentials(tmp_path), credentials.load_credentials(tmp_path)
    assert own.keys == again.keys and len(own.keys.password) == 32
    assert credentials.load_credentials(tmp_path / "other").keys != own.keys
    assert {path.stat().st_mode & 0o077 for path in (own.folder, *own.folder.iterdir())} == {0}
    assert own.folder == tmp_path / ".throughline" / "ui"
    asked = own.server["PREFECT_SERVER_API_AUTH_STRING"]
    assert asked == own.clients["PREFECT_API_AUTH_STRING"] == f"throughline:{own.keys.password}"
    for name, value in (("USERNAME", "throughline"), ("PASSWORD", own.keys.password)):
        asked = own.tracking[f"MLFLOW_AUTH_ADMIN_{name}"]
        assert asked == own.clients[f"MLFLOW_TRACKING_{name}"] == value


@pytest.mark.parametrize("content", ["{", "[]", '{"passwort": 1}'])
def test_a_damaged_password_is_drawn_again_and_mlflows_users_with_it(tmp_path, content):
    before = credentials.load_credentials(tmp_path)
    damaged = {"secrets.json": content, "mlflow-users.db": "users with the password of before"}
    write_files(before.folder, damaged)
    after = credentials.load_credentials(tmp_path)
    assert after.keys != before.keys and not (before.folder / "mlflow-users.db").exists()
    assert credentials.load_credentials(tmp_path).keys == after.keys


def test_running_servers_are_found_while_they_run_and_no_longer(tmp_path):
    assert find_running(tmp_path) == {}
    refused = pytest.raises(ServiceFailed, match="run already")
    with exclusive(tmp_path):
        assert find_running(tmp_path) == {}, "they are starting"
        with refused, exclusive(tmp_path):
            pytest.fail("they were started twice")
        with published_environment(tmp_path, RUNNING | {"PATH": "/x"}) as file:
            assert find_running(tmp_path) == RUNNING
            left = file.read_text()
            assert file.stat().st_mode & 0o777 == 0o600
        assert find_running(tmp_path) == {}
    file.write_text(left)
    assert find_running(tmp_path) == {}, "left by servers that were killed"
    with exclusive(tmp_path):
        assert find_running(tmp_path) == {}, "and of no use while others start"


def test_servers_of_another_user_are_not_trusted(tmp_path):
    need("root")
    with exclusive(tmp_path), published_environment(tmp_path, RUNNING) as file:
        os.chown(file, 65534, 65534)
        assert find_running(tmp_path) == {}


@pytest.mark.integration
def test_a_shell_reads_what_is_published_as_it_was_meant():
    command = f'{credentials.exports(RUNNING)}\nprintf %s "$MLFLOW_TRACKING_PASSWORD"'
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert said == RUNNING["MLFLOW_TRACKING_PASSWORD"]


def test_flows_join_the_running_servers_unless_the_user_has_named_some(tmp_path, monkeypatch):
    unset = {PREFECT_API_URL, PREFECT_API_AUTH_STRING, PREFECT_UI_URL}
    settings = temporary_settings(restore_defaults=unset)
    with settings, exclusive(tmp_path), published_environment(tmp_path, RUNNING):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
        with credentials.use_running_servers(tmp_path):
            assert PREFECT_API_URL.value() == RUNNING["PREFECT_API_URL"]
            assert os.environ["MLFLOW_TRACKING_URI"] == "http://elsewhere"
            assert "MLFLOW_TRACKING_PASSWORD" not in os.environ, "it is not for elsewhere"
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        elsewhere = temporary_settings({PREFECT_API_URL: "http://elsewhere/api"})
        with elsewhere, credentials.use_running_servers(tmp_path):
            assert PREFECT_API_URL.value() == "http://elsewhere/api"
            assert os.environ.pop("MLFLOW_TRACKING_URI") == RUNNING["MLFLOW_TRACKING_URI"]
        with credentials.use_running_servers(tmp_path):
            assert PREFECT_API_URL.value() == RUNNING["PREFECT_API_URL"]
            assert PREFECT_API_AUTH_STRING.value() == RUNNING["PREFECT_API_AUTH_STRING"]
            assert {key: os.environ[key] for key in RUNNING} == RUNNING


def test_runs_of_the_ui_keep_to_its_mlflow_and_its_page_s_words_are_explained(monkeypatch, capsys):
    store = "postgresql://user:secret@host/mlflow"
    endpoints = ui.Endpoints(prefect_port=1, mlflow_port=2, store=store)
    own = {"MLFLOW_TRACKING_URI": endpoints.mlflow, "MLFLOW_REGISTRY_URI": endpoints.mlflow}
    assert own.items() <= endpoints.environment.items()
    process = ui.tracking_process(endpoints)
    assert process.environment[ui.STORE] == store
    assert not any("secret" in word for word in process.command), "which all users see"
    for value, said in (("true", True), ("false", False)):
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", value)
        ui.print_urls(endpoints, 1)
        told = "usage data is collected; here that is switched off" in capsys.readouterr().out
        assert told is said


def test_databases_that_earlier_runs_left_readable_are_taken_from_others(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    for name in ("prefect", "mlartifacts", ".throughline/logs"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
    for name in ("mlflow.db", "mlflow.db-wal", "params.yaml"):
        (tmp_path / name).touch(mode=0o644)
    ui.take_from_others(tmp_path)
    ui.take_from_others(tmp_path / "empty")
    expected = dict.fromkeys(("prefect", "mlartifacts", ".throughline/logs"), 0o700)
    expected |= {"mlflow.db": 0o600, "params.yaml": 0o644}
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in expected} == expected
