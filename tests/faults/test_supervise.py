"""Whatever of flow, supervisors and command is killed, in whatever session the rest lives: nothing
is left running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
# A command with a child, a grandchild in a session of its own, and, if asked for, one that ignores
# SIGTERM. The youngest of each line says when it is there: counting processes would also count
# what `sh` forks, which has the command line of `sh` until it becomes `sleep`.
FAMILY = """
import subprocess, sys, time
mark, seconds, manner = sys.argv[1:]
sleep = "import time; print('ready', flush=True); time.sleep(120)"
start = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], start_new_session=True);"
child = start + "import time; time.sleep(120)"
subprocess.Popen([sys.executable, "-c", child, sys.executable, "-c", sleep, mark])
if manner == "stubborn":
    subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.2; done", mark])
time.sleep(float(seconds))
"""


def marked(mark: str) -> list[psutil.Process]:
    """Live processes with `mark` on their command line, by age."""
    found = [
        p
        for p in psutil.process_iter(["cmdline", "status", "create_time"])
        if mark in (p.info["cmdline"] or ())
    ]
    return sorted(
        (p for p in found if p.info["status"] != psutil.STATUS_ZOMBIE),
        key=lambda p: p.info["create_time"],
    )


@pytest.fixture
def family():
    """A supervised family: the outer supervisor's Popen, the mark on all its processes."""
    mark = f"family-{uuid.uuid4().hex}"

    def start(seconds: float = 120, manner: str = "docile") -> tuple[subprocess.Popen, str]:
        command = [
            sys.executable,
            "-m",
            "flows.run.supervise",
            sys.executable,
            "-c",
            FAMILY,
            mark,
            str(seconds),
            manner,
        ]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2 if manner == "stubborn" else 1):
            assert process.stdout.readline() == "ready\n"
        return process, mark

    yield start
    for process in marked(mark):
        process.kill()


def close_stdin(process: subprocess.Popen, mark: str) -> None:
    process.stdin.close()


def kill_outer(process: subprocess.Popen, mark: str) -> None:
    process.kill()


def kill_inner(process: subprocess.Popen, mark: str) -> None:
    psutil.Process(process.pid).children()[0].kill()


def kill_command(process: subprocess.Popen, mark: str) -> None:
    marked(mark)[2].kill()


def kill_group_of_outer(process: subprocess.Popen, mark: str) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def kill_group_of_inner(process: subprocess.Popen, mark: str) -> None:
    os.killpg(psutil.Process(process.pid).children()[0].pid, signal.SIGKILL)


def kill_group_of_command(process: subprocess.Popen, mark: str) -> None:
    os.killpg(marked(mark)[2].pid, signal.SIGKILL)


def terminate(process: subprocess.Popen, mark: str) -> None:
    process.terminate()


BLOWS = [
    (close_stdin, 128 + signal.SIGTERM),
    (kill_outer, -signal.SIGKILL),
    (kill_inner, 128 + signal.SIGKILL),
    (kill_command, 128 + signal.SIGKILL),
    (kill_group_of_outer, -signal.SIGKILL),
    (kill_group_of_inner, 128 + signal.SIGKILL),
    (kill_group_of_command, 128 + signal.SIGKILL),
    (terminate, 128 + signal.SIGTERM),
]


@pytest.mark.slow
@pytest.mark.parametrize(("blow", "code"), BLOWS, ids=lambda value: getattr(value, "__name__", ""))
def test_nothing_outlives_a_blow(family, blow, code):
    process, mark = family()
    blow(process, mark)
    process.stdout.read()  # ends when the last process that could write is gone
    assert process.wait(20) == code
    assert psutil.wait_procs(marked(mark), timeout=3)[1] == []


@pytest.mark.slow
def test_what_ignores_sigterm_is_killed(family):
    process, mark = family(manner="stubborn")
    process.terminate()
    process.stdout.read()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert not marked(mark)


@pytest.mark.slow
def test_what_a_finished_command_leaves_running_is_ended(family):
    process, mark = family(2.0)
    process.stdout.read()
    assert process.wait(20) == 0
    assert not marked(mark)
