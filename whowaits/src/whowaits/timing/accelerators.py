"""Devices on which PyTorch still works after its calls have returned."""

import sys
from typing import Any

KINDS = ("cuda", "mps", "xpu")  # in Keras' order of preference


def default_accelerator(torch: Any) -> str:
    """Return the kind of accelerator that Keras trains on, "" if it has none."""
    modules = ((kind, getattr(torch, kind, None)) for kind in KINDS)
    return next((kind for kind, each in modules if each and each.is_available()), "")


def uses_cuda() -> bool:
    """Return whether PyTorch is imported and uses CUDA already."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def synchronize(torch: Any, kind: str, *device: Any) -> None:
    """Wait until a device, by default the current one, has finished its work."""
    wait = getattr(getattr(torch, kind, None), "synchronize", None)
    if wait is not None:
        wait(*(device if kind != "mps" else ()))  # MPS has only one
