"""`make ui`, attacked by a page of another origin, by another user of the machine, from another
network namespace, and by somebody who has the password and the whole of Prefect's API. A line of a
list is a case.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
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
from browser import browsing
from playwright.sync_api import Page
from skips import need
from stack import Stack, processes_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN = {"parameters": {"pipeline": "naive"}}
# What is sent to Prefect and to MLflow by those who have no password.
PREFECT = [
    ("POST", "deployments/{training}/create_flow_run", RUN),
    ("POST", "deployments/filter", {}),
    ("POST", "flow_runs/filter", {}),
    ("POST", "logs/filter", {}),
    ("POST", "block_documents/filter", {"include_secrets": True}),
    ("GET", "admin/settings", None),
    ("GET", "csrf-token?client=attacker", None),
    ("PATCH", "work_pools/throughline", {"base_job_template": {}}),
    ("POST", "variables/", {"name": "x", "value": "y"}),
    ("POST", "admin/database/clear", {"confirm": True}),
    ("DELETE", "deployments/{training}", None),
]
MLFLOW = [
    ("POST", "api/2.0/mlflow/experiments/create", {"name": "attacker"}),
    ("POST", "ajax-api/2.0/mlflow/experiments/create", {"name": "attacker"}),
    ("GET", "ajax-api/2.0/mlflow/experiments/search?max_results=9", None),
    ("POST", "api/2.0/mlflow/registered-models/delete", {"name": "throughline-arrays"}),
    ("GET", "api/2.0/mlflow-artifacts/artifacts", None),
    ("PUT", "api/2.0/mlflow-artifacts/artifacts/0/evil.py", {"x": 1}),
    ("POST", "graphql", {"query": "{__typename}"}),
    (
        "POST",
        "api/2.0/mlflow/users/create",
        {"username": "attacker", "password": "attacker-attacker"},
    ),
    ("GET", "api/2.0/mlflow/users/get?username=throughline", None),
    (
        "PATCH",
        "api/2.0/mlflow/users/update-password",
        {"username": "throughline", "password": "attacker-attacker"},
    ),
    ("POST", "v1/traces", {}),
]
JOB_VARIABLES: list[dict[str, Any]] = [
    {"command": "touch {mark}"},
    {"env": {"THROUGHLINE_DATA_ROOTS": "/"}},
    {"env": {"PYTHONPATH": "/tmp", "PATH": "/tmp"}},
    {"env.PREFECT__FLOW_ENTRYPOINT": "/tmp/evil.py:flow"},
    {"working_dir": "/"},
    {"stream_output": False},
]


@pytest.fixture(scope="module")
def training(stack) -> str:
    return stack.deployment("training")["id"]


@pytest.fixture
def mark(tmp_path) -> Iterator[Path]:
    """A file that must not be there when the attack is over."""
    tmp_path.chmod(0o777)
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists(), "a command of the attacker's ran"


def count(stack: Stack) -> dict[str, int]:
    """What attacks would add or remove."""
    mlflow = requests.get(
        f"{stack.tracking}/api/2.0/mlflow/experiments/search?max_results=99",
        auth=stack.user,
        timeout=30,
    ).json()
    return {
        **{
            what: len(stack.ask(f"{what}/filter"))
            for what in ("deployments", "flow_runs", "variables")
        },
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
    """A page of `localhost`, another origin and another site than 127.0.0.1, in a browser that has
    been given the password by its user.
    """
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
@pytest.mark.parametrize(("method", "path", "body"), PREFECT, ids=lambda value: str(value)[:40])
def test_a_page_of_another_origin_does_nothing_to_prefect(
    stack, foreign, training, method, path, body, kind
):
    before = count(stack)
    answer = foreign.evaluate(
        FETCH, [f"{stack.server}/api/{path.format(training=training)}", method, body, kind]
    )
    assert answer["text"] == "", "nothing can be read"
    assert count(stack) == before


@pytest.mark.parametrize("kind", ["cors", "simple"])
@pytest.mark.parametrize(("method", "path", "body"), MLFLOW, ids=lambda value: str(value)[:40])
def test_a_page_of_another_origin_does_nothing_to_mlflow(stack, foreign, method, path, body, kind):
    before = count(stack)
    answer = foreign.evaluate(FETCH, [f"{stack.tracking}/{path}", method, body, kind])
    assert answer["text"] == "", "nothing can be read"
    assert count(stack) == before


def test_the_same_request_of_the_page_that_belongs_there_is_answered(stack, foreign):
    """What the attacks above rely on: the browser knows the password, and the server answers it."""
    page = foreign.context.new_page()
    page.goto(stack.tracking)
    answer = page.evaluate(
        FETCH,
        [
            f"{stack.tracking}/ajax-api/2.0/mlflow/experiments/search?max_results=9",
            "GET",
            None,
            "cors",
        ],
    )
    assert answer["status"] == 200 and "experiments" in answer["text"]
    page.close()


def test_a_page_of_another_origin_opens_no_web_socket(stack, foreign):
    code = """url => new Promise(done => { const socket = new WebSocket(url); const got = [];
      socket.onopen = () => socket.send(JSON.stringify({type: "filter", filter: {}}));
      socket.onmessage = event => got.push(event.data);
      socket.onclose = () => done(got);
      setTimeout(() => done(got), 5000); })"""
    for path in ("events/in", "events/out", "logs/out"):
        assert foreign.evaluate(code, f"{stack.server.replace('http', 'ws')}/api/{path}") == []


def test_a_form_of_another_origin_starts_nothing(stack, foreign, training):
    before = count(stack)
    html = (
        '<form method=post enctype="text/plain" target=frame'
        f' action="{stack.server}/api/deployments/{training}/create_flow_run">'
    )
    html += """<input name='{"parameters": {"pipeline": "naive"}, "x": "' value='"}'></form>"""
    html += "<iframe name=frame></iframe>"
    foreign.evaluate(
        "html => { document.body.innerHTML = html; document.forms[0].submit(); }", html
    )
    foreign.wait_for_timeout(1500)
    assert count(stack) == before


@pytest.mark.parametrize(
    "path",
    [
        "server/api/admin/version",
        "server/api/flow_runs/filter",
        "tracking/ajax-api/2.0/mlflow/experiments/search",
    ],
)
def test_a_name_that_was_pointed_to_this_machine_is_not_answered(stack, path):
    """DNS rebinding: to the browser, such a page and the server are of one origin."""
    which, _, path = path.partition("/")
    url = urllib.parse.urlsplit(getattr(stack, which))
    headers = {"Host": f"attacker.example:{url.port}"}
    reply = requests.get(f"{url.geturl()}/{path}", headers=headers, auth=stack.user, timeout=30)
    assert reply.status_code in (400, 403), reply.text
    own = requests.get(
        f"{url.geturl()}/{path}",
        headers={"Host": f"localhost:{url.port}"},
        auth=stack.user,
        timeout=30,
    )
    assert own.status_code not in (400, 403) or "max_results" in own.text, own.text


# Another user of the machine: the same requests without a password, and the project's private
# files.

AS_NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def curl(
    method: str, url: str, body: object, *, before: tuple[str, ...] = (), **process: Any
) -> str:
    """Send a request by a process of its own; returns the status, 000 where nothing answered."""
    sent = (
        ["--data", json.dumps(body), "-H", "Content-Type: application/json"]
        if body is not None
        else []
    )
    command = [
        *before,
        "curl",
        "-s",
        "-m",
        "20",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-X",
        method,
        *sent,
        url,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, **process).stdout


def test_another_user_of_the_machine_does_nothing(stack, training):
    need("root")
    before = count(stack)
    prefect = {
        path: curl(
            method, f"{stack.server}/api/{path.format(training=training)}", body, **AS_NOBODY
        )
        for method, path, body in PREFECT
    }
    mlflow = {
        path: curl(method, f"{stack.tracking}/{path}", body, **AS_NOBODY)
        for method, path, body in MLFLOW
    }
    assert set(prefect.values()) <= {"401", "403"}, prefect
    assert set(mlflow.values()) <= {"401", "403"}, mlflow
    assert count(stack) == before


def test_another_user_of_the_machine_reads_no_password_and_no_database(stack):
    need("root")
    for folder in (stack.project, *stack.project.parents[:-2]):
        # The project may be read by all; what the servers keep may not.
        folder.chmod(folder.stat().st_mode | 0o055)
    home = stack.project.parent / "home"
    seen = subprocess.run(
        ["find", stack.project, home, "-type", "f", "-readable"],
        capture_output=True,
        text=True,
        check=False,
        **AS_NOBODY,
    )
    readable = [Path(line) for line in seen.stdout.splitlines()]
    assert stack.project / "params.yaml" in readable
    assert not [
        path
        for path in readable
        if path.suffix in (".db", ".db-wal", ".log") or ".throughline/ui" in str(path)
    ]
    assert not [path for path in readable if stack.user[1].encode() in path.read_bytes()]
    processes = [
        one
        for one in psutil.process_iter(["cmdline"])
        if stack.user[1] in " ".join(one.info["cmdline"] or [])
    ]
    assert not processes, "no password stands on a command line"


@contextlib.contextmanager
def namespace() -> Iterator[list[str]]:
    """A network namespace that reaches this one over a pair of interfaces; yields what runs a
    command in it.
    """
    name = f"doors{os.getpid() % 10_000}"
    commands = [
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add 198.18.5.1/30 dev {name}a",
        f"ip link set {name}a up",
        f"ip -n {name} addr add 198.18.5.2/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), capture_output=True, check=True)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_from_another_network_namespace_nothing_answers(stack):
    need("namespaces")
    with namespace() as inside, http.server.ThreadingHTTPServer(("198.18.5.1", 0), _Page) as seen:
        threading.Thread(target=seen.serve_forever, daemon=True).start()
        asked = functools.partial(curl, "GET", body=None, before=tuple(inside))
        assert asked(url=f"http://198.18.5.1:{seen.server_port}/") == "200", (
            "the namespace does reach this machine"
        )
        for address in (stack.server, stack.tracking):
            port = urllib.parse.urlsplit(address).port
            assert (
                asked(url=f"http://198.18.5.1:{port}/")
                == asked(url=f"http://127.0.0.1:{port}/")
                == "000"
            )
        seen.shutdown()


# Somebody who has the password, and with it all of Prefect's API.


@pytest.mark.parametrize("variables", JOB_VARIABLES, ids=lambda value: next(iter(value)))
def test_job_variables_are_refused(stack, training, mark, variables):
    """Of a run when it is made; of a deployment when a run of it is made."""
    asked = json.loads(json.dumps(variables).replace("{mark}", str(mark)))
    reply = stack.post(f"deployments/{training}/create_flow_run", **RUN, job_variables=asked)
    assert reply.status_code == 422 and "Additional properties are not allowed" in reply.text
    own = stack.deployment("training")["job_variables"]
    try:
        stack.post(f"deployments/{training}", method="PATCH", job_variables=asked)
        assert stack.post(f"deployments/{training}/create_flow_run", **RUN).status_code == 422
    finally:
        stack.post(f"deployments/{training}", method="PATCH", job_variables=own)


def test_nothing_that_is_written_into_the_server_decides_what_the_worker_executes(
    stack, training, mark, tmp_path
):
    """The work pool's template, a deployment's entrypoint, pull steps and path, a deployment of the
    attacker's own, a run without one.
    """
    evil = tmp_path / "evil.py"
    evil.write_text(
        f"open({str(mark)!r}, 'w')\nfrom prefect import flow\n@flow\ndef training(): pass\n"
    )
    command = f"touch {mark}"
    own = stack.deployment("training")
    pool = requests.get(
        f"{stack.server}/api/work_pools/throughline", auth=stack.user, timeout=30
    ).json()
    open_template = {
        "job_configuration": {
            "command": command,
            "env": {"PREFECT__FLOW_ENTRYPOINT": f"{evil}:training"},
            "working_dir": str(tmp_path),
        },
        "variables": {
            "type": "object",
            "properties": {"command": {"type": "string", "default": command}},
        },
    }
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": command}}]
    try:
        assert stack.post(
            "work_pools/throughline", method="PATCH", base_job_template=open_template
        ).ok
        changed = {
            "entrypoint": f"{evil}:training",
            "pull_steps": steps,
            "path": str(tmp_path),
            "job_variables": {"command": command},
        }
        assert stack.post(f"deployments/{training}", method="PATCH", **changed).ok
        refused = {"overrides": ["data.path=/etc", 'model.name="os:system"']}
        runs = [stack.start("training", pipeline="naive", changes=refused)]
        foreign = {
            "name": "mine",
            "flow_id": own["flow_id"],
            "work_pool_name": "throughline",
            **changed,
        }
        made = stack.post("deployments/", **foreign)
        assert made.ok, made.text
        runs.append(stack.ask(f"deployments/{made.json()['id']}/create_flow_run")["id"])
        free = {
            "flow_id": own["flow_id"],
            "work_pool_name": "throughline",
            "state": {"type": "SCHEDULED"},
            "job_variables": {"command": command},
        }
        runs.append(stack.ask("flow_runs/", **free)["id"])
        states = [stack.ended(one) for one in runs]
    finally:
        stack.post(
            "work_pools/throughline", method="PATCH", base_job_template=pool["base_job_template"]
        )
        back = {key: own[key] for key in ("entrypoint", "pull_steps", "path", "job_variables")}
        assert stack.post(f"deployments/{training}", method="PATCH", **back).ok
    assert [state["state_type"] for state in states] == ["FAILED", "CRASHED", "CRASHED"]
    said = states[0]["state"]["message"]
    assert "data.path: /etc is outside" in said, "the project's own flow ran, confined"
    assert "model: os:system is not part of this project" in said
    assert ("training-failure", "markdown") in stack.artifacts(runs[0])


def test_a_run_whose_deployment_goes_away_stays_confined(stack):
    own = stack.deployment("prepare-data")
    copied = {
        key: own[key]
        for key in (
            "flow_id",
            "entrypoint",
            "path",
            "pull_steps",
            "parameter_openapi_schema",
            "enforce_parameter_schema",
        )
    }
    other_flow = stack.ask("flows/", name="another")["id"]
    made = stack.ask(
        "deployments/",
        **{
            **copied,
            "name": "prepare-data",
            "flow_id": other_flow,
            "work_pool_name": "throughline",
        },
    )
    flow_run = stack.ask(
        f"deployments/{made['id']}/create_flow_run",
        parameters={"changes": {"overrides": ["data.path=/etc"]}},
    )["id"]
    # What is only scheduled would be deleted with its deployment.
    wait_for(
        lambda: (
            (state := stack.state(flow_run)["state_type"]) in ("FAILED", "CRASHED")
            or (state != "SCHEDULED" and processes_of(stack.project, "prefect.engine"))
        )
    )
    stack.post(f"deployments/{made['id']}", method="DELETE")
    found = stack.ended(flow_run)
    assert found["state_type"] in ("FAILED", "CRASHED")
    assert "is outside of what runs from the UI may read" in found["state"]["message"]


def test_mlflow_runs_no_jobs(stack):
    assert processes_of(stack.project, "uvicorn") and not processes_of(
        stack.project, "mlflow.server.jobs"
    )


def test_the_password_is_of_this_project_and_basic(stack):
    """What tests above rely on: without it nothing, with it everything."""
    wrong = base64.b64encode(b"throughline:wrong").decode()
    for headers, status in (
        ({}, 401),
        ({"Authorization": f"Basic {wrong}"}, 401),
        ({"Authorization": "Bearer x"}, 401),
    ):
        assert (
            requests.get(
                f"{stack.server}/api/admin/version", headers=headers, timeout=30
            ).status_code
            == status
        )
    assert requests.get(f"{stack.server}/api/admin/version", auth=stack.user, timeout=30).ok
