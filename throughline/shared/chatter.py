"""What TensorFlow says when it starts, which no setting silences, and a process without it."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

# How its lines begin; errors pass.
CHATTER = (
    r"[IW][0-9]{4} [0-9]{2}:[0-9]{2}:|WARNING: All log messages before absl"
    r"|To enable the following instructions"
)
# An error only where there is a GPU.
NO_GPU = r"|E[0-9]{4} .* failed call to cuInit"
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
LAST_LINES_S = 0.3  # for what the process has written last


def hide_tensorflow_chatter() -> None:
    """Keep TensorFlow's notes and warnings from this process' standard error until it ends. What
    else libraries write there passes, errors above all; Python's own stays with the terminal. Where
    the user asks TensorFlow for more, and where something has replaced `sys.stderr`, as this does,
    nothing is changed.
    """
    asked_for = os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1")
    if sys.stderr is not sys.__stderr__ or sys.stderr is None or asked_for:
        return
    unwanted = CHATTER if NVIDIA_DRIVER.exists() else CHATTER + NO_GPU
    own = os.dup(2)
    # A process of its own: what a library writes before it aborts arrives as well. Without `site`
    # it starts in 10 ms.
    command = [sys.executable, "-ISE", str(Path(__file__).with_name("line_filter.py"))]
    remaining = Popen([*command, unwanted], stdin=PIPE, stdout=own, start_new_session=True)
    if remaining.stdin:
        os.dup2(remaining.stdin.fileno(), 2)
        remaining.stdin.close()
    sys.stderr = os.fdopen(own, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    atexit.register(_end, os.getpid(), own, remaining)


def _end(process: int, own: int, remaining: Popen[bytes]) -> None:
    """Wait until all has been written, unless a child still writes there."""
    if os.getpid() != process:  # a fork, whose parent does this
        return
    os.dup2(own, 2)
    try:
        remaining.wait(LAST_LINES_S)
    except TimeoutExpired:
        remaining.returncode = 0  # it ends with whoever still writes
