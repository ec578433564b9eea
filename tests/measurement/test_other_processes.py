"""What others take of the machine while something is measured is known, and by whom."""

import os
from collections import Counter
from dataclasses import replace

import psutil
import pytest

from throughline.measurement import other_processes
from throughline.measurement.other_processes import CpuTimes, OtherProcesses
from throughline.shared.limits import usable_cores

CHILD, OTHER = 2**30, 1  # a number that no process has, and one that always has a name


def measure(idle_s: float, **took_s: float) -> OtherProcesses:
    """What is known after so many seconds of a process, of its child and of another one, on cores
    that were else idle.
    """
    ids = {"this": os.getpid(), "child": CHILD, "other": OTHER}
    before = CpuTimes(
        idle_s=50.0, busy_s=70.0, cores=usable_cores(), group_s=9.0, by_process=Counter({OTHER: 5})
    )
    took = before.by_process + Counter({ids[name]: took_s[name] for name in took_s})
    busy_s = 70.0 + sum(took_s.values())
    after = replace(before, idle_s=50.0 + idle_s, busy_s=busy_s, by_process=took)
    with OtherProcesses(read=iter([before, after]).__next__) as others:
        pass
    return others


@pytest.fixture(autouse=True)
def _one_child(monkeypatch):
    monkeypatch.setattr(other_processes, "list_children", lambda pid: [CHILD])


def test_a_process_that_is_not_ours_is_measured_and_named():
    others = measure(idle_s=2.0, this=1.0, other=5.0)
    assert (others.cpu_pct, others.idle_pct) == pytest.approx((62.5, 25.0))
    assert others.busiest == f"{psutil.Process(OTHER).name()} (process {OTHER})"
    own = measure(idle_s=0.0, this=6.0, child=2.0)
    assert (own.cpu_pct, own.idle_pct, own.busiest) == (0.0, 0.0, other_processes.OTHER_PROGRAMS)


def test_the_system_counts_every_process_and_the_cores_of_this_one():
    found = other_processes.read_cpu_times()
    assert found.by_process[os.getpid()] > 0 and found.busy_s > 0
    assert found.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("others_s", "own_s", "usable", "sharing_s", "shares"),
    [
        (20.0, 40.0, 1.0, 0.0, (25.0, 25.0)),
        (60.0, 20.0, 0.25, 0.0, (0.0, 0.0)),
        (60.0, 5.0, 0.25, 0.0, (0.0, 75.0)),
        (70.0, 10.0, 0.25, 0.0, (50.0, 0.0)),
        (10.0, 10.0, 0.25, 10.0, (50.0, 0.0)),  # of another program of the container
    ],
)
def test_a_quota_leaves_others_the_cores_that_it_keeps_from_us(
    others_s, own_s, usable, sharing_s, shares
):
    """Eight cores in ten seconds, of which a quota leaves two."""
    busy_s, more = others_s + own_s, {"usable": usable, "sharing_s": sharing_s}
    assert other_processes.share_of_cores(busy_s, 80.0 - busy_s, own_s, **more) == shares


@pytest.mark.parametrize(
    ("idle_s", "other_s", "missed_pct"), [(0.0, 5.0, 50.0), (5.0, 5.0, 0.0), (2.0, 3.0, 10.0)]
)
def test_only_cores_that_are_missed_count(idle_s, other_s, missed_pct):
    others = measure(idle_s=idle_s, this=10.0 - idle_s - other_s, other=other_s)
    assert others.missed_pct == pytest.approx(missed_pct)
