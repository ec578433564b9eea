"""Freed memory stays with the process, unless its environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from project import ROOT

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
    known = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", KEPT_AFTER_FREE.format(raised=raised)],
        cwd=ROOT,
        env={**known, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    agreed, kept_bytes = done.stdout.split()
    assert agreed == str(raised or None)
    assert (int(kept_bytes) > 60 * MIB) is kept
