"""Pauses Python's garbage collection during imports, and in calls that it must not interrupt.

The libraries' million objects all stay; searching them for garbage takes a fifth of startup time.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

USUAL_THRESHOLDS = gc.get_threshold()


def pause_garbage_collection() -> None:
    """Collect almost no garbage until `collect_garbage_as_usual`."""
    gc.set_threshold(1_000_000)


def collect_garbage_as_usual() -> None:
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage in the block, for example around `ast.parse`.

    Until Python 3.11.8 and 3.12.2, `ast.parse` fails with SystemError if a finalizer lets other
    code parse at the same time (CPython's issue 106905).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def import_large(name: str) -> None:
    """Import a large module, without garbage collection meanwhile, if it is not imported yet."""
    if name not in sys.modules:
        pause_garbage_collection()
        importlib.import_module(name)
        collect_garbage_as_usual()


def import_tensorflow_alone() -> None:
    """Import TensorFlow without Keras, whose import takes half as long as TensorFlow's own."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    import_large("tensorflow")
