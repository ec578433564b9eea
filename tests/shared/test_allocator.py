"""Freed memory stays with the process, unless its environment says otherwise."""

from __future__ import annotations

import pytest

from tests.support.project import run_python

MIB = 1 << 20
KEPT_AFTER_FREE = """
import psutil
from throughline.shared.allocator import raise_malloc_thresholds
agreed = raise_malloc_thresholds() if {raised} else None
before = psutil.Process().memory_info().rss
block = b"x" * (64 << 20)
del block
print(agreed, psutil.Process().memory_info().rss - before)
"""
GLIBC_S_OWN = {"MALLOC_MMAP_THRESHOLD_": str(MIB), "MALLOC_TRIM_THRESHOLD_": str(MIB)}


@pytest.mark.parametrize(
    ("raised", "variables", "kept"),
    [(True, {}, True), (True, GLIBC_S_OWN, False), (False, {}, False)],
    ids=["raised", "set by the user", "as it is"],
)
def test_a_freed_batch_is_kept_for_the_next_one(raised, variables, kept):
    done = run_python(KEPT_AFTER_FREE.format(raised=raised), without=("MALLOC_",), **variables)
    agreed, kept_bytes = done.stdout.split()
    assert agreed == str(raised or None)
    assert (int(kept_bytes) > 60 * MIB) is kept
