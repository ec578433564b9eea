"""When Python searches for garbage: not while a command imports its libraries.

A million objects come then, and all stay; a fifth of a start is looking through them.
"""

from __future__ import annotations

import gc

USUAL_THRESHOLDS = gc.get_threshold()


def pause_garbage_collection() -> None:
    """Search for none until `collect_garbage_as_usual`."""
    gc.set_threshold(1_000_000)


def collect_garbage_as_usual() -> None:
    """Search for garbage as often as Python does by itself, and not among what is imported."""
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)
