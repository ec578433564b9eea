"""A real object store for tests, and a proxy before it that counts requests and can spoil them."""

import fcntl
import http.client
import json
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from filelock import FileLock

from infra.local import s3

BUCKET = "data"
Fault = Callable[[str, str], str | None]  # method and path → what goes wrong, or None


@pytest.fixture(scope="session")
def store_variables(shared) -> Iterator[dict[str, str]]:
    """Of the one store of the run: the first process that needs it starts it, and ends it last."""
    address, lock = shared / "store.json", FileLock(shared / "store.lock")
    with (shared / "store.users").open("w") as users, ExitStack() as own:
        with lock:
            if starts := not address.exists():
                address.write_text(json.dumps(own.enter_context(_running_store(shared))))
            variables = json.loads(address.read_text())
            fcntl.flock(users, fcntl.LOCK_SH)  # also given up by a process that is killed
        yield variables
        if starts:
            with lock:
                address.unlink()  # whoever comes now starts another one
            fcntl.flock(users, fcntl.LOCK_EX)  # waits until all others have given it up


@contextmanager
def _running_store(shared: Path) -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="objects-", dir=shared))
    with s3.temporary_store(folder, BUCKET) as variables:
        yield variables
        for process in psutil.process_iter(["name", "cmdline"]):
            if process.info["name"] == "weed" and str(folder) in str(process.info["cmdline"]):
                process.kill()  # it would take 15 s to say goodbye


@pytest.fixture
def object_store(store_variables, monkeypatch) -> dict[str, str]:
    """The store, for this process and those that it starts."""
    for name, value in store_variables.items():
        monkeypatch.setenv(name, value)
    return store_variables


@pytest.fixture
def bucket_url(object_store) -> str:
    """An empty place in the bucket, of one test alone."""
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"


@dataclass
class Proxy:
    """What has passed, and what goes wrong: `fault` gets method and path of each request and says
    `cut`, `lost` (done, and never answered), `late`, `corrupt`, a status such as `503` or, with a
    code of S3, `400 ExpiredToken`, or None for none.
    """

    endpoint: str
    fault: Fault = lambda method, path: None
    requests: list[tuple[str, str, int]] = field(default_factory=list)  # and bytes of the answer

    def count(self, method: str) -> int:
        return sum(name == method for name, _, _ in self.requests)


@pytest.fixture
def proxy(object_store, monkeypatch) -> Iterator[Proxy]:
    """The store, reached through a proxy on a free port."""
    proxy = Proxy(endpoint="")

    class Handler(_Handler):
        host, state = urlsplit(object_store["AWS_ENDPOINT_URL"]).netloc, proxy

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host: str
    state: Proxy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.state.fault(self.command, self.path)
        status, headers, data = _refuse(fault) if fault and fault[0].isdigit() else self._ask(body)
        if fault == "lost":
            self.close_connection = True
            return
        if fault == "late":
            time.sleep(0.1)
        if fault == "corrupt":
            data = bytes([data[0] ^ 0xFF]) + data[1:]
        self.state.requests.append((self.command, self.path, len(data)))
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
        self.close_connection = fault == "cut"

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        # The signature is over the host that the client sees, so it is passed as it is.
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        own = ("transfer-encoding", "connection")
        return reply.status, {k: v for k, v in reply.getheaders() if k.lower() not in own}, data

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Nothing: what passed is in `requests`."""


def _refuse(fault: str) -> tuple[int, dict[str, str], bytes]:
    status, _, code = fault.partition(" ")
    return int(status), {}, f"<Error><Code>{code}</Code></Error>".encode() if code else b""
