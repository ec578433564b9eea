"""Starts processes that end with this one, however it ends: each runs under two supervisors."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# Run as a file, because a worktree may have another version of the module. -P adds no folder to the
# import path.
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
    """Start a command; once the block is left, end everything that it started.

    `output` gets its stdout and stderr. The locks of `lock_fds` are held until all have ended.
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
            process.stdin.close()  # the supervisor then ends the command
        if process.stdout:
            while process.stdout.read(1 << 16):  # until no process that could write is left
                pass
        process.wait()


def run_supervised(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    lock_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code and what it printed."""
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
