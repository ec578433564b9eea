"""When Python searches for garbage: not while a command imports its libraries, nor within a call
that must not be interrupted.

A million objects come with the libraries, and all stay; a fifth of a start is looking through them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

USUAL_THRESHOLDS = gc.get_threshold()


def pause_garbage_collection() -> None:
    """Search for none until `collect_garbage_as_usual`."""
    gc.set_threshold(1_000_000)


def collect_garbage_as_usual() -> None:
    """Search for garbage as often as Python does by itself, and not among what is imported."""
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Search for none in the block, such as around `ast.parse`: until Python 3.11.8 and 3.12.2 it
    fails with SystemError where a finalizer lets other code parse meanwhile (CPython's issue
    106905).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def import_large(name: str) -> ModuleType:
    """A module of many objects, which a command imports only when it needs it."""
    known = name in sys.modules
    if not known:
        pause_garbage_collection()
    module = importlib.import_module(name)
    if not known:
        collect_garbage_as_usual()
    return module


def import_tensorflow_alone() -> None:
    """Import TensorFlow where nobody needs Keras, whose import is half of TensorFlow's."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    import_large("tensorflow")
