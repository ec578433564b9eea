"""Two small processes between a flow and a stage, so that no stage outlives its flow.

`python -m flows.run.supervise COMMAND…` is an outer and an inner supervisor, each in a session of
its own, and the command below them in a third. Both are subreapers (`PR_SET_CHILD_SUBREAPER`): any
process that the command starts, in any session, becomes a child of theirs when its parent dies, and
can be ended. A parent-death signal (`PR_SET_PDEATHSIG`) alone would not do: it follows the thread
that forked, and grandchildren do not inherit it.

- The flow dies, even by kill -9, or closes our stdin: the outer supervisor ends all below.
- The outer one dies: its pipe to the inner one closes, which ends all processes below.
- The inner one dies: its children become children of the outer one, which ends them.
- The command dies or finishes: processes that it has left running are ended.

Ending means SIGTERM, then SIGKILL. A supervisor exits when nothing is left below it. Both keep
inherited file descriptors open, so a lock is free when nothing of its run is left. Without
subreapers (not Linux), process groups are ended, and a command that changes its session escapes.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

GRACE_S = 8.0  # between SIGTERM and SIGKILL
OUTER_GRACE_S = GRACE_S + 4.0  # the inner supervisor needs its own grace first
ENDING = (signal.SIGTERM, signal.SIGINT)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05


def main() -> None:
    """Run the command given as arguments; exit with its code."""
    # The inner supervisor's lifeline. exec closes both ends, so the command does not hold it open.
    read, write = os.pipe()

    def start_inner() -> int:
        # Block requests to end until the inner supervisor listens; it would miss them.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        process = os.fork()
        if process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            os.close(read)
            return process
        os.close(write)
        os.setsid()
        code = supervise(lifeline=read, start=lambda: start_command(sys.argv[1:]), grace_s=GRACE_S)
        os._exit(code)

    sys.exit(supervise(lifeline=0, start=start_inner, grace_s=OUTER_GRACE_S))


def start_command(command: list[str]) -> int:
    """Start the command in a session of its own; it ends with this thread. Return its id."""
    # close_fds=False passes inherited descriptors, such as locks, on to the command.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        close_fds=False,
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    process.returncode = 0  # waited for here, not by Popen
    return process.pid


def supervise(*, lifeline: int, start: Callable[[], int], grace_s: float) -> int:
    """Start a child, wait until no process is left below this one, and return its exit code.

    Ends everything when the other end of the descriptor `lifeline` closes, at SIGTERM and SIGINT,
    and when the child has exited.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, wakeup = os.pipe()
    for descriptor in (wake, wakeup):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in (*ENDING, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # an ignored signal would not wake select
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    child = start()
    code = None
    while code is None:
        ready, _, _ = select.select([lifeline, wake], [], [])
        signals = os.read(wake, 4096) if wake in ready else b""
        code = reap(child)
        closed = lifeline in ready and not os.read(lifeline, 4096)
        if closed or signal.SIGTERM in signals or signal.SIGINT in signals:
            break
    return end_children(child, code, grace_s)


def reap(child: int) -> int | None:
    """Collect every child process that has ended; return the exit code of `child` if it has."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            if process == child:
                exited = os.waitstatus_to_exitcode(status)
                code = exited if exited >= 0 else 128 - exited
    return code


def end_children(child: int, code: int | None, grace_s: float) -> int:
    """End everything below this process by SIGTERM, then SIGKILL; return the child's exit code."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    foreign: set[int] = set()  # another user's processes, which we cannot end
    while children := [process for process in _children() if process not in foreign]:
        insist = time.monotonic() > deadline
        for process in children:
            # Children of a killed process become ours, and are ended in the next round.
            if insist:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                except PermissionError:
                    foreign.add(process)
            elif process not in asked:
                asked.add(process)
                _terminate(process)
        time.sleep(POLL_S)
        ended = reap(child)
        code = ended if code is None else code
    return 128 + signal.SIGTERM if code is None else code


def _terminate(process: int) -> None:
    """Send SIGTERM to a child's process group, or to the child alone if the group is our own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(process)
        os.kill(process if group == os.getpgrp() else -group, signal.SIGTERM)


def _children() -> list[int]:
    try:
        return [*map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())]
    except FileNotFoundError:  # a kernel without this file
        import psutil  # here, because it takes longer than all the rest

        return [process.pid for process in psutil.Process().children()]


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
