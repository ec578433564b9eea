"""Memory and cores that this process can still use, within its control groups (cgroups)."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

KEPT_SHARE = 0.8  # share of the available memory in which a training may keep a split


# By the type of a cgroup's file system: the files of its memory limit and usage, and the prefix of
# the fields in `memory.stat`.
MEMORY_FILES = {
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    "cgroup2": ("memory.max", "memory.current", ""),
}


def available_memory(process: Path = Path("/proc/self")) -> int:
    """Return the bytes that this process can take without swapping or being killed.

    This is the minimum of the machine's available memory and the rest below the limit of each
    cgroup, from the process's own up to the root. Pages of files count as free, because the kernel
    drops them before it kills. `process` is the folder in /proc that lists the cgroups.
    """
    left = [psutil.virtual_memory().available]
    for kind, levels in list_cgroups(process, "memory"):
        below = (_left_below_limit(level, *MEMORY_FILES[kind]) for level in levels)
        left += [each for each in below if each is not None]
    return max(0, min(left))


def usable_cores(process: Path = Path("/proc/self")) -> int:
    """Return the number of usable cores: the allowed ones, or a lower quota, rounded up."""
    quotas = (math.ceil(quota) for quota, _ in _list_quotas(process))
    return min([len(os.sched_getaffinity(0)), *quotas])


def read_quota_usage_s() -> float:
    """Return the CPU time used by the cgroup with this process's lowest quota [s]; 0 if none."""
    quotas = _list_quotas(Path("/proc/self"))
    if not quotas:
        return 0.0
    folder = min(quotas)[1]
    try:
        if (folder / "cpuacct.usage").exists():
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        return int(stat.get("usage_usec", 0)) / 1e6
    except (OSError, ValueError):  # not visible here
        return 0.0


def _list_quotas(process: Path) -> list[tuple[float, Path]]:
    """Return the CPU quotas of a process, in cores, each with its cgroup."""
    return [
        (quota, level)
        for _, levels in list_cgroups(process, "cpu")
        for level in levels
        if (quota := _read_quota(level))
    ]


def list_cgroups(process: Path, controller: str) -> Iterator[tuple[str, list[Path]]]:
    """Yield the process's cgroup of a controller for each mounted hierarchy: the type of its file
    system, and the folders of the cgroup and of those above it.
    """
    try:
        groups = dict(_groups(_read(process / "cgroup"), controller))
        mounts = _read(process / "mountinfo")
    except OSError:  # no /proc, or none that may be read
        return
    for line in mounts.splitlines():
        # 35 31 0:32 ROOT MOUNT rw,relatime … - TYPE SOURCE OPTIONS
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in groups or (kind == "cgroup" and controller not in options.split(",")):
            continue
        root, mount = (_unescape(part) for part in before.split(" ")[3:5])
        group = PurePosixPath(groups[kind])
        # A container may see only its own cgroup, mounted as if it were the root.
        below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        folder = Path(mount) / below
        levels = (folder, *folder.parents)
        yield kind, [level for level in levels if level.is_relative_to(mount)]


def _groups(lines: str, controller: str) -> Iterator[tuple[str, str]]:
    """Yield the process's cgroups, each as the type of its file system and its path."""
    for line in lines.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield "cgroup2", path
        elif controller in controllers.split(","):
            yield "cgroup", path


def _read(file: Path) -> str:
    """Read a file that contains paths, which may not be valid UTF-8."""
    return file.read_text(errors="surrogateescape")


def _unescape(path: str) -> str:
    """Decode a path of mountinfo, in which spaces, line breaks and backslashes are octal."""
    return os.fsdecode(os.fsencode(path).decode("unicode_escape").encode("latin-1"))


def _left_below_limit(folder: Path, limits: str, usages: str, prefix: str) -> int | None:
    """Return the bytes left below the limit of one cgroup; None without a limit."""
    try:
        limit = (folder / limits).read_text().strip()
        if limit == "max":
            return None
        usage = int((folder / usages).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root has no limit; other groups may be invisible
        return None
    pages = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return int(limit) - usage + pages


def _read_quota(folder: Path) -> float | None:
    """Return the number of cores that one cgroup may use; None without a quota."""
    try:
        if (file := folder / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
    except OSError:  # as for memory
        return None
    return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)


def own_memory(process: Path = Path("/proc/self")) -> int:
    """Return the anonymous memory of a process [bytes], without mapped files; 0 if it has ended."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)
