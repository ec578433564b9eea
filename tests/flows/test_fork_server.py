"""A stage that a server has forked is a stage as any other: its output, exit code and end are those
of a process of its own, and nothing outlives who asked for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

import psutil
import pytest

from flows.run import fork_server as server_module
from flows.run.fork_server import list_imported_files, serve, stage_server
from tests.support.project import Started, environment, start
from tests.support.stack import wait_for
from throughline.shared import fork_client
from throughline.shared.fork_client import (
    READY,
    REFUSED,
    STAGE_SERVER,
    find_started_module,
    hand_over,
)

SLEEPING_MODEL = """
import pathlib, time
pathlib.Path("asleep").touch()
time.sleep(300)
"""


@pytest.fixture
def socket_pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


def request(connection, module="tasks.build", arguments=()):
    content = json.dumps(
        {
            "module": module,
            "arguments": list(arguments),
            "prefix": sys.prefix,
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
        }
    ).encode()
    socket.send_fds(connection, [len(content).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(content)


def test_a_stage_is_refused_once_a_file_of_the_program_has_changed(socket_pair):
    ours, theirs = socket_pair
    request(ours)
    imported = list_imported_files()
    file = server_module.__file__
    assert serve(theirs, {**imported, file: imported[file] - 1}) == REFUSED


def test_a_refused_stage_goes_on_by_itself_with_its_own_signals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STAGE_SERVER, "stages")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("stages")
    listener.listen()
    before = signal.getsignal(signal.SIGTERM)

    def refuse():
        connection, _ = listener.accept()
        with connection:
            connection.recv(4)
            connection.sendall(REFUSED)
            connection.recv(1 << 20)

    thread = threading.Thread(target=refuse)
    thread.start()
    with listener:
        hand_over("tasks.build", [], server=STAGE_SERVER)
        thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("module", ["tasks.build", "tasks.ingest"])
def test_a_server_that_imports_is_waited_for_by_who_would_import_as_much(
    module, tmp_path, monkeypatch
):
    """And not for ever: one that ends meanwhile lets the stage go on by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STAGE_SERVER, "stages")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("stages")
    listener.listen()
    asked = threading.Event()

    def end_importing():
        if select.select([listener], [], [], 2.0)[0]:
            asked.set()
        listener.close()

    thread = threading.Thread(target=end_importing)
    thread.start()
    hand_over(module, [], server=STAGE_SERVER)
    assert asked.is_set() == (module == "tasks.build")
    thread.join()
    assert asked.is_set() == (module == "tasks.build")


def test_without_a_server_a_stage_goes_on_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STAGE_SERVER, "nobody")
    hand_over("tasks.build", [], server=STAGE_SERVER)


@pytest.mark.parametrize(
    ("command", "stage"),
    [
        (["-m", "tasks.build", "--pipeline", "naive"], "build"),
        (["-m", "throughline.config.cli"], None),
        (["-m", "flows.build"], None),
        (["tasks/build.py"], None),
        (["-c", "pass"], None),
    ],
)
def test_only_a_stage_that_python_starts_is_handed_over(monkeypatch, command, stage):
    # While Python looks for a module, `-m` stands for its name.
    shown = ["-m", *command[2:]] if command[0] == "-m" else command
    monkeypatch.setattr(fork_client.sys, "argv", shown)
    monkeypatch.setattr(fork_client.sys, "orig_argv", ["python", *command])
    assert find_started_module("tasks", ["build"]) == stage


def start_stage(folder: Path, served: dict, name: str, pipeline: str) -> Started:
    command = (sys.executable, "-m", f"tasks.{name}", "--pipeline", pipeline)
    return start(folder, *command, shared=served)


def sleeping(folder: Path) -> list[psutil.Process]:
    """The processes of a server in a folder that run a stage: those of the server itself, the
    supervisors left out, are two.
    """
    return [
        process
        for process in psutil.process_iter(["cmdline", "cwd", "status"])
        if "flows.run.fork_server" in (process.info["cmdline"] or ())
        and process.info["cwd"] == str(folder)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.slow
def test_served_stages_end_as_stages_do_and_with_who_asked_for_them(first):
    folder, _ = first
    alone = start_stage(folder, {}, "build", "absent")
    (folder / "asleep.py").write_text(SLEEPING_MODEL)
    with stage_server(folder, environment(folder)) as served:
        wait_for(Path(served[STAGE_SERVER] + READY).exists)
        idle = len(sleeping(folder))
        wrong = start_stage(folder, served, "build", "absent")
        # What TensorFlow says when it is imported comes first, where it is imported.
        assert alone.communicate()[0].endswith(wrong.communicate()[0])
        assert wrong.returncode == alone.returncode == 2

        build = start_stage(folder, served, "build", "naive")
        printed, _ = build.communicate()
        assert build.returncode == 0 and "build naive: read" in printed

        params = folder / "params.yaml"
        params.write_text(params.read_text().replace("name: mlp", "name: 'asleep:build'"))
        for number in (signal.SIGTERM, signal.SIGKILL):
            train = start_stage(folder, served, "train", "naive")
            wait_for((folder / "asleep").exists)
            assert len(sleeping(folder)) > idle
            train.send_signal(number)
            assert train.wait() == (128 + number if number == signal.SIGTERM else -number)
            wait_for(lambda: len(sleeping(folder)) == idle)
            (folder / "asleep").unlink()
    assert not sleeping(folder)
