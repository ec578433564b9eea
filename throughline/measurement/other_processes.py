"""What other processes take of this machine while something is measured: how much, what is left
idle, and which of them takes most.

A measurement cannot keep others away, but it can know of them: what they take is all that the
system counts on our cores less what is our own and what a quota of CPU time leaves them anyway.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil

from throughline.shared.limits import read_quota_usage_s, usable_cores

OTHER_PROGRAMS = "other programs"  # who, where no single process took half of it
IDLE = ("idle", "iowait")
IN_OTHERS = ("guest", "guest_nice")  # the system counts these in user and nice, too


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU time since the machine started [s]: `idle_s` and `busy_s` of the `cores` that this
    process may run on, of the group that shares our quota, and of each process by its id.
    """

    idle_s: float
    busy_s: float
    cores: int
    group_s: float
    by_process: Counter[int]


def read_cpu_times() -> CpuTimes:
    """What the system counts now."""
    idle_s, busy_s, cores = _cores_s()
    return CpuTimes(
        idle_s=idle_s,
        busy_s=busy_s,
        cores=cores,
        group_s=read_quota_usage_s(),
        by_process=_cpu_s_by_process(),
    )


class OtherProcesses:
    """Context manager that measures what others do meanwhile; read its values after leaving it.

    `cpu_pct` is what they took and `idle_pct` what nobody took, each of all cores that this process
    may use; `busiest` names the process that took most of it. Those of the ids `own`, with what
    they have started, are no others.
    """

    def __init__(
        self, own: Collection[int] = (), *, read: Callable[[], CpuTimes] = read_cpu_times
    ) -> None:
        self._own, self._read = {os.getpid(), *own}, read
        self.cpu_pct = self.idle_pct = 0.0
        self.busiest = OTHER_PROGRAMS

    @property
    def missed_pct(self) -> float:
        """The share that was missed: while as much was idle, nobody missed it."""
        return max(0.0, self.cpu_pct - self.idle_pct)

    def __enter__(self) -> OtherProcesses:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        before, now = self._before, self._read()
        idle_s, busy_s = now.idle_s - before.idle_s, now.busy_s - before.busy_s
        # One that has started meanwhile counts from its beginning.
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
    """What others took of the cores that this process may use, and what nobody took [%]. All cores
    were so long busy and idle, and busy with our `own` work; a quota makes a share of their time
    `usable` for us: others take something from it only where they take more than the rest, or where
    they share the quota, as they did for `sharing_s`.
    """
    all_s = busy_s + idle_s
    ours_s = usable * all_s
    others_s = max(sharing_s, busy_s - own_s - (all_s - ours_s))
    idle_s = max(0.0, min(idle_s, ours_s - own_s - others_s))
    return 100 * others_s / ours_s, 100 * idle_s / ours_s


def _cores_s() -> tuple[float, float, int]:
    """Idle and busy time of the cores that this process may run on [s], since the machine started,
    and how many they are. Busy is also what a host took for other machines.
    """
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
    """CPU time of every process [s], with that of its children that have ended."""
    return Counter(
        {
            process.pid: sum(times[:4])
            for process in psutil.process_iter()
            if (times := read_times(process))
        }
    )


def read_times(process: psutil.Process) -> tuple[float, ...]:
    """What a process has computed in its own code and in the system's, and its children that have
    ended [s]; nothing of one that has itself.
    """
    try:
        return process.cpu_times()
    except psutil.Error:  # it has ended, or is none of ours to look at
        return ()


def list_children(pid: int) -> list[int]:
    """What a process has started, and these; none where it has ended."""
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _describe(pid: int) -> str:
    """A process by its name and number; it may have ended."""
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return OTHER_PROGRAMS
