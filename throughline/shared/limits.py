"""How much memory this process can still take, and how many cores: what the machine has, and what
the control groups (cgroups) that it is in leave, as those of a container do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

KEPT_SHARE = 0.8  # of the memory that is available, that a training may keep a split in


@dataclass(frozen=True, kw_only=True)
class CgroupVersion:
    """The files of memory in a version of cgroups, and the fields of `memory.stat` that count pages
    of files: of a group with all below it, as its usage does.
    """

    limit: str
    usage: str
    file_pages: tuple[str, str]


VERSIONS = {
    "cgroup": CgroupVersion(
        limit="memory.limit_in_bytes",
        usage="memory.usage_in_bytes",
        file_pages=("total_active_file", "total_inactive_file"),
    ),
    "cgroup2": CgroupVersion(
        limit="memory.max", usage="memory.current", file_pages=("active_file", "inactive_file")
    ),
}


def available_memory(process: Path = Path("/proc/self")) -> int:
    """Bytes that this process can take without swapping and without being killed.

    The least of what the machine has left and of what each cgroup from the process's own up to the
    root leaves below its limit. Pages of files count as free there, as they do in the kernel's
    MemAvailable: it drops them before it kills. `process` is the folder in /proc that names the
    cgroups.
    """
    left = (
        _left_below_limit(level, VERSIONS[kind])
        for kind, levels in list_cgroups(process, "memory")
        for level in levels
    )
    return max(
        0, min([psutil.virtual_memory().available, *(each for each in left if each is not None)])
    )


def usable_cores(process: Path = Path("/proc/self")) -> int:
    """Cores that this process can keep busy: those that it may run on, or fewer where a cgroup has
    a quota of CPU time, of which a part counts as one more.
    """
    quotas = (math.ceil(quota) for quota, _ in _list_quotas(process))
    return min([len(os.sched_getaffinity(0)), *quotas])


def read_quota_usage_s(process: Path = Path("/proc/self")) -> float:
    """CPU time of all that shares the least quota that this process has [s]; 0 without a quota."""
    quotas = _list_quotas(process)
    return _read_usage_s(min(quotas)[1]) if quotas else 0.0


def _list_quotas(process: Path) -> list[tuple[float, Path]]:
    """The quotas of CPU time that a process has, in cores, each with its cgroup."""
    return [
        (quota, level)
        for _, levels in list_cgroups(process, "cpu")
        for level in levels
        if (quota := _read_quota(level))
    ]


def _read_usage_s(folder: Path) -> float:
    """CPU time of a cgroup of either version [s]; 0 where it does not say."""
    try:
        if (folder / "cpuacct.usage").exists():
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        return int(stat.get("usage_usec", 0)) / 1e6
    except (OSError, ValueError):  # out of sight
        return 0.0


def list_cgroups(process: Path, controller: str) -> Iterator[tuple[str, list[Path]]]:
    """The process's cgroup of this controller in each hierarchy that is mounted: the type of its
    file system, and the folders of the cgroup and of those above it.
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
        # A container may see its own cgroup alone, mounted as if it were the root.
        below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        folder = Path(mount) / below
        levels = (folder, *folder.parents)
        yield kind, [level for level in levels if level.is_relative_to(mount)]


def _groups(lines: str, controller: str) -> Iterator[tuple[str, str]]:
    """The path of the process's cgroup by the type of the file system that shows it."""
    for line in lines.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield "cgroup2", path
        elif controller in controllers.split(","):
            yield "cgroup", path


def _read(file: Path) -> str:
    """The text of a file with paths in it, which need be no UTF-8."""
    return file.read_text(errors="surrogateescape")


def _unescape(path: str) -> str:
    """A path of mountinfo, where blanks, line breaks and backslashes are octal."""
    return os.fsdecode(os.fsencode(path).decode("unicode_escape").encode("latin-1"))


def _left_below_limit(folder: Path, version: CgroupVersion) -> int | None:
    """Bytes up to the limit of one cgroup; None where it has none."""
    try:
        limit = (folder / version.limit).read_text().strip()
        if limit == "max":
            return None
        usage = int((folder / version.usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root has no limit, and others' may be out of sight
        return None
    return int(limit) - usage + sum(int(stat.get(name, 0)) for name in version.file_pages)


def _read_quota(folder: Path) -> float | None:
    """How many cores' time one cgroup may take; None where it has no quota."""
    try:
        if (file := folder / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
    except OSError:  # as of memory
        return None
    return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)


def own_memory(process: Path = Path("/proc/self")) -> int:
    """Bytes that a process holds and that cannot be dropped: not the pages of mapped files; 0 of
    one that has ended.
    """
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)
