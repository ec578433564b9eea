"""A running `make ui` or `make stack`: started for real, asked through its APIs, and stopped."""

import contextlib
import functools
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from flows.servers.services import reserved_port
from tests.support.project import start
from tests.support.shared_servers import shared_libraries

RETRIES = 10
LAST_LINES_S = 5  # a run's log arrives in batches, the last after its state
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True)
class Stack:
    """Running servers and how to talk to them."""

    project: Path
    server: str
    tracking: str
    user: tuple[str, str]  # of Prefect with password; of MLflow, too, in `make ui`

    def post(self, path: str, /, *, method: str = "POST", **body: Any) -> requests.Response:
        """Send a request that changes something to Prefect, its body by name."""
        return self.post_json(path, body, method=method)

    def post_json(self, path: str, body: Any, *, method: str = "POST") -> requests.Response:
        """The same, with the token that protects against forged requests."""
        token = csrf_token(self.server, self.user)
        headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
        url = f"{self.server}/api/{path}"
        return request_patiently(method, url, json=body, auth=self.user, headers=headers)

    def ask(self, path: str, /, **body: Any) -> Any:
        reply = self.post(path, **body)
        assert reply.ok, reply.text
        return reply.json()

    def use_mlflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let MLflow's client of this process ask this stack's server, for the length of a test."""
        import mlflow

        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", self.user[0])
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", self.user[1])
        mlflow.set_tracking_uri(self.tracking)

    def deployment(self, flow: str) -> dict[str, Any]:
        return self.ask("deployments/filter", deployments={"name": {"any_": [flow]}})[0]

    def start(self, flow: str, **parameters: Any) -> str:
        deployment = self.deployment(flow)["id"]
        return self.ask(f"deployments/{deployment}/create_flow_run", parameters=parameters)["id"]

    def state(self, flow_run: str) -> dict[str, Any]:
        url = f"{self.server}/api/flow_runs/{flow_run}"
        return request_patiently("GET", url, auth=self.user).json()

    def ended(self, flow_run: str, seconds: float = 480) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (found := self.state(flow_run))["state_type"] not in ENDED:
            assert time.monotonic() < deadline, (
                f"{found['name']} is still {found['state_type']}; {self.log(flow_run)[-2000:]}"
            )
            time.sleep(1)
        return found

    def completed(self, flow_run: str) -> dict[str, Any]:
        """What a run is that has come to its end as it should."""
        found = self.ended(flow_run)
        if found["state_type"] != "COMPLETED":
            time.sleep(LAST_LINES_S)
            said = f"{found['state']['message']}\n{self.log(flow_run)}"
            raise AssertionError(f"{found['name']} is {found['state_name']}: {said}")
        return found

    def log(self, flow_run: str) -> str:
        of_run = {"flow_run_id": {"any_": [flow_run]}}
        lines = self.ask("logs/filter", logs=of_run, sort="TIMESTAMP_ASC", limit=200)
        return "\n".join(line["message"] for line in lines)

    def edges(self, flow_run: str) -> set[tuple[str, str]]:
        """What the graph on the page of a run shows: from which stage to which."""
        url = f"{self.server}/api/flow_runs/{flow_run}/graph-v2"
        nodes = dict(request_patiently("GET", url, auth=self.user).json()["nodes"])
        return {
            (node["label"], nodes[child["id"]]["label"])
            for node in nodes.values()
            for child in node["children"]
        }

    def artifacts(self, flow_run: str) -> set[tuple[str, str]]:
        found = self.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [flow_run]}})
        return {(artifact["key"], artifact["type"]) for artifact in found if artifact["key"]}


def request_patiently(method: str, url: str, **options: Any) -> requests.Response:
    """Send a request, again where Prefect's database is busy, as its own clients do."""
    for _ in range(RETRIES):
        reply = requests.request(method, url, timeout=60, **options)
        if reply.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
            break
        time.sleep(2)
    return reply


@functools.cache
def csrf_token(server: str, user: tuple[str, str]) -> str:
    """What Prefect wants to see in requests of the client `tests`; good for an hour."""
    url = f"{server}/api/csrf-token?client=tests"
    return request_patiently("GET", url, auth=user).json()["token"]


def processes_of(folder: Path, word: str) -> list[psutil.Process]:
    """Live processes that work in a folder or below it and have `word` on their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            inside = Path(process.cwd()).is_relative_to(folder)
            lives = inside and process.status() != psutil.STATUS_ZOMBIE
            if lives and word in " ".join(process.cmdline()):
                found.append(process)
    return found


def measuring_folders(project: Path) -> set[str]:
    """The folders in which measured stages are at work, of a project and its worktrees."""
    folders = set()
    for stage in ("build", "train", "profiling"):
        for process in processes_of(project, f"-m tasks.{stage}"):
            with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
                folders |= {process.cwd()} if process.name().startswith("python") else set()
    return folders


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> Any:
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.3)
    return found


@contextmanager
def started(project: Path, *command: str) -> Iterator[str]:
    """What servers say that a command starts; Ctrl-C at the end, which must leave no process."""
    process = start(project, sys.executable, *command, shared=shared_libraries.environment())
    said = []
    for line in process.stdout or ():
        said.append(line)
        if "Ctrl-C stops all" in line:
            break
    else:
        raise AssertionError("".join(said))
    yield "".join(said)
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 0
    left = [*processes_of(project, "prefect"), *processes_of(project, "mlflow")]
    assert not left, "Ctrl-C leaves no process"


@contextmanager
def running_stack(project: Path) -> Iterator[Stack]:
    """`make ui` in a project, on ports that are kept for it."""
    with reserved_port() as prefect, reserved_port() as mlflow:
        ports = ("--prefect-port", str(prefect), "--mlflow-port", str(mlflow))
        with started(project, "-m", "flows.ui", *ports) as said:
            found = re.search(r"MLflow asks for user (\S+), password (\S+)", said)
            assert found, said
            servers = (f"http://127.0.0.1:{port}" for port in (prefect, mlflow))
            yield Stack(project, *servers, (found[1], found[2]))
