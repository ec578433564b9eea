"""Whatever of flow, supervisors and command is killed, in whatever session the rest lives: nothing
is left running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
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
        own = [sys.executable, "-c", FAMILY, mark, str(seconds), manner]
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.run.supervise", *own],
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


def inner_of(process: subprocess.Popen) -> psutil.Process:
    """The second supervisor."""
    return psutil.Process(process.pid).children()[0]


def command_of(mark: str) -> psutil.Process:
    return marked(mark)[2]


# What happens to the family, and the exit code of its outer supervisor.
BLOWS: dict[str, tuple[Callable[[subprocess.Popen, str], object], int]] = {
    "stdin closed": (lambda process, mark: process.stdin.close(), 128 + signal.SIGTERM),
    "outer killed": (lambda process, mark: process.kill(), -signal.SIGKILL),
    "inner killed": (lambda process, mark: inner_of(process).kill(), 128 + signal.SIGKILL),
    "command killed": (lambda process, mark: command_of(mark).kill(), 128 + signal.SIGKILL),
    "group of outer killed": (lambda process, mark: kill_group(process.pid), -signal.SIGKILL),
    "group of inner killed": (
        lambda process, mark: kill_group(inner_of(process).pid),
        128 + signal.SIGKILL,
    ),
    "group of command killed": (
        lambda process, mark: kill_group(command_of(mark).pid),
        128 + signal.SIGKILL,
    ),
    "terminated": (lambda process, mark: process.terminate(), 128 + signal.SIGTERM),
}


def kill_group(leader: int) -> None:
    os.killpg(leader, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("blow", BLOWS)
def test_nothing_outlives_a_blow(family, blow):
    process, mark = family()
    strike, code = BLOWS[blow]
    strike(process, mark)
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
