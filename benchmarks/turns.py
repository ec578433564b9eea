"""Loaders of batches that take turns, round after round, so that a machine's drift affects all:
each is a process that answers a line on its standard input with its examples per second.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.data import ROOT


def our_loaders(folder: Path, names: Iterable[str]) -> dict[str, Sequence[str]]:
    command = (sys.executable, "-m", "benchmarks.our_loader", "--data", str(folder))
    return {name: (*command, name) for name in names}


def peer_loaders(python: str, files: Path, names: Iterable[str], *more: str) -> dict[str, Any]:
    command = (python, "benchmarks/peer_loaders.py", "--files", str(files), *more)
    return {name: (*command, name) for name in names}


def take_turns(commands: Mapping[str, Sequence[str]], *, rounds: int) -> dict[str, float]:
    """Return the median examples/s of each loader that does not end before."""
    rates: dict[str, list[float]] = {name: [] for name in commands}
    with ExitStack() as stack:
        running: dict[str, Any] = {
            name: subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True)
            for name, command in commands.items()
        }
        for process in running.values():
            stack.enter_context(process)
            stack.callback(process.kill)
        for process in running.values():
            process.stdout.readline()  # waits until it is ready
        for number in range(rounds):
            for name, process in list(running.items()):
                with suppress(BrokenPipeError):
                    os.write(process.stdin.fileno(), b"turn\n")
                if not (answer := process.stdout.readline()):
                    print(f"{name}: left out: it ended with code {process.wait()}", file=sys.stderr)
                    del running[name], rates[name]
                    continue
                rates[name].append(float(answer))
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return {name: statistics.median(each) for name, each in rates.items()}


def show(title: str, rates: Mapping[str, float], base: str) -> None:
    print(f"\n{title}\n{'loader':<24}{'examples/s':>12}{f'× {base}':>14}")
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"{name:<24}{rate:>12,.0f}{rate / rates[base]:>14.2f}")
