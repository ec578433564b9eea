"""The whole stack as processes, backed up, lost, and restored."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import mlflow
import psutil
import pytest
import requests
from playwright.sync_api import expect

from flows.servers.services import reserved_port
from infra.local import postgres, s3
from infra.local.__main__ import stores
from infra.local.stack_config import load_stack
from tests.support.browser import browsing, picture
from tests.support.project import environment, make_project
from tests.support.shared_servers import shared_libraries
from tests.support.skips import need
from tests.support.small_data import read_files
from tests.support.stack import Stack, processes_of, started, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Local:
    """A stack's project, folder and ports; started and stopped as often as a test likes."""

    def __init__(self, project: Path, folder: Path, reserved: ExitStack) -> None:
        self.project, self.folder = project, folder
        ports = (reserved.enter_context(reserved_port()) for _ in range(3))
        self.prefect, self.tracking, postgres_port = ports
        base = reserved.enter_context(s3.reserved_ports())  # of ten, of which a store takes four
        others = {"s3_port": base, "input_port": base + 5, "dask_port": base + 8}
        self.home = load_stack(folder, postgres_port=postgres_port, **others)
        own = self.home.clients | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.tracking}"}
        self.environment = environment(project) | shared_libraries.environment() | own

    def up(self, *options: str):
        ports = ["--prefect-port", str(self.prefect), "--mlflow-port", str(self.tracking)]
        command = ("-m", "infra.local", "up", *ports, *options, "--home", str(self.folder))
        return started(self.project, *command)

    def stack(self) -> Stack:
        user, _, password = self.home.clients["PREFECT_API_AUTH_STRING"].partition(":")
        servers = (f"http://127.0.0.1:{port}" for port in (self.prefect, self.tracking))
        return Stack(self.project, *servers, (user, password))

    def run(self, *command: str) -> str:
        options = {"cwd": self.project, "env": self.environment, "capture_output": True}
        done = subprocess.run(command, text=True, check=False, **options)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def local(array_file, tmp_path_factory) -> Iterator[Local]:
    """A stack that is not running; its folder is one that Postgres' own user can enter, too."""
    need("postgres")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as reserved:
        Path(folder).chmod(0o755)
        project = make_project(tmp_path_factory.mktemp("local") / "project", array_file)
        yield Local(project, Path(folder) / "stack", reserved)


@pytest.fixture(scope="module")
def running(local) -> Iterator[ExitStack]:
    """The stack while it runs; closing it early stops the stack."""
    with ExitStack() as stopping:
        stopping.enter_context(local.up("--input-workers", "2", "--dask-workers", "1"))
        yield stopping


@pytest.fixture(scope="module")
def compared(local, running) -> str:
    """A comparison that it has completed, one configuration through its tf.data service."""
    address = f"grpc://127.0.0.1:{local.home.settings.input_port}"
    service = {"read": "shards", "service": {"address": address, "sharding": "static"}}
    pipelines = {"naive": {"read": "shards"}, "service": service}
    overlay = {"pipelines!": pipelines, "train": {"deterministic": False}}
    stack = local.stack()
    flow_run = stack.start("comparison", changes={"overlay": overlay}, name="compared")
    stack.completed(flow_run)
    return flow_run


def test_a_comparison_runs_on_it_with_examples_from_its_input_service(local, compared):
    results = local.project / ".throughline" / "workspaces" / "compared" / "runs"
    found = [json.loads((results / it / "input.json").read_text()) for it in ("naive", "service")]
    # Static sharding delivers every example exactly once.
    assert found[0]["examples_digests"] == found[1]["examples_digests"]


def test_everything_with_a_password_asks_for_it_on_loopback_alone(local, compared):
    folders, names = (local.project, local.folder), ("postgres", "weed", "prefect", "mlflow")
    ours = {it.pid for where in folders for name in names for it in processes_of(where, name)}
    found = [one for one in psutil.net_connections("tcp") if one.pid in ours]
    listening = [one.laddr for one in found if one.status == psutil.CONN_LISTEN]
    asked = {local.prefect, local.tracking, local.home.settings.s3_port}
    assert asked <= {address.port for address in listening}
    assert {address.ip for address in listening} == {"127.0.0.1"}
    stack = local.stack()
    mlflow_api = f"{stack.tracking}/api/2.0/mlflow/experiments/search?max_results=1"
    for address in (f"{stack.server}/api/admin/version", mlflow_api):
        assert requests.get(address, timeout=30).status_code == 401


def test_no_secret_is_in_a_log_or_on_a_command_line(local, compared):
    own = asdict(local.home.settings).items()
    secrets = [value for name, value in own if name.endswith(("password", "secret"))]
    logs = [*local.folder.glob("logs/*.log"), *local.project.glob(".throughline/logs/*.log")]
    said = [log.read_text(errors="replace") for log in logs] + [local.stack().log(compared)]
    said += [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    assert len(logs) > 5 and len(secrets) == 5
    assert not [text[:200] for text in said for secret in secrets if secret in text]
    private = (local.folder / "settings.json", local.folder / "environment")
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}


def test_data_goes_to_the_store_and_comes_back(local, compared):
    local.run("dvc", "exp", "apply", "compared")
    before = read_files(local.project / "data" / "shards")
    local.run("dvc", "push", "-q", "-r", "stack")
    shutil.rmtree(local.project / ".dvc" / "cache")
    shutil.rmtree(local.project / "data")
    local.run("dvc", "pull", "-q", "-r", "stack")
    assert before and read_files(local.project / "data" / "shards") == before


DASK = """
import os, sys
from distributed import Client
from throughline.shared.engine import in_parallel, use_engine

with use_engine(address=sys.argv[1]):
    print(os.getpid(), *in_parallel(os.getpgid, [0, 0], workers=1))
with Client(sys.argv[1]) as client:
    print(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.allowed_failures))
    print(*(it["memory_limit"] for it in client.scheduler_info()["workers"].values()))
"""


def test_stages_of_the_project_find_its_dask_cluster(local, running):
    """A worker of it, which must have the project's program, does what a stage sends."""
    address = f"tcp://127.0.0.1:{local.home.settings.dask_port}"
    numbers, allowed, memory = local.run(sys.executable, "-c", DASK, address).splitlines()
    own, *others = numbers.split()
    assert len(set(others)) == 1 and own not in others
    assert (allowed, memory) == ("2", "0")


def test_mlflow_shows_the_configurations_of_a_comparison_side_by_side(local, compared):
    stack = local.stack()
    of_run = {"flow_run_id": {"any_": [compared]}, "key": {"any_": ["mlflow-comparison"]}}
    (found,) = stack.ask("artifacts/filter", artifacts=of_run)
    user = [local.environment[f"MLFLOW_TRACKING_{name}"] for name in ("USERNAME", "PASSWORD")]
    with browsing((user[0], user[1])) as page:
        page.goto(re.search(r"\((http[^)]+)\)", found["data"])[1])
        for name in ("naive", "service"):
            expect(page.get_by_role("link", name=f"compared/{name}", exact=True)).to_be_visible()
        picture(page, "mlflow-comparison")


def test_stores_that_end_are_started_again(local, capsys):
    with reserved_port() as of_postgres, s3.reserved_ports() as first, ExitStack() as running:
        folder = local.folder.with_name("stores")
        home = load_stack(folder, postgres_port=of_postgres, s3_port=first)
        look_after = running.enter_context(stores(home))
        s3.open_client(home).pipe("dvc/kept", b"kept")
        for process in processes_of(home.folder, "postgres") + processes_of(home.folder, "weed"):
            with suppress(psutil.Error):  # it has ended with the others
                process.kill()
        said = []

        def are_restarted() -> bool:
            look_after()
            said.append(capsys.readouterr().err)
            return "".join(said).count("restarting ") == 2

        wait_for(are_restarted)
        assert s3.open_client(home).cat("dvc/kept") == b"kept"
        asked = ("psql", "-d", "prefect", "-Atc", "SELECT 1")
        assert postgres._run_checked(home, *asked) == "1\n"


def read_metrics() -> dict[str, dict[str, float]]:
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    return {found.info.run_id: found.data.metrics for found in runs}


def test_what_was_backed_up_is_there_again_when_everything_is_lost(
    local, running, compared, monkeypatch
):
    for key, value in local.environment.items():
        monkeypatch.setenv(key, value)
    mlflow.set_tracking_uri(local.environment["MLFLOW_TRACKING_URI"])
    before = read_metrics()
    running.close()
    backup = local.folder.parent / "backup.tar"
    where = ("tar", "-C", str(local.folder.parent))
    local.run(*where, "-cf", str(backup), local.folder.name)
    shutil.rmtree(local.folder)
    local.run(*where, "-xpf", str(backup))
    with local.up():
        assert local.stack().state(compared)["state_type"] == "COMPLETED"
        assert read_metrics() == before
        (parent,) = [it for it in before if mlflow.get_run(it).info.run_name == "compared"]
        assert "<html" in mlflow.artifacts.load_text(f"runs:/{parent}/report/index.html")
