"""Processes that end with this one, however that ends: each runs under two supervisors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# By its file, not as a module: a worktree may have another version of it. -P: no folder is put on
# the import path.
SUPERVISE = (sys.executable, "-P", str(Path(__file__).with_name("supervise.py")))


@contextmanager
def supervised(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    output: int | IO | None = subprocess.PIPE,
    lock_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen]:
    """Start a command whose `output` is both of its streams; however the block is left, nothing of
    it stays.

    `lock_fds` are file descriptors of locks that stay locked for as long as anything of the command
    is left.
    """
    process = subprocess.Popen(
        [*SUPERVISE, *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        bufsize=1,
        start_new_session=True,
        pass_fds=lock_fds,
    )
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()  # the supervisor takes this for our death
        if process.stdout:
            while process.stdout.read(1 << 16):  # until the last process that could write is gone
                pass
        process.wait()


def run_supervised(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    lock_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; returns its code and what it printed."""
    lifeline, ours = os.pipe()
    try:
        return subprocess.run(
            [*SUPERVISE, *command],
            cwd=folder,
            env=environment,
            stdin=lifeline,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            pass_fds=lock_fds,
            start_new_session=True,
        )
    finally:
        os.close(lifeline)
        os.close(ours)
