"""Whatever of flow, supervisors and command is killed, nothing is left running."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable

import psutil
import pytest

from tests.support.project import ROOT
from tests.support.stack import processes_of

pytestmark = pytest.mark.slow

LONGEST_S = 240  # that a test waits for an end
# A command that goes on until SIGUSR1, with a child, a grandchild in a session of its own, and, if
# asked for, one that ignores SIGTERM. The youngest of each line says when it is there: counting
# processes would also count what `sh` forks, which has the command line of `sh` until it becomes
# `sleep`.
FAMILY = """
import signal, subprocess, sys
mark, manner = sys.argv[1:]
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
pause = "import signal; print('ready', flush=True); signal.pause()"
start = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True);"
child = start + "import signal; signal.pause()"
subprocess.Popen([sys.executable, "-c", child, sys.executable, "-c", pause, mark])
if manner == "stubborn":
    subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.2; done", mark])
signal.pause()
"""


def marked(mark: str) -> list[psutil.Process]:
    """Live processes with `mark` on their command line, by age."""
    return sorted(processes_of(ROOT, mark), key=lambda process: process.create_time())


@pytest.fixture
def family():
    """A supervised family: the outer supervisor's Popen, the mark on all its processes."""
    mark = f"family-{uuid.uuid4().hex}"

    def start(manner: str = "docile") -> tuple[subprocess.Popen, str]:
        own = [sys.executable, "-c", FAMILY, mark, manner]
        command = [sys.executable, "-m", "flows.run.supervise", *own]
        options = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, start_new_session=True, **options)
        for _ in range(2 if manner == "stubborn" else 1):
            assert process.stdout.readline() == "ready\n"
        return process, mark

    yield start
    for process in marked(mark):
        process.kill()


def kill_group_of_inner(process: subprocess.Popen, mark: str) -> None:
    os.killpg(psutil.Process(process.pid).children()[0].pid, signal.SIGKILL)


def kill_group_of_command(process: subprocess.Popen, mark: str) -> None:
    os.killpg(marked(mark)[2].pid, signal.SIGKILL)


# What happens to the family, and the exit code of its outer supervisor.
BLOWS: dict[str, tuple[Callable[[subprocess.Popen, str], object], int]] = {
    "stdin closed": (lambda process, mark: process.stdin.close(), 128 + signal.SIGTERM),
    "outer killed": (lambda process, mark: process.kill(), -signal.SIGKILL),
    "group of inner killed": (kill_group_of_inner, 128 + signal.SIGKILL),
    "group of command killed": (kill_group_of_command, 128 + signal.SIGKILL),
    "command ended": (lambda process, mark: marked(mark)[2].send_signal(signal.SIGUSR1), 0),
}


@pytest.mark.parametrize("blow", BLOWS)
def test_nothing_outlives_a_blow(family, blow):
    process, mark = family()
    strike, code = BLOWS[blow]
    strike(process, mark)
    process.stdout.read()  # ends when the last process that could write is gone
    assert process.wait(LONGEST_S) == code
    assert psutil.wait_procs(marked(mark), timeout=LONGEST_S)[1] == []


def test_what_ignores_sigterm_is_killed(family):
    process, mark = family("stubborn")
    process.terminate()
    process.stdout.read()
    assert process.wait(LONGEST_S) == 128 + signal.SIGTERM
    assert not marked(mark)
