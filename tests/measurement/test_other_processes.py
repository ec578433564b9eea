"""What others take of the machine while something is measured is known, and by whom."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from made_up import made_up

from throughline.measurement.other_processes import OtherProcesses
from throughline.results.profiling import ProfileResult

SPIN = "while True: pass"


def spin(seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        pass


def test_a_process_that_is_not_ours_is_measured_and_named():
    # Started by a shell that goes at once, so that it is nobody's child.
    command = f"{sys.executable} -c '{SPIN}' >/dev/null 2>&1 & echo $!"
    shell = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    other = int(shell.stdout)
    try:
        with OtherProcesses() as others:
            time.sleep(0.6)
    finally:
        os.kill(other, 9)
    share = 100 / len(os.sched_getaffinity(0))
    assert others.cpu_pct >= 0.3 * share
    assert 0 <= others.cpu_pct + others.idle_pct <= 101


def test_what_this_process_and_its_children_do_is_their_own():
    with OtherProcesses() as others:
        child = subprocess.Popen([sys.executable, "-c", SPIN])
        spin(0.6)
        busy = sum(os.times()[:2])
    child.kill()
    child.wait()
    assert busy > 0 and str(child.pid) not in others.busiest
    assert str(os.getpid()) not in others.busiest


@pytest.mark.parametrize(
    ("others_pct", "idle_pct", "disturbed"),
    [(50.0, 0.0, True), (50.0, 45.0, False), (5.0, 0.0, False), (30.0, 10.0, True)],
)
def test_only_who_takes_cores_that_are_missed_disturbs(others_pct, idle_pct, disturbed):
    result = replace(
        made_up(ProfileResult),
        others_cpu_pct=others_pct,
        idle_cpu_pct=idle_pct,
        busiest_other="yes (process 9)",
    )
    assert result.disturbed_by == ("yes (process 9)" if disturbed else "")
