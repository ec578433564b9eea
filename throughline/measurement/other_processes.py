"""Measures how much of this machine other processes use, how much is idle, and who uses most.

Other processes take from us the busy time of our cores, without our own, and without the time that
a CPU quota leaves to others anyway.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from throughline.shared.limits import read_quota_usage_s, usable_cores

OTHER_PROGRAMS = "other programs"  # if no single process took half of the time


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU time since the machine started [s], of the `cores` that this process may use.

    `group_s` is that of the control group that shares our quota, `by_process` is by process id.
    """

    idle_s: float
    busy_s: float
    cores: int
    group_s: float
    by_process: Counter[int]


def read_cpu_times() -> CpuTimes:
    """Read the CPU times. Stolen time is busy; a process's time includes its ended children's."""
    cores, usable = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
    if len(cores) > max(usable):
        cores = [cores[number] for number in usable]
    idle_s = sum(core.idle + core.iowait for core in cores)
    # Linux counts the time of guests in user and nice, too.
    all_s = sum(sum(core) - core.guest - core.guest_nice for core in cores)
    return CpuTimes(
        idle_s=idle_s,
        busy_s=all_s - idle_s,
        cores=len(cores),
        group_s=read_quota_usage_s(),
        by_process=Counter({one.pid: sum(read_times(one)[:4]) for one in psutil.process_iter()}),
    )


class OtherProcesses:
    """Measures the shares of our cores that others used during a block, and that were idle.

    `busiest` is the process that used at least half of what others did, or `OTHER_PROGRAMS`.
    """

    def __init__(self, *, read: Callable[[], CpuTimes] = read_cpu_times) -> None:
        self._read = read
        self.cpu_pct = self.idle_pct = 0.0
        self.busiest = OTHER_PROGRAMS

    @property
    def missed_pct(self) -> float:
        """The share that others used, minus the idle share, which we did not need; at least 0."""
        return max(0.0, self.cpu_pct - self.idle_pct)

    def __enter__(self) -> OtherProcesses:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        before, now = self._before, self._read()
        idle_s, busy_s = now.idle_s - before.idle_s, now.busy_s - before.busy_s
        # A process that started meanwhile counts from its start.
        took = now.by_process - before.by_process
        own = {os.getpid(), *list_children(os.getpid())}
        own_s = sum(took[pid] for pid in own)
        sharing_s = max(0.0, now.group_s - before.group_s - own_s)
        usable = min(1.0, usable_cores() / now.cores)
        if idle_s + busy_s > 0:
            shares = share_of_cores(busy_s, idle_s, own_s, usable=usable, sharing_s=sharing_s)
            self.cpu_pct, self.idle_pct = shares
        named = next((pid for pid, _ in took.most_common() if pid not in own), None)
        if named is not None and took[named] >= max(0.0, busy_s - own_s) / 2 > 0:
            with suppress(psutil.Error):  # it has ended
                self.busiest = f"{psutil.Process(named).name()} (process {named})"


def share_of_cores(
    busy_s: float, idle_s: float, own_s: float, *, usable: float, sharing_s: float = 0.0
) -> tuple[float, float]:
    """Return the shares of the cores that this process may use [%]: others', and the idle one.

    `own_s` is the part of the busy time that is our own work. Our quota allows the share `usable`
    of all time: others take something from us only if they use more than the rest, or, for
    `sharing_s`, the same quota.
    """
    all_s = busy_s + idle_s
    ours_s = usable * all_s
    others_s = max(sharing_s, busy_s - own_s - (all_s - ours_s))
    idle_s = max(0.0, min(idle_s, ours_s - own_s - others_s))
    return 100 * others_s / ours_s, 100 * idle_s / ours_s


def read_times(process: psutil.Process) -> tuple[float, ...]:
    """Return the CPU times of a process and its ended children [s]; () if they are unreadable."""
    try:
        return process.cpu_times()
    except psutil.Error:  # it has ended, or may not be read
        return ()


def list_children(pid: int) -> list[int]:
    """Return the ids of all descendants of a process; none if it has ended or is unreadable."""
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
