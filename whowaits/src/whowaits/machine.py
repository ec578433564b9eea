"""What this machine has, and what other programs take of it: cores, their time, memory left.

Read from /proc, so that nothing needs to be installed; where there is none, nothing is known of
others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

IDLE_CORES = 0.2  # in use that count as none
PAUSE_S, IDLE_PAUSES = 0.02, 3  # in a row: parallel calls pause, too
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that this process may run on, and that its container is given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, period = [*_words(CGROUP / "cpu.max"), "", ""][:2]
    if quota.isdigit() and period.isdigit():
        return max(1, min(cores or 1, round(int(quota) / int(period))))
    return cores or 1


def memory_left_bytes() -> int | None:
    """Memory that is free for a cache, here and in this container; None where it is not known."""
    left = [
        int(line.split()[1]) * 1024
        for line in _text(PROC / "meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    most, used = _text(CGROUP / "memory.max").strip(), _text(CGROUP / "memory.current").strip()
    if most.isdigit() and used.isdigit():
        left.append(int(most) - int(used))
    return max(0, min(left)) if left else None


def wait_until_idle(timeout_s: float) -> bool:
    """Wait until the threads of this process and its children rest; returns whether they do."""
    deadline, idle = time.perf_counter() + timeout_s, 0
    while idle < IDLE_PAUSES:
        children = children_cpu_s()
        # Not over what follows: on a machine with many processes, to read them is work.
        started, cpu = time.perf_counter(), time.process_time()
        if started >= deadline:
            return False
        time.sleep(PAUSE_S)
        used, passed = time.process_time() - cpu, time.perf_counter() - started
        used += children_cpu_s() - children
        idle = idle + 1 if used < IDLE_CORES * passed else 0
    return True


def children_cpu_s() -> float:
    """CPU time of the living children of this process, and of theirs [s]."""
    times = _processes()
    return sum(times[pid].cpu_s for pid in _descendants(times))


@dataclass(frozen=True)
class _Process:
    name: str
    parent: int
    cpu_s: float


@dataclass
class OtherPrograms:
    """What others take of the cores from now on; `read` says how much [% of the usable cores] and
    which program takes most.
    """

    _busy_s: float = field(init=False)
    _times: dict[int, _Process] = field(init=False)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._busy_s, self._times = _busy_s(), _processes()
        self._started = time.perf_counter()

    def read(self) -> tuple[float, str]:
        """So far."""
        seconds = time.perf_counter() - self._started
        now = _processes()
        took = {
            pid: each.cpu_s - (self._times[pid].cpu_s if pid in self._times else 0.0)
            for pid, each in now.items()
        }
        own = {os.getpid(), *_descendants(now)}
        mine = sum(took.get(pid, 0.0) for pid in own)
        others = max(0.0, _busy_s() - self._busy_s - mine)
        named = max((pid for pid in took if pid not in own), key=took.__getitem__, default=None)
        known = named is not None and took[named] >= others / 2 > 0
        who = f"{now[named].name} (process {named})" if named and known else "other programs"
        share = 100 * others / (seconds * usable_cores()) if seconds > 0 else 0.0
        return min(100.0, share), who


def _busy_s() -> float:
    """Time that the usable cores were at work [s], since the machine started."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    busy = 0.0
    for line in _text(PROC / "stat").splitlines():
        words = line.split()
        if words and words[0][3:].isdigit() and int(words[0][3:]) in cores:
            ticks = [int(word) for word in words[1:9]]
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy / _ticks()


def _processes() -> dict[int, _Process]:
    """Every process that can be seen."""
    return dict(_read_processes()) if PROC.is_dir() else {}


def _read_processes() -> Iterator[tuple[int, _Process]]:
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        before, _, after = _text(folder / "stat").rpartition(")")
        words = after.split()
        if words:  # none: it has ended
            cpu_s = sum(int(word) for word in words[11:13]) / _ticks()
            yield int(folder.name), _Process(before.partition("(")[2], int(words[1]), cpu_s)


def _descendants(processes: dict[int, _Process]) -> set[int]:
    """Children of this process, and theirs."""
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


def _words(path: Path) -> list[str]:
    return _text(path).split()
