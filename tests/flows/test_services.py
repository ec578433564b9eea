"""A server that ends is started again, with the reason, and not for ever; its secrets are on no
command line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.servers import services
from flows.servers.services import MOST_RESTARTS, ServerProcess, keep_running
from flows.ui import STORE, Endpoints, tracking_process
from throughline.shared.errors import ServiceFailed


def test_a_server_that_ends_is_started_again_a_few_times_with_the_reason(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    command = ["sh", "-c", "echo the reason; exit 3"]
    server = ServerProcess(name="worker", command=command, healthy=lambda: True, environment={})
    log = tmp_path / "worker.log"
    with (
        keep_running(server, logs=tmp_path) as look_after,
        pytest.raises(ServiceFailed, match="worker ended with exit code 3") as failed,
    ):
        for _ in range(200):
            look_after()
            time.sleep(0.05)
    assert "the reason" in str(failed.value)
    assert log.read_text() == "the reason\n" * (1 + MOST_RESTARTS)
    said = capsys.readouterr().err
    assert said.count("restarting worker") == MOST_RESTARTS and "the reason" in said


def test_a_server_that_is_never_healthy_again_is_not_waited_for_without_end(
    tmp_path, monkeypatch, capsys
):
    """Each wait is longer than the time within which so many restarts are too many."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(services, "STARTUP_TIMEOUT_S", 0.4)
    monkeypatch.setattr(services, "RESTARTS_WITHIN_S", 0.3)
    asked = []
    server = ServerProcess(
        name="mlflow",
        command=["sh", "-c", f"cd {tmp_path}; test -e died && sleep 60; touch died; exit 3"],
        healthy=lambda: asked.append(1) or len(asked) == 1,
        environment={},
    )
    with (
        keep_running(server, logs=tmp_path) as look_after,
        pytest.raises(ServiceFailed, match="mlflow ended with exit code 3"),
    ):
        for _ in range(1000):
            look_after()
            time.sleep(0.01)
    said = capsys.readouterr().err
    assert said.count("restarting mlflow") == MOST_RESTARTS == said.count("was not healthy within")


INTERRUPTED = """
import sys
from pathlib import Path
from flows.servers.services import ServerProcess, keep_running
from flows.ui import run_until_interrupted

asked = []
server = ServerProcess(
    name="mlflow",
    command=["sh", "-c", "test -e died && sleep 61; touch died; exit 3"],
    healthy=lambda: asked.append(1) or len(asked) == 1,
    environment={},
)
with keep_running(server, logs=Path("logs")) as look_after:
    run_until_interrupted(look_after)
print("stopped")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_wait_for_a_server_that_is_started_again(tmp_path, number):
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", INTERRUPTED],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said = ""
            while "restarting mlflow" not in said:
                said += process.stdout.readline()
            while not (below := psutil.Process(process.pid).children(recursive=True)):
                time.sleep(0.1)
            process.send_signal(number)
            process.send_signal(number)  # of someone impatient
            said += process.communicate(timeout=30)[0]
        finally:
            process.kill()  # a failure does not wait for its end
    assert process.returncode == 0 and said.endswith("stopped\n")
    assert not psutil.wait_procs(below, timeout=20)[1]


def test_a_store_s_password_is_not_on_the_command_line_that_all_users_see():
    store = "postgresql://user:secret@host/mlflow"
    process = tracking_process(Endpoints(prefect_port=1, mlflow_port=2, store=store))
    assert not any("secret" in word for word in process.command)
    assert process.environment[STORE] == store


def test_of_several_servers_the_one_that_ends_is_started_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    once = "test -e died || { touch died; exit 3; }; sleep 60"
    commands = {"prefect-server": f"cd {tmp_path}; sleep 60", "mlflow": f"cd {tmp_path}; {once}"}
    servers = [
        ServerProcess(
            name=name, command=["sh", "-c", command], healthy=lambda: True, environment={}
        )
        for name, command in commands.items()
    ]
    with keep_running(*servers, logs=tmp_path) as look_after:
        said = ""
        while "restarting" not in said:
            time.sleep(0.05)
            look_after()
            said += capsys.readouterr().err
        look_after()
    assert "mlflow ended with exit code 3" in said and "prefect-server ended" not in said
