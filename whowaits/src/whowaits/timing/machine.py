"""Cores, CPU time, free memory and other programs' load, from /proc and control groups."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

IDLE_CORES = 0.2  # fewer cores in use count as idle
PAUSE_S, IDLE_PAUSES = 0.02, 3  # idle pauses in a row, because parallel calls pause, too
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
# A control group's files of limit and usage; the first word of the file cache in memory.stat.
GROUP_FILES = ("memory.max", "memory.current", "inactive_file ")
GROUP_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")


def memory_left_bytes() -> int | None:
    """Return the memory that this process can still take, or None if unknown.

    Considers control groups of both versions, with their file caches as free.
    """
    left = [
        int(line.split()[1]) * 1024
        for line in _text(PROC / "meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    for folder, (limit, usage, cached) in _memory_groups():
        most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if most.isdigit() and used.isdigit():
            statistics = _text(folder / "memory.stat").splitlines()
            files = sum(int(line.split()[1]) for line in statistics if line.startswith(cached))
            left.append(int(most) - int(used) + files)
    return max(0, min(left)) if left else None


def _memory_groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield folders of this process's control groups and their parents, with `GROUP_FILES`."""
    for line in _text(PROC / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, names = CGROUP / "memory", GROUP_FILES_V1
        elif not controllers:
            root, names = CGROUP, GROUP_FILES
        else:
            continue
        inner = PurePosixPath(group.strip("/"))
        yield from ((root / each, names) for each in (inner, *inner.parents))


def wait_until_idle(timeout_s: float) -> bool:
    """Wait until this process's threads and children rest; return whether they do in time."""
    deadline, idle = time.perf_counter() + timeout_s, 0
    while idle < IDLE_PAUSES:
        children = children_cpu_s()
        # Read before the measurement: with many processes, reading them is work.
        started, cpu = time.perf_counter(), time.process_time()
        if started >= deadline:
            return False
        time.sleep(PAUSE_S)
        used, passed = time.process_time() - cpu, time.perf_counter() - started
        used += children_cpu_s() - children
        idle = idle + 1 if used < IDLE_CORES * passed else 0
    return True


def children_cpu_s() -> float:
    """Return the CPU time of the living descendants of this process [s]."""
    times = _processes()
    return sum(times[pid].cpu_s for pid in _descendants(times))


def own_cpu_s() -> float:
    """Return the CPU time of this process, all its threads and living descendants [s]."""
    return time.process_time() + children_cpu_s()


@dataclass(frozen=True)
class _Process:
    name: str
    parent: int
    cpu_s: float
    ended_children_s: float = 0.0


class OtherPrograms:
    """Measures other programs' share of this process's cores from now on."""

    def __init__(self) -> None:
        self._busy_s, self._times = _busy_s(), _processes()
        self._started = time.perf_counter()

    def read(self) -> tuple[float, str]:
        """Return other programs' share of the cores so far [%], and who took half of it or more."""
        seconds = time.perf_counter() - self._started
        now = _processes()
        took = {
            pid: each.cpu_s - (self._times[pid].cpu_s if pid in self._times else 0.0)
            for pid, each in now.items()
        }
        own = {os.getpid(), *_descendants(now)}
        mine = _own_cpu_s(now) - _own_cpu_s(self._times)
        others = max(0.0, _busy_s() - self._busy_s - mine)
        named = max((pid for pid in took if pid not in own), key=took.__getitem__, default=None)
        known = named is not None and took[named] >= others / 2 > 0
        who = f"{now[named].name} (process {named})" if named and known else "other programs"
        # A quota does not count: any core that others leave idle can be used.
        share = 100 * others / (seconds * max(1, len(_cores()))) if seconds > 0 else 0.0
        return min(100.0, share), who


def _own_cpu_s(processes: dict[int, _Process]) -> float:
    """Return the CPU time of this process and its descendants, also of ended ones [s]."""
    own = (processes[pid] for pid in {os.getpid(), *_descendants(processes)} if pid in processes)
    return sum(each.cpu_s + each.ended_children_s for each in own)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(_cores()) or os.cpu_count() or 1


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _busy_s() -> float:
    cores, busy = _cores(), 0.0
    for line in _text(PROC / "stat").splitlines():
        words = line.split()
        if words and words[0][3:].isdigit() and int(words[0][3:]) in cores:
            ticks = [int(word) for word in words[1:9]]
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy / _ticks()


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in PROC.glob("[0-9]*"):
        before, _, after = _text(folder / "stat").rpartition(")")
        words = after.split()
        if words:  # otherwise it has ended
            cpu_s = sum(map(int, words[11:13])) / _ticks()
            ended_s = sum(map(int, words[13:15])) / _ticks()
            name = before.partition("(")[2]
            found[int(folder.name)] = _Process(name, int(words[1]), cpu_s, ended_s)
    return found


def _descendants(processes: dict[int, _Process]) -> set[int]:
    children: set[int] = set()
    pending = {os.getpid()}
    while pending:
        pending = {pid for pid, each in processes.items() if each.parent in pending} - children
        children |= pending
    return children


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
