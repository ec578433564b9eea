"""A process that asked for it ends with the one that started it, however that ends."""

from __future__ import annotations

import subprocess
import sys

import psutil

CHILD = """
import signal, time
from throughline.shared.parent_death import end_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end_with_parent()
print("waits", flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_is_killed_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert not psutil.wait_procs([child], timeout=15)[1]
