"""`make ui`, attacked by other origins, users and networks; a line of a list is a case."""

import base64
import contextlib
import http.server
import ipaddress
import json
import os
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from playwright.sync_api import Page

from tests.support.browser import browsing
from tests.support.skips import need
from tests.support.stack import Stack, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN = {"parameters": {"pipeline": "naive"}}
OTHER_PASSWORD = {"username": "throughline", "password": "attacker-attacker"}
# What is sent to Prefect and to MLflow by those who have no password.
REQUESTS: dict[str, list[tuple[str, str, Any]]] = {
    "prefect": [
        ("POST", "deployments/{training}/create_flow_run", RUN),
        ("POST", "flow_runs/filter", {}),
        ("POST", "block_documents/filter", {"include_secrets": True}),
        ("GET", "admin/settings", None),
        ("GET", "csrf-token?client=attacker", None),
        ("PATCH", "work_pools/throughline", {"base_job_template": {}}),
        ("POST", "admin/database/clear", {"confirm": True}),
        ("DELETE", "deployments/{training}", None),
    ],
    "mlflow": [
        ("POST", "api/2.0/mlflow/experiments/create", {"name": "attacker"}),
        ("GET", "ajax-api/2.0/mlflow/experiments/search?max_results=9", None),
        ("PUT", "api/2.0/mlflow-artifacts/artifacts/0/evil.py", {"x": 1}),
        ("POST", "graphql", {"query": "{__typename}"}),
        ("POST", "api/2.0/mlflow/users/create", {"username": "attacker", "password": "attacker-x"}),
        ("PATCH", "api/2.0/mlflow/users/update-password", OTHER_PASSWORD),
        ("POST", "v1/traces", {}),
    ],
}


def list_requests(stack: Stack, server: str) -> list[tuple[str, str, Any]]:
    address = f"{stack.server}/api" if server == "prefect" else stack.tracking
    training = stack.deployment("training")["id"]
    return [
        (method, f"{address}/{path.format(training=training)}", body)
        for method, path, body in REQUESTS[server]
    ]


def count(stack: Stack) -> dict[str, int]:
    """What attacks would add or remove."""
    experiments = f"{stack.tracking}/api/2.0/mlflow/experiments/search?max_results=99"
    mlflow = requests.get(experiments, auth=stack.user, timeout=30).json()
    return {
        "deployments": len(stack.ask("deployments/filter")),
        "flow_runs": len(stack.ask("flow_runs/filter")),
        "experiments": len(mlflow.get("experiments", [])),
        "artifacts": sum(1 for _ in (stack.project / "mlartifacts").rglob("*")),
    }


# A page of another origin, in a browser whose user is signed in to both.


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body>an innocent page</body></html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def foreign(stack) -> Iterator[Page]:
    """A page of another origin in a browser that has been given the password by its user."""
    need("chromium")
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server,
        browsing(stack.user) as page,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.goto(stack.tracking)  # the browser now remembers MLflow's password
        page.goto(f"http://localhost:{server.server_port}/")
        yield page
        server.shutdown()


FETCH = """async ([url, method, body, kind]) => {
  const asked = {method, credentials: "include"};
  if (kind === "simple") asked.mode = "no-cors";
  if (body !== null) {
    asked.body = JSON.stringify(body);
    asked.headers = {"Content-Type": kind === "simple" ? "text/plain" : "application/json"};
  }
  try {
    const reply = await fetch(url, asked);
    return {type: reply.type, status: reply.status, text: await reply.text()};
  }
  catch (error) { return {type: "error", status: 0, text: ""}; }
}"""


@pytest.mark.parametrize("kind", ["cors", "simple"])
@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_page_of_another_origin_does_nothing(stack, foreign, server, kind):
    before = count(stack)
    for method, url, body in list_requests(stack, server):
        answer = foreign.evaluate(FETCH, [url, method, body, kind])
        assert answer["text"] == "", f"{method} {url}: nothing can be read"
        assert count(stack) == before, f"{method} {url}"


def test_the_same_request_of_the_page_that_belongs_there_is_answered(stack, foreign):
    """What the attacks above rely on: the browser knows the password, and the server answers it."""
    page = foreign.context.new_page()
    page.goto(stack.tracking)
    url = f"{stack.tracking}/ajax-api/2.0/mlflow/experiments/search?max_results=9"
    answer = page.evaluate(FETCH, [url, "GET", None, "cors"])
    assert answer["status"] == 200 and "experiments" in answer["text"]
    page.close()


def test_a_page_of_another_origin_opens_no_web_socket(stack, foreign):
    code = """url => new Promise(done => { const socket = new WebSocket(url); const got = [];
      socket.onopen = () => socket.send(JSON.stringify({type: "filter", filter: {}}));
      socket.onmessage = event => got.push(event.data);
      socket.onclose = () => done(got); })"""
    for path in ("events/in", "events/out", "logs/out"):
        assert foreign.evaluate(code, f"{stack.server.replace('http', 'ws')}/api/{path}") == []


def test_a_form_of_another_origin_starts_nothing(stack, foreign):
    before, training = count(stack), stack.deployment("training")["id"]
    address = f"{stack.server}/api/deployments/{training}/create_flow_run"
    html = f'''<form method=post enctype="text/plain" target=frame action="{address}">
      <input name='{{"parameters": {{"pipeline": "naive"}}, "x": "' value='"}}'></form>
      <iframe name=frame></iframe>'''
    submit = "html => { document.body.innerHTML = html; document.forms[0].submit(); }"
    with foreign.expect_response(address) as answered:
        foreign.evaluate(submit, html)
    assert not answered.value.ok
    assert count(stack) == before


@pytest.mark.parametrize(
    "path", ["server/api/admin/version", "tracking/ajax-api/2.0/mlflow/experiments/search"]
)
def test_a_name_that_was_pointed_to_this_machine_is_not_answered(stack, path):
    """DNS rebinding: to the browser, such a page and the server are of one origin."""
    which, _, path = path.partition("/")
    url = urllib.parse.urlsplit(getattr(stack, which))
    headers = {"Host": f"attacker.example:{url.port}"}
    reply = requests.get(f"{url.geturl()}/{path}", headers=headers, auth=stack.user, timeout=30)
    assert reply.status_code in (400, 403), reply.text
    headers = {"Host": f"localhost:{url.port}"}
    own = requests.get(f"{url.geturl()}/{path}", headers=headers, auth=stack.user, timeout=30)
    assert own.status_code not in (400, 403) or "max_results" in own.text, own.text


# Another user of the machine: the same requests without a password, and the project's private
# files.

TIMED_OUT = 28  # of curl's exit codes
AS_NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def curl(
    method: str, url: str, body: object, *, before: tuple[str, ...] = (), **process: Any
) -> str:
    """Send a request by a process of its own; returns the status, 000 where nothing answered."""
    sent = ["--data", json.dumps(body), "-H", "Content-Type: application/json"]
    command = [*before, "curl", "-s", "-m", "240", "-o", "/dev/null", "-w", "%{http_code}"]
    command += ["-X", method, *(sent if body is not None else ()), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **process)
    assert done.returncode != TIMED_OUT, url
    return done.stdout


def test_another_user_of_the_machine_does_nothing(stack):
    need("root")
    before = count(stack)
    answers = {
        (method, url): curl(method, url, body, **AS_NOBODY)
        for server in REQUESTS
        for method, url, body in list_requests(stack, server)
    }
    assert set(answers.values()) <= {"401", "403"}, answers
    assert count(stack) == before
    wrong = base64.b64encode(b"throughline:wrong").decode()
    url = f"{stack.server}/api/admin/version"
    for authorization in (f"Basic {wrong}", "Bearer x"):
        headers = {"Authorization": authorization}
        assert requests.get(url, headers=headers, timeout=30).status_code == 401
    assert requests.get(url, auth=stack.user, timeout=30).ok


def test_another_user_of_the_machine_reads_no_password_and_no_database(stack):
    need("root")
    for folder in (stack.project, *stack.project.parents[:-2]):
        # The project may be read by all; what the servers keep may not.
        folder.chmod(folder.stat().st_mode | 0o055)
    home = stack.project.parent / "home"
    command = ["find", stack.project, home, "-type", "f", "-readable"]
    seen = subprocess.run(command, capture_output=True, text=True, check=False, **AS_NOBODY)
    readable = [Path(line) for line in seen.stdout.splitlines()]
    assert stack.project / "params.yaml" in readable
    servers = (stack.project / ".throughline/ui", home)
    assert not [it for it in readable if it.suffix in (".db", ".db-wal")]
    assert not [it for it in readable if any(map(it.is_relative_to, servers))]
    assert not [path for path in readable if stack.user[1].encode() in path.read_bytes()]
    commands = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    assert not [one for one in commands if stack.user[1] in one], "no password is on a command line"


@contextlib.contextmanager
def namespace() -> Iterator[tuple[str, list[str]]]:
    """A network namespace; yields this one's address there, and what runs a command in it."""
    name, number = f"doors{os.getpid()}", os.getpid() % (1 << 15)
    here = ipaddress.ip_address("198.18.0.1") + 4 * number  # of a network for tests, 198.18.0.0/15
    commands = [
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add {here}/30 dev {name}a",
        f"ip link set {name}a up",
        f"ip -n {name} addr add {here + 1}/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), capture_output=True, check=True)
        yield str(here), ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_from_another_network_namespace_nothing_answers(stack):
    need("namespaces")
    with namespace() as (here, inside), http.server.ThreadingHTTPServer((here, 0), _Page) as seen:
        threading.Thread(target=seen.serve_forever, daemon=True).start()

        def ask(address: str, port: int | None) -> str:
            return curl("GET", f"http://{address}:{port}/", None, before=tuple(inside))

        assert ask(here, seen.server_port) == "200", "the namespace does reach this machine"
        for server in (stack.server, stack.tracking):
            port = urllib.parse.urlsplit(server).port
            assert ask(here, port) == ask("127.0.0.1", port) == "000"
        seen.shutdown()


def test_mlflow_runs_no_jobs(stack):
    assert processes_of(stack.project, "uvicorn")
    assert not processes_of(stack.project, "mlflow.server.jobs")
