"""A small process between a flow and a stage, so that no stage outlives its flow.

`python -m flows.supervise COMMAND…` runs the command in a session of its own. When the flow goes away for whatever
reason (its end of our stdin closes, even by kill -9) or asks us to stop (SIGTERM), the command and all its children get
SIGTERM and, if they linger, SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 8.0


def main() -> None:
    """Run the command given as arguments; exit with its code."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # not in the handler itself: it interrupts the wait below, which no second one can overtake
        signal.signal(number, lambda *_: threading.Thread(target=end, args=(child,), daemon=True).start())

    def watch() -> None:
        while os.read(0, 4096):
            pass
        end(child)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)


def end(child: subprocess.Popen) -> None:
    """End a process and its whole group: ask first, then insist."""
    signal_group(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    signal_group(child.pid, signal.SIGKILL)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    main()
