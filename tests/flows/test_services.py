"""A server that ends is started again, with the reason, and not for ever; its secrets are on no
command line.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

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
    said = capsys.readouterr().out
    assert said.count("restarting worker") == MOST_RESTARTS and "the reason" in said


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
            said += capsys.readouterr().out
        look_after()
    assert "mlflow ended with exit code 3" in said and "prefect-server ended" not in said
