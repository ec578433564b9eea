"""Measures what other processes take of this machine: how much, what is idle, who takes most.

A measurement cannot keep others away, but it can detect them. What they take is the system's busy
time on our cores, without our own, and without what a CPU quota leaves to them anyway.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil

from throughline.shared.limits import read_quota_usage_s, usable_cores

OTHER_PROGRAMS = "other programs"  # named if no single process took half of it
IDLE = ("idle", "iowait")
IN_OTHERS = ("guest", "guest_nice")  # the system counts these in user and nice, too


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU time since the machine started [s].

    `idle_s` and `busy_s` are those of the `cores` that this process may use, `group_s` that of the
    control group that shares our quota, `by_process` by process id.
    """

    idle_s: float
    busy_s: float
    cores: int
    group_s: float
    by_process: Counter[int]


def read_cpu_times() -> CpuTimes:
    idle_s, busy_s, cores = _cores_s()
    return CpuTimes(
        idle_s=idle_s,
        busy_s=busy_s,
        cores=cores,
        group_s=read_quota_usage_s(),
        by_process=_cpu_s_by_process(),
    )


class OtherProcesses:
    """Measures what other processes do during a block; read its values after leaving it.

    Attributes:
      cpu_pct: What others took of all cores that this process may use.
      idle_pct: What nobody took of these.
      busiest: The process that took most of it.

    Args:
      own: Ids of processes that do not count as others, nor do their descendants.
    """

    def __init__(
        self, own: Collection[int] = (), *, read: Callable[[], CpuTimes] = read_cpu_times
    ) -> None:
        self._own, self._read = {os.getpid(), *own}, read
        self.cpu_pct = self.idle_pct = 0.0
        self.busiest = OTHER_PROGRAMS

    @property
    def missed_pct(self) -> float:
        """The share that others took beyond the idle share, which would not have been used."""
        return max(0.0, self.cpu_pct - self.idle_pct)

    def __enter__(self) -> OtherProcesses:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        before, now = self._before, self._read()
        idle_s, busy_s = now.idle_s - before.idle_s, now.busy_s - before.busy_s
        # A process that started meanwhile counts from its start.
        took = Counter(
            {pid: seconds - before.by_process[pid] for pid, seconds in now.by_process.items()}
        )
        own = self._own | {each for one in self._own for each in list_children(one)}
        own_s = sum(took[pid] for pid in own)
        sharing_s = max(0.0, now.group_s - before.group_s - own_s)
        if idle_s + busy_s > 0:
            usable = min(1.0, usable_cores() / now.cores)
            self.cpu_pct, self.idle_pct = share_of_cores(
                busy_s, idle_s, own_s, usable=usable, sharing_s=sharing_s
            )
        others_s = max(0.0, busy_s - own_s)
        named = [(pid, seconds) for pid, seconds in took.most_common() if pid not in own]
        if named and named[0][1] >= others_s / 2 > 0:
            self.busiest = _describe(named[0][0])


def share_of_cores(
    busy_s: float, idle_s: float, own_s: float, *, usable: float, sharing_s: float = 0.0
) -> tuple[float, float]:
    """Return what others took of the cores that this process may use, and what nobody took [%].

    Args:
      busy_s, idle_s, own_s: How long all cores were busy, idle, and busy with our own work.
      usable: The share of their time that our quota allows. Others take something from us only if
          they take more than the rest, or share the quota.
      sharing_s: How long others used the shared quota.
    """
    all_s = busy_s + idle_s
    ours_s = usable * all_s
    others_s = max(sharing_s, busy_s - own_s - (all_s - ours_s))
    idle_s = max(0.0, min(idle_s, ours_s - own_s - others_s))
    return 100 * others_s / ours_s, 100 * idle_s / ours_s


def _cores_s() -> tuple[float, float, int]:
    """Return idle and busy time [s] of this process's cores, and their number; steal is busy."""
    cores = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0)
    if len(cores) > max(usable):
        cores = [cores[number] for number in usable]
    fields = cores[0]._fields
    idle = sum(getattr(core, name) for core in cores for name in fields if name in IDLE)
    busy = sum(
        getattr(core, name) for core in cores for name in fields if name not in IDLE + IN_OTHERS
    )
    return idle, busy, len(cores)


def _cpu_s_by_process() -> Counter[int]:
    """Return the CPU time [s] of every process, with that of its ended children."""
    return Counter(
        {
            process.pid: sum(times[:4])
            for process in psutil.process_iter()
            if (times := read_times(process))
        }
    )


def read_times(process: psutil.Process) -> tuple[float, ...]:
    """Return the CPU times of a process and its ended children [s]; () if it has ended."""
    try:
        return process.cpu_times()
    except psutil.Error:  # it has ended, or may not be read
        return ()


def list_children(pid: int) -> list[int]:
    """Return the descendants of a process; none if it has ended."""
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _describe(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return OTHER_PROGRAMS
