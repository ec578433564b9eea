"""How much memory this process can still take: what the machine has, and what the control groups
(cgroups) that it is in leave, as those of a container do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil


@dataclass(frozen=True, kw_only=True)
class CgroupVersion:
    """The files of a version of cgroups, and the fields of `memory.stat` that count pages of files:
    of a group with all below it, as its usage does.
    """

    limit: str
    usage: str
    file_pages: tuple[str, str]


_VERSIONS = {
    "cgroup": CgroupVersion(
        limit="memory.limit_in_bytes",
        usage="memory.usage_in_bytes",
        file_pages=("total_active_file", "total_inactive_file"),
    ),
    "cgroup2": CgroupVersion(
        limit="memory.max",
        usage="memory.current",
        file_pages=("active_file", "inactive_file"),
    ),
}


def available_memory(process: Path = Path("/proc/self")) -> int:
    """Bytes that this process can take without swapping and without being killed.

    The least of what the machine has left and of what each cgroup from the process's own up to the
    root leaves below its limit. Pages of files count as free there, as they do in the kernel's
    MemAvailable: it drops them before it kills. `process` is the folder in /proc that names the
    cgroups.
    """
    return max(0, min([psutil.virtual_memory().available, *_left_in_cgroups(process)]))


def _left_in_cgroups(process: Path) -> Iterator[int]:
    for version, folder, mount in memory_cgroups(process):
        for level in (folder, *folder.parents):
            if not level.is_relative_to(mount):
                break
            if (left := _left_below_limit(level, version)) is not None:
                yield left


def memory_cgroups(process: Path) -> Iterator[tuple[CgroupVersion, Path, Path]]:
    """The process's memory cgroup in each hierarchy that is mounted: its version, its folder, and
    the mount's.
    """
    try:
        groups = dict(_groups((process / "cgroup").read_text()))
        mounts = (process / "mountinfo").read_text()
    except OSError:  # no /proc, or none that may be read
        return
    for line in mounts.splitlines():
        # 35 31 0:32 ROOT MOUNT rw,relatime … - TYPE SOURCE OPTIONS
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in groups or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, mount = (_unescape(part) for part in before.split(" ")[3:5])
        group = PurePosixPath(groups[kind])
        # A container may see its own cgroup alone, mounted as if it were the root.
        below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        yield _VERSIONS[kind], Path(mount) / below, Path(mount)


def _groups(lines: str) -> Iterator[tuple[str, str]]:
    """The path of the process's memory cgroup by the type of the file system that shows it."""
    for line in lines.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield "cgroup2", path
        elif "memory" in controllers.split(","):
            yield "cgroup", path


def _unescape(path: str) -> str:
    """A path of mountinfo, where blanks, line breaks and backslashes are octal."""
    return path.encode().decode("unicode_escape").encode("latin-1").decode()


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
