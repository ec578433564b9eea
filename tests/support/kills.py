"""Processes that are stopped or killed at a chosen operation, which Python tells audit hooks."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from signal import Signals

KILLED = 9

SIGNALED = """
import os, runpy, signal, sys

number, left, name, *command = sys.argv[1:]
left = int(left)


def count(event, arguments):
    global left
    if event != "os.rename":
        return
    target = os.fsdecode(arguments[1])
    if name in target and "__pycache__" not in target:
        left -= 1
        if left == 0:
            signal.raise_signal(int(number))  # to this thread, so it is handled here


sys.addaudithook(count)
sys.argv = command
runpy.run_module(command[0], run_name="__main__", alter_sys=True)
"""


def signaled_at(write: int, name: str, number: Signals, *module: str) -> list[str]:
    """A command that runs a module, with arguments, and sends itself a signal where it has written
    a file or folder with `name` in its path so many times, before the last of them is renamed to
    its place.
    """
    return [sys.executable, "-c", SIGNALED, str(int(number)), str(write), name, *module]


def killed_at(operation: int, work: Callable[[], object]) -> bool:
    """Do `work` in a forked child that is killed before its file operation of this number; returns
    whether it got there.
    """
    process = os.fork()
    if process == 0:
        left = operation

        def hook(event: str, arguments: tuple) -> None:
            nonlocal left
            writes = event == "open" and arguments[1] != "r"
            if writes or event.startswith(("os.", "shutil.")):
                left -= 1
                if left < 0:
                    os._exit(KILLED)  # at once, as a kill

        sys.addaudithook(hook)
        work()
        os._exit(0)
    _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED)
    return code == KILLED


def kills_at_each_operation(work: Callable[[], object]) -> Iterator[int]:
    """Kill `work` before its first file operation, its second, and so on; yields their numbers."""
    return itertools.takewhile(lambda operation: killed_at(operation, work), itertools.count())
