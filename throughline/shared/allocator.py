"""Keeping freed memory for the next batch instead of giving it back to the kernel each time.

glibc maps every block above 32 MB again and unmaps it when it is freed: a float batch of
64×224×224×3 (38 MB) then costs ten thousand page faults, each time. Where the kernel does not back
such blocks with huge pages, that has cost up to half of an input pipeline's throughput. The same
could be had by `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` in the environment, which win.
"""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
KEPT_BYTES = 1 << 30
_VARIABLES = {
    M_MMAP_THRESHOLD: "MALLOC_MMAP_THRESHOLD_",
    M_TRIM_THRESHOLD: "MALLOC_TRIM_THRESHOLD_",
}


def raise_malloc_thresholds() -> bool:
    """Let this process reuse blocks of up to a gibibyte; returns whether glibc accepts that.
    Without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = [option for option, variable in _VARIABLES.items() if variable not in os.environ]
    return all(mallopt(option, KEPT_BYTES) == 1 for option in wanted)
