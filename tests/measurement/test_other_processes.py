"""What others take of the machine while something is measured is known, and by whom."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.support.made_up import made_up
from throughline.measurement.other_processes import OtherProcesses, share_of_cores
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
    ("others_s", "own_s", "usable", "shares"),
    [
        (20.0, 40.0, 1.0, (25.0, 25.0)),
        (60.0, 20.0, 1.0, (75.0, 0.0)),
        (60.0, 20.0, 0.25, (0.0, 0.0)),
        (60.0, 5.0, 0.25, (0.0, 75.0)),
        (70.0, 10.0, 0.25, (50.0, 0.0)),
        (40.0, 10.0, 0.25, (0.0, 50.0)),
    ],
)
def test_a_quota_leaves_others_the_cores_that_it_keeps_from_us(others_s, own_s, usable, shares):
    """Eight cores in ten seconds, of which a quota leaves two."""
    busy_s = others_s + own_s
    assert share_of_cores(busy_s, 80.0 - busy_s, own_s, usable=usable) == shares


def test_who_shares_the_quota_takes_from_it():
    """Two of eight cores in ten seconds, one of them taken by another program of the container."""
    taken = share_of_cores(20.0, 60.0, 10.0, usable=0.25, sharing_s=10.0)
    assert taken == (50.0, 0.0)


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
