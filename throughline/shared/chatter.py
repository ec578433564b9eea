"""Hide the messages that TensorFlow prints at startup and that no setting silences."""

import atexit
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

# Beginnings of the lines to hide. Lines with errors are not matched.
CHATTER = (
    r"[IW][0-9]{4} [0-9]{2}:[0-9]{2}:|WARNING: All log messages before absl"
    r"|To enable the following instructions"
)
# TensorFlow reports this as an error on machines without a GPU.
NO_GPU = r"|E[0-9]{4} .* failed call to cuInit"
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
LAST_LINES_S = 0.3  # longest wait for the last lines of the filter process


def hide_tensorflow_chatter() -> None:
    """Hide TensorFlow's notes and warnings on this process's standard error until it ends.

    Errors are shown, except a failed cuInit without an NVIDIA driver; `sys.stderr` is not filtered.
    Nothing changes if TF_CPP_MIN_LOG_LEVEL is 0 or 1, or if `sys.stderr` is None or replaced.
    """
    asked_for = os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1")
    if sys.stderr is not sys.__stderr__ or sys.stderr is None or asked_for:
        return
    unwanted = CHATTER if NVIDIA_DRIVER.exists() else CHATTER + NO_GPU
    own = os.dup(2)
    # The filter is a process of its own, so that it still passes on lines that a library prints
    # before it aborts. Without `site` it starts in 10 ms.
    command = [sys.executable, "-ISE", str(Path(__file__).with_name("line_filter.py"))]
    remaining = Popen([*command, unwanted], stdin=PIPE, stdout=own, start_new_session=True)
    if remaining.stdin:
        os.dup2(remaining.stdin.fileno(), 2)
        remaining.stdin.close()
    sys.stderr = os.fdopen(own, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    atexit.register(_end, os.getpid(), own, remaining)


def _end(process: int, own: int, remaining: Popen[bytes]) -> None:
    """Wait up to `LAST_LINES_S` for the filter to end; children may still write to it."""
    if os.getpid() != process:  # in a fork: the parent waits
        return
    os.dup2(own, 2)
    try:
        remaining.wait(LAST_LINES_S)
    except TimeoutExpired:
        remaining.returncode = 0  # the filter ends with the last process that still writes
