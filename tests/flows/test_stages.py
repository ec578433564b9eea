"""How stages are run, by themselves and by a server that has their libraries, and how they end."""

import json
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows.orchestration.stages import (
    TIMEOUT_S,
    StageEnvironment,
    _describe_failure,
    _run_once,
    _should_retry,
    measurement_lock,
    with_timeout,
)
from flows.run import fork_server as server_module
from flows.run.dvc_calls import dvc_environment
from flows.run.fork_server import list_imported_files, serve, stage_server
from flows.run.processes import run_supervised, supervised
from flows.run.workspace import Workspace
from tests.support.project import Started, environment, run_python, start
from tests.support.stack import processes_of, wait_for
from throughline.shared import fork_client, machine_lock
from throughline.shared.errors import StageFailed
from throughline.shared.fork_client import (
    READY,
    REFUSED,
    STAGE_SERVER,
    find_started_module,
    hand_over,
)


@pytest.mark.integration
def test_an_overdue_stage_is_ended_with_its_children_told_by_what_allowed_so_long_and_not_retried(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(TIMEOUT_S, "0.2")
    command = ["sh", "-c", "sleep 20 & sleep 20; touch ended"]
    process = supervised(command, folder=tmp_path, environment=dvc_environment({}))
    with disable_run_logger(), pytest.raises(StageFailed, match="stage_timeout_s") as failed:
        _run_once("shard", process, deque())
    assert not _should_retry("shard", failed.value)
    assert not (tmp_path / "ended").exists(), "it did not come to its end"
    assert not processes_of(tmp_path, "sleep")


@pytest.mark.integration
def test_a_process_that_is_ended_as_it_starts_is_asked_to_and_not_killed(tmp_path, monkeypatch):
    variables = dvc_environment({})
    monkeypatch.setenv(TIMEOUT_S, "600")
    quick = supervised(["true"], folder=tmp_path, environment=variables)
    with quick as process, with_timeout(process) as timed_out:
        assert process.wait() == 0 and not timed_out.is_set(), "it is left alone"
    with supervised(["sleep", "100"], folder=tmp_path, environment=variables) as process:
        pass
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.integration
def test_what_a_stage_prints_is_read_whatever_the_locale_and_the_bytes(tmp_path, monkeypatch):
    theirs = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for key, value in {**theirs, "PYTHONIOENCODING": "ascii"}.items():
        monkeypatch.setenv(key, value)
    program = "import sys; print('✓ größe'); sys.stdout.flush(); sys.stdout.buffer.write(b'\\xff')"
    command, variables = [sys.executable, "-c", program], dvc_environment({})
    with supervised(command, folder=tmp_path, environment=variables) as process:
        assert process.stdout.read() == "✓ größe\n\N{REPLACEMENT CHARACTER}"
    done = run_supervised(command, tmp_path, variables)
    assert done.stdout == "✓ größe\n\N{REPLACEMENT CHARACTER}"


@pytest.mark.slow
def test_a_stage_says_any_name_whatever_the_locale():
    program = "from tasks import identities\nfrom throughline.config.cli import parse_command\n"
    program += "parse_command(identities.main)\nprint('✓ größe \\udcff')"
    assert run_python(program, PYTHONIOENCODING="ascii").stdout == "✓ größe \\udcff\n"


@pytest.mark.parametrize(
    ("stage", "measures", "takes_turns"),
    [
        ("train@a", True, True),
        ("train@a", False, False),
        ("build@a", True, False),
        ("race", True, True),
        ("shard", True, False),
    ],
)
def test_a_training_alone_waits_for_no_measurement_and_disturbs_none_that_is_kept(
    tmp_path, monkeypatch, stage, measures, takes_turns
):
    # Others may measure on this machine.
    monkeypatch.setattr(machine_lock, "MACHINE_ADDRESS", f"\0throughline-test-{os.getpid()}")
    workspace = Workspace(root=tmp_path, project=tmp_path)
    stage_env = StageEnvironment(workspace, frozenset(), measures=measures)
    with disable_run_logger(), measurement_lock(stage, stage_env) as lock_fds:
        assert len(lock_fds) == 1 + takes_turns


def test_a_reason_that_a_full_disk_has_cut_is_told_by_the_last_lines(tmp_path):
    reason = tmp_path / "failure.json"
    reason.write_text("")
    failed = _describe_failure("shard", 2, ["DiskFull: no space is left"], reason)
    assert "DiskFull: no space is left" in str(failed) and failed.failure is None


@pytest.fixture
def listener(tmp_path, monkeypatch):
    """Where stages look for a server that has their libraries; nobody answers yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STAGE_SERVER, "stages")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("stages")
        listener.listen()
        yield listener


def test_a_stage_is_refused_once_a_file_of_the_program_has_changed():
    asked = {"module": "tasks.build", "arguments": [], "prefix": sys.prefix}
    asked |= {"folder": str(Path.cwd()), "environment": dict(os.environ)}
    content = json.dumps(asked).encode()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        socket.send_fds(ours, [len(content).to_bytes(4, "big")], [0, 1, 2])
        ours.sendall(content)
        imported = list_imported_files()
        file = server_module.__file__
        assert serve(theirs, {**imported, file: imported[file] - 1}) == REFUSED


@pytest.mark.parametrize("size", [0, 1 << 30])
def test_what_is_no_request_of_a_program_is_refused(size):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        socket.send_fds(ours, [size.to_bytes(4, "big")], [0, 1, 2])
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(SystemExit, match="not a program's request"):
            serve(theirs, {})


def test_a_refused_stage_goes_on_by_itself_with_its_own_signals(listener):
    before = signal.getsignal(signal.SIGTERM)

    def refuse():
        connection, _ = listener.accept()
        with connection:
            connection.recv(4)
            connection.sendall(REFUSED)
            connection.recv(1 << 20)

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    hand_over("tasks.build", [], server=STAGE_SERVER)
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_imports_is_waited_for_unless_it_ends(listener):
    asked = threading.Event()

    def end_importing():
        select.select([listener], [], [])
        asked.set()
        listener.close()

    thread = threading.Thread(target=end_importing, daemon=True)
    thread.start()
    hand_over("tasks.build", [], server=STAGE_SERVER)
    assert asked.is_set()
    thread.join()


def test_a_stage_that_imports_little_waits_for_no_server_that_imports(listener, monkeypatch):
    hand_over("tasks.ingest", [], server=STAGE_SERVER)
    assert not select.select([listener], [], [], 0)[0], "nobody has asked"
    monkeypatch.setenv(STAGE_SERVER, "nobody")
    hand_over("tasks.build", [], server=STAGE_SERVER)  # goes on by itself


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


SLEEPING_MODEL = """
import pathlib, time
pathlib.Path("asleep").touch()
time.sleep(1000)
"""


def count_processes(folder: Path) -> int:
    """Those of a server in a folder; two of them are the server itself, the others run stages."""
    return len(processes_of(folder, "flows.run.fork_server"))


@pytest.mark.slow
def test_served_stages_end_as_stages_do_and_with_who_asked_for_them(first):
    folder, _ = first

    def start_stage(name: str, pipeline: str, **served: str) -> Started:
        command = (sys.executable, "-m", f"tasks.{name}", "--pipeline", pipeline)
        return start(folder, *command, shared=served)

    alone = start_stage("build", "absent")
    (folder / "asleep.py").write_text(SLEEPING_MODEL)
    with stage_server(folder, environment(folder)) as served:
        wait_for(Path(served[STAGE_SERVER] + READY).exists)
        idle = count_processes(folder)
        wrong = start_stage("build", "absent", **served)
        # What TensorFlow says when it is imported comes first, where it is imported.
        assert alone.communicate()[0].endswith(wrong.communicate()[0])
        assert wrong.returncode == alone.returncode == 2

        build = start_stage("build", "naive", **served)
        printed, _ = build.communicate()
        assert build.returncode == 0 and "build naive: read" in printed

        params = folder / "params.yaml"
        params.write_text(params.read_text().replace("name: mlp", "name: 'asleep:build'"))
        for number in (signal.SIGTERM, signal.SIGKILL):
            train = start_stage("train", "naive", **served)
            wait_for((folder / "asleep").exists)
            assert count_processes(folder) > idle
            train.send_signal(number)
            assert train.wait() == (128 + number if number == signal.SIGTERM else -number)
            wait_for(lambda: count_processes(folder) == idle)
            (folder / "asleep").unlink()
    assert not count_processes(folder)
