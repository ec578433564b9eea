"""Which machine a process is on, for file systems that several machines share.

A machine cannot ask whether another's process lives. It only sees how old its leftovers are.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache
from pathlib import Path

FORGOTTEN_S = 86_400.0  # after this time, what another machine left is a leftover
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")


@cache
def host_mark() -> str:
    """Return eight hexadecimal digits that identify this machine's boot and process namespace."""
    try:
        known = f"{BOOT_ID.read_text().strip()} {PROCESSES.readlink()}"
    except OSError:  # no /proc
        known = os.uname().nodename
    return hashlib.blake2b(known.encode(), digest_size=4).hexdigest()


def is_forgotten(path: Path) -> bool:
    """Return whether a file or folder is missing or has not changed for a day."""
    try:
        return time.time() - path.lstat().st_mtime > FORGOTTEN_S
    except OSError:
        return True
