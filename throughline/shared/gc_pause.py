"""When Python searches for garbage: not while a command imports its libraries.

A million objects come then, and all stay; a fifth of a start is looking through them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from types import ModuleType

USUAL_THRESHOLDS = gc.get_threshold()


def pause_garbage_collection() -> None:
    """Search for none until `collect_garbage_as_usual`."""
    gc.set_threshold(1_000_000)


def collect_garbage_as_usual() -> None:
    """Search for garbage as often as Python does by itself, and not among what is imported."""
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)


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
