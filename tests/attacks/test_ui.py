"""`make ui`, attacked by other origins, users and networks, and by whoever has Prefect's whole API;
a line of a list is a case.
"""

import base64
import contextlib
import http.server
import ipaddress
import json
import os
import subprocess
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
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
MINE = {"username": "attacker", "password": "attacker-attacker"}
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
        ("POST", "api/2.0/mlflow/users/create", MINE),
        ("PATCH", "api/2.0/mlflow/users/update-password", {**MINE, "username": "throughline"}),
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


@contextlib.contextmanager
def serving(host: str) -> Iterator[int]:
    """A server of an innocent page, the list of this folder's files; yields its port."""
    page = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer((host, 0), page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def foreign(stack) -> Iterator[Page]:
    """A page of another origin in a browser that has been given the password by its user."""
    need("chromium")
    with serving("127.0.0.1") as port, browsing(stack.user) as page:
        page.goto(stack.tracking)  # the browser now remembers MLflow's password
        page.goto(f"http://localhost:{port}/")
        yield page


FETCH = """async ([url, method, body, kind]) => {
  const asked = {method, credentials: "include"};
  if (kind === "simple") asked.mode = "no-cors";
  if (body !== null) {
    asked.body = JSON.stringify(body);
    asked.headers = {"Content-Type": kind === "simple" ? "text/plain" : "application/json"};
  }
  try {
    const reply = await fetch(url, asked);
    return {status: reply.status, text: await reply.text()};
  }
  catch (error) { return {status: 0, text: ""}; }
}"""


def test_the_page_that_belongs_there_is_answered(stack, foreign):
    """What the attacks below rely on: the browser knows the password, and the server answers it."""
    page = foreign.context.new_page()
    page.goto(stack.tracking)
    url = f"{stack.tracking}/ajax-api/2.0/mlflow/experiments/search?max_results=9"
    answer = page.evaluate(FETCH, [url, "GET", None, "cors"])
    assert answer["status"] == 200 and "experiments" in answer["text"]
    page.close()


@pytest.mark.parametrize("kind", ["cors", "simple"])
@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_page_of_another_origin_does_nothing(stack, foreign, server, kind):
    before = count(stack)
    for method, url, body in list_requests(stack, server):
        answer = foreign.evaluate(FETCH, [url, method, body, kind])
        assert answer["text"] == "", f"{method} {url}: nothing can be read"
        assert count(stack) == before, f"{method} {url}"


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
    ("server", "path"),
    [
        ("server", "api/admin/version"),
        ("tracking", "ajax-api/2.0/mlflow/experiments/search?max_results=9"),
    ],
)
def test_a_name_that_was_pointed_to_this_machine_is_not_answered(stack, server, path):
    """DNS rebinding: to the browser, such a page and the server are of one origin."""
    url = urllib.parse.urlsplit(getattr(stack, server))
    for host, answered in (("attacker.example", False), ("localhost", True)):
        headers = {"Host": f"{host}:{url.port}"}
        reply = requests.get(f"{url.geturl()}/{path}", headers=headers, auth=stack.user, timeout=30)
        assert reply.status_code == 200 if answered else reply.status_code in (400, 403), reply.text


TIMED_OUT = 28  # of curl's exit codes
AS_NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def curl(method: str, url: str, body: object, *, before: Iterable[str] = (), **process: Any) -> str:
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
    assert not [path for path in readable if path.suffix in (".db", ".db-wal")]
    servers = {stack.project / ".throughline/ui", home}
    assert not [path for path in readable if servers & {*path.parents}]
    assert not [path for path in readable if stack.user[1].encode() in path.read_bytes()]
    commands = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    assert not [one for one in commands if stack.user[1] in one], "no password is on a command line"


@contextlib.contextmanager
def namespace() -> Iterator[tuple[str, list[str]]]:
    """A network namespace; yields this one's address there, and what runs a command in it."""
    name, number = f"doors{os.getpid()}", os.getpid() % (1 << 15)
    here = ipaddress.ip_address("198.18.0.1") + 4 * number  # of a network for tests, 198.18.0.0/15
    commands = f"""netns add {name}
        link add {name}a type veth peer name {name}b netns {name}
        addr add {here}/30 dev {name}a
        link set {name}a up
        -n {name} addr add {here + 1}/30 dev {name}b
        -n {name} link set {name}b up
        -n {name} link set lo up"""
    try:
        for command in commands.splitlines():
            subprocess.run(["ip", *command.split()], capture_output=True, check=True)
        yield str(here), ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_from_another_network_namespace_nothing_answers(stack):
    need("namespaces")
    with namespace() as (here, inside), serving(here) as seen:

        def ask(address: str, port: int | None) -> str:
            return curl("GET", f"http://{address}:{port}/", None, before=inside)

        assert ask(here, seen) == "200", "the namespace does reach this machine"
        for server in (stack.server, stack.tracking):
            port = urllib.parse.urlsplit(server).port
            assert ask(here, port) == ask("127.0.0.1", port) == "000"


def test_mlflow_runs_no_jobs(stack):
    assert processes_of(stack.project, "uvicorn")
    assert not processes_of(stack.project, "mlflow.server.jobs")


@pytest.mark.parametrize(
    "asked",
    [
        {"command": "touch /tmp/executed"},
        {"env": {"THROUGHLINE_DATA_ROOTS": "/"}},
        {"env.PREFECT__FLOW_ENTRYPOINT": "/tmp/evil.py:flow"},
        {"working_dir": "/"},
    ],
    ids=lambda value: next(iter(value)),
)
def test_job_variables_are_refused(stack, asked):
    """Of a run when it is made; of a deployment when a run of it is made."""
    own = stack.deployment("training")
    place = f"deployments/{own['id']}"
    reply = stack.post(f"{place}/create_flow_run", **RUN, job_variables=asked)
    assert reply.status_code == 422 and "Additional properties are not allowed" in reply.text
    try:
        stack.post(place, method="PATCH", job_variables=asked)
        assert stack.post(f"{place}/create_flow_run", **RUN).status_code == 422
    finally:
        stack.post(place, method="PATCH", job_variables=own["job_variables"])


def test_nothing_that_is_written_into_the_server_decides_what_the_worker_executes(stack, tmp_path):
    """Neither the work pool's template, nor a deployment, nor a run without one."""
    tmp_path.chmod(0o777)
    mark, evil = tmp_path / "executed", tmp_path / "evil.py"
    flow = "from prefect import flow\n@flow\ndef training(): pass\n"
    evil.write_text(f"open({str(mark)!r}, 'w')\n{flow}")
    command, own = f"touch {mark}", stack.deployment("training")
    address = f"{stack.server}/api/work_pools/throughline"
    pool = requests.get(address, auth=stack.user, timeout=30).json()
    job = {"command": command, "env": {"PREFECT__FLOW_ENTRYPOINT": f"{evil}:training"}}
    job |= {"working_dir": str(tmp_path)}
    variables = {"properties": {"command": {"type": "string", "default": command}}}
    template = {"job_configuration": job, "variables": {"type": "object", **variables}}
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": command}}]
    changed = {"entrypoint": f"{evil}:training", "pull_steps": steps, "path": str(tmp_path)}
    changed |= {"job_variables": {"command": command}}

    def write(base_job_template: Any, deployment: dict[str, Any]) -> None:
        pool_body = {"base_job_template": base_job_template}
        assert stack.post("work_pools/throughline", method="PATCH", **pool_body).ok
        assert stack.post(f"deployments/{own['id']}", method="PATCH", **deployment).ok

    try:
        write(template, changed)
        refused = {"overrides": ["data.path=/etc", 'model.name="os:system"']}
        runs = [stack.start("training", pipeline="naive", changes=refused)]
        place = {"flow_id": own["flow_id"], "work_pool_name": "throughline"}
        made = stack.ask("deployments/", name="mine", **place, **changed)
        runs.append(stack.ask(f"deployments/{made['id']}/create_flow_run")["id"])
        free = {"state": {"type": "SCHEDULED"}, "job_variables": {"command": command}}
        runs.append(stack.ask("flow_runs/", **place, **free)["id"])
        states = [stack.ended(one) for one in runs]
    finally:
        write(pool["base_job_template"], {key: own[key] for key in changed})
    assert [state["state_type"] for state in states] == ["FAILED", "CRASHED", "CRASHED"]
    said = states[0]["state"]["message"]
    assert "data.path: /etc is outside" in said, "the project's own flow ran, confined"
    assert "model: os:system is not a module of this project" in said
    assert ("training-failure", "markdown") in stack.artifacts(runs[0])
    assert not mark.exists(), "no command of the attacker's ran"
