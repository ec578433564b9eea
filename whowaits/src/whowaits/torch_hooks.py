"""Where PyTorch's DataLoader gives a batch, and where an optimizer steps."""

from __future__ import annotations

import copy
import functools
import sys
from time import perf_counter
from typing import Any

from .fits import ON_SEVERAL_HOSTS, FitWatch, in_step_with_others
from .imports import ImportWatch
from .loops import LoopWatch, Source
from .session import find_caller
from .waits import Waits


def install(imports: ImportWatch, fits: FitWatch, loops: LoopWatch, waits: Waits) -> None:
    """Watch PyTorch once it has been imported."""
    hooks = _Hooks(fits, loops, waits)
    imports.on_import("torch.utils.data.dataloader", hooks.patch_loader)
    imports.on_import("torch.optim.optimizer", hooks.patch_optimizer)


class _Hooks:
    def __init__(self, fits: FitWatch, loops: LoopWatch, waits: Waits) -> None:
        self._fits, self._loops, self._waits = fits, loops, waits
        self._opening: dict[int, float] = {}  # seconds in which an iterator was made

    def patch_optimizer(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(self._loops.mark)

    def patch_loader(self, module: Any) -> None:
        self._patch_iter(module.DataLoader)
        base = module._BaseDataLoaderIter
        original = base.__next__
        hooks = self

        @functools.wraps(original)
        def take(iterator: Any) -> Any:
            if hooks._fits.active:
                began = perf_counter()
                try:
                    return original(iterator)
                finally:
                    hooks._waits.add(perf_counter() - began)
            return hooks._take(iterator, lambda: original(iterator))

        base.__next__ = base.next = take

    def _patch_iter(self, loader: Any) -> None:
        original = loader.__iter__
        hooks = self

        @functools.wraps(original)
        def make_iterator(loader: Any) -> Any:
            began = perf_counter()
            iterator = original(loader)
            try:
                iterator.whowaits_loop = find_caller(sys._getframe(1))
                hooks._opening[id(iterator)] = perf_counter() - began
            except AttributeError:  # an iterator of another kind: its loop is not timed
                return iterator
            return iterator

        loader.__iter__ = make_iterator

    def _take(self, iterator: Any, take: Any) -> Any:
        torch = sys.modules["torch"]
        session = self._loops.session
        if not session.here:
            return take()
        if not torch.is_grad_enabled():
            return self._loops.pass_by(take)
        where = getattr(iterator, "whowaits_loop", "")
        if not where:
            return take()
        workers = getattr(iterator, "_num_workers", 0)
        source = Source(
            key=where,
            name=lambda: f"the loop at {where}",
            facts=lambda: _facts(torch, workers),
            copy=_copy,
            settle=lambda: _settle(torch),
        )
        opening = self._opening.pop(id(iterator), 0.0)
        return self._loops.pull(source, iterator, take, opening_s=opening)


def _facts(torch: Any, workers: int) -> dict[str, Any]:
    accelerator = bool(torch.cuda.is_initialized())
    in_step = in_step_with_others(torch)
    return {
        "passive_because": ON_SEVERAL_HOSTS if in_step else "",
        "backend": f"PyTorch, DataLoader(num_workers={workers})",
        "on_accelerator": accelerator,
        "synchronous": not accelerator,
    }


def _settle(torch: Any) -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _copy(batch: Any) -> Any:
    """Its own batch: the script may change it, and it may lie in memory shared with workers."""
    return copy.deepcopy(batch)
