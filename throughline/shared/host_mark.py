"""Which machine a process is on, where several share a file system: nobody here can ask whether a
process of another one lives, only how old is what it has left.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache
from pathlib import Path

FORGOTTEN_S = 86_400.0  # after which what another machine has left belongs to nobody
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")


@cache
def host_mark() -> str:
    """Eight hexadecimal digits: of this machine since it was started, and within it of those
    processes, such as a container's, whose numbers say which they are.
    """
    try:
        known = f"{BOOT_ID.read_text().strip()} {PROCESSES.readlink()}"
    except OSError:  # no /proc
        known = os.uname().nodename
    return hashlib.blake2b(known.encode(), digest_size=4).hexdigest()


def is_forgotten(path: Path) -> bool:
    """Whether nobody has changed a file, or the names in a folder, for so long that it is a
    leftover, whosever it was; or it is not there.
    """
    try:
        return time.time() - path.lstat().st_mtime > FORGOTTEN_S
    except OSError:
        return True
