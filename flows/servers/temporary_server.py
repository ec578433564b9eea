"""A Prefect server for one command if none is configured; it ends with the command.

The server that Prefect itself would start stays forever if the command is killed.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import prefect
import requests
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_UI_URL,
    get_current_settings,
    temporary_settings,
)

from flows.run.locks import STATE_DIR
from flows.servers.credentials import USER, random_secret
from flows.servers.services import (
    HOST,
    ServerProcess,
    is_connection_error,
    keep_running,
    reserved_port,
    responds,
)
from throughline.shared.errors import ServiceFailed
from throughline.shared.file_lock import hold
from throughline.shared.progress import note

LOOK_AFTER_S = 0.5
DRAIN_TIMEOUT_S = 5.0
REACH_TIMEOUT_S = 10.0


@contextmanager
def prefect_server(running: Mapping[str, str] | None = None) -> Iterator[None]:
    """Provide a server for flows in the block: the configured one, or a temporary one.

    `running` are clients' variables for the project's `make ui`, if it runs. ServiceFailed if the
    server does not start or answer, refuses the password, or goes away.
    """
    try:
        configured = PREFECT_API_URL.value()
        if configured:
            of_ui = (running or {}).get(PREFECT_API_URL.name) == configured
            check_reachable(configured, of_ui=of_ui)
        with nullcontext() if configured else _temporary_server():
            yield
    except Exception as error:
        if not is_connection_error(error):
            raise
        raise ServiceFailed(
            f"Prefect's server is away or cannot answer ({type(error).__name__}: {error})."
            " Finished stages are kept; the same command continues from there"
        ) from error


@contextmanager
def _temporary_server() -> Iterator[None]:
    password = f"{USER}:{random_secret()}"  # other users of the machine reach the port, too
    with reserved_port() as port, ExitStack() as server:
        # One start at a time: the first ever makes the tables, and two at once would fail.
        lock = PREFECT_HOME.value() / "throughline.lock"
        with hold(lock, "a start of Prefect's server", lambda who: None):
            try:
                server.enter_context(start_server(port, password))
            except ServiceFailed as failure:
                raise ServiceFailed(
                    "Prefect's temporary server does not start. If its database in"
                    f" {PREFECT_HOME.value()} is the cause, `export"
                    " PREFECT_HOME=$PWD/.throughline/prefect` gives this project one of its"
                    f" own. {failure}"
                ) from failure
        own = {PREFECT_API_URL: f"http://{HOST}:{port}/api", PREFECT_API_AUTH_STRING: password}
        # The server has no UI, so the log links to no page.
        server.enter_context(temporary_settings({**own, PREFECT_UI_URL: ""}))
        try:
            yield
        finally:
            # Let Prefect's threads send their last logs and events while the server runs.
            for worker in (APILogWorker, EventsWorker):
                worker.drain_all(timeout=DRAIN_TIMEOUT_S)


def check_reachable(api: str, *, of_ui: bool = False) -> None:
    """Raise ServiceFailed if Prefect does not answer at an address, or refuses the password."""
    unset, source = "prefect config unset", "Prefect's settings"
    if "PREFECT_API_URL" in os.environ:
        unset, source = "unset", "the environment"
    advice = f"start it, or let the run start its own: `{unset} PREFECT_API_URL`"
    if of_ui:
        source, log = "`make ui`", f"{STATE_DIR}/logs/prefect-server.log"
        advice = f"it may be restarting; see {log}. If `make ui` ends, a run starts its own server"
    where = f"{api}, the PREFECT_API_URL of {source}"
    try:
        requests.get(f"{api}/health", timeout=REACH_TIMEOUT_S)
    except requests.exceptions.SSLError:
        pass  # the server is there; Prefect may know its certificate
    except requests.RequestException as error:
        kind = type(error).__name__
        raise ServiceFailed(f"no Prefect server answers at {where} ({kind}): {advice}") from None
    try:
        with get_client(sync_client=True) as client:
            client.raise_for_api_version_mismatch_once()  # with the password, as every flow
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ServiceFailed(
            f"{where}, does not answer as a Prefect server does ({reason}): the address must end in"
            " /api, and if the server has a password, set PREFECT_API_AUTH_STRING to USER:PASSWORD"
        ) from error


@contextmanager
def start_server(port: int, password: str) -> Iterator[None]:
    """Run a Prefect server without UI on a local port, with its database in PREFECT_HOME.

    A server that ends too early is restarted, and clients wait; ServiceFailed if it does not start.
    """
    ended = threading.Event()
    folder = str(Path(prefect.__file__).parents[1])
    server = ServerProcess(
        name="temporary-prefect-server",
        command=[
            *(sys.executable, "-m", "uvicorn", "--app-dir", folder, "--factory"),
            "prefect.server.api.server:create_app",
            *("--host", HOST, "--port", str(port), "--log-level", "error", "--lifespan", "on"),
        ],
        healthy=lambda: ended.is_set() or responds(f"http://{HOST}:{port}/api/health"),
        environment={
            **get_current_settings().to_environment_variables(exclude_unset=True),
            "PREFECT_UI_ENABLED": "0",
            "PREFECT_SERVER_API_AUTH_STRING": password,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{port}",
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT__SERVER_FINAL": "1",
        },
    )
    with keep_running(server, logs=PREFECT_HOME.value()) as look_after:

        def look_after_it() -> None:
            try:
                while not ended.wait(LOOK_AFTER_S):
                    look_after()
            except Exception as failure:  # noqa: BLE001 - the run's next calls say that it is away
                note(f"Prefect's temporary server is not started again: {failure}")

        thread = threading.Thread(target=look_after_it, daemon=True)
        try:
            thread.start()
            yield
        finally:
            ended.set()
            if thread.ident:
                thread.join()
