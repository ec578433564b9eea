"""Devices on which PyTorch works after its calls have returned."""

from __future__ import annotations

import sys
from typing import Any

KINDS = ("cuda", "mps", "xpu")  # in the order in which Keras prefers them


def default_accelerator(torch: Any) -> str:
    """The kind that Keras trains on; "" for none."""
    modules = ((kind, getattr(torch, kind, None)) for kind in KINDS)
    return next((kind for kind, each in modules if each and each.is_available()), "")


def uses_cuda() -> bool:
    """Whether PyTorch, if it is imported, uses CUDA already."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def synchronize(torch: Any, kind: str, *device: Any) -> None:
    """Wait until a device has done what was asked of it; without `device`, the current one."""
    wait = getattr(getattr(torch, kind, None), "synchronize", None)
    if wait is not None:
        wait(*(device if kind != "mps" else ()))  # there is one
