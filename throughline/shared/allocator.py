"""Let glibc keep freed memory for the next batch instead of returning it to the kernel.

By default glibc maps every block above 32 MB anew and unmaps it when it is freed. A float batch of
64×224×224×3 (38 MB) then costs ten thousand page faults, without huge pages up to half of an input
pipeline's throughput. glibc's own variables take precedence.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
KEPT_BYTES = 1 << 30
_VARIABLES = {
    M_MMAP_THRESHOLD: "MALLOC_MMAP_THRESHOLD_",
    M_TRIM_THRESHOLD: "MALLOC_TRIM_THRESHOLD_",
}


def raise_malloc_thresholds() -> bool:
    """Let this process reuse freed blocks of up to a gibibyte; return False if glibc refuses."""
    mallopt = ctypes.CDLL(None).mallopt
    wanted = [option for option, variable in _VARIABLES.items() if variable not in os.environ]
    return all(mallopt(option, KEPT_BYTES) == 1 for option in wanted)
