"""When Python searches for garbage: not while a command imports its libraries.

A million objects come then, and all stay; a fifth of a start is looking through them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

USUAL_THRESHOLDS = gc.get_threshold()


def pause_garbage_collection(package: str, modules: Sequence[str]) -> None:
    """Search for none until `collect_garbage_as_usual`, where Python is starting one of these
    modules of a package by `-m`.
    """
    # While Python looks for the module, `-m` stands in its place, before its arguments.
    if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") in {
        f"{package}.{module}" for module in modules
    }:
        gc.set_threshold(1_000_000)


def collect_garbage_as_usual() -> None:
    """Search for garbage as often as Python does by itself, and not among what is imported."""
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)
