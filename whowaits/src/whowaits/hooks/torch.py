"""Hooks into PyTorch: where a DataLoader gives a batch, and where an optimizer steps."""

import contextlib
import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any

from whowaits.callers import calls_from, find_call, find_caller, is_inside_keras
from whowaits.changes.loaders import LoaderPlace, made_loaders
from whowaits.imports import ImportWatch, replaces
from whowaits.timing.accelerators import synchronize
from whowaits.timing.batches import copy_batch
from whowaits.timing.machine import OtherPrograms
from whowaits.timing.verdict import say_disturbed
from whowaits.training import Training

from .fits import ON_SEVERAL_HOSTS, FitWatch, in_step_with_others
from .loop_state import Source, refer_to
from .loops import LoopWatch
from .sources import explain_loader


def install(imports: ImportWatch, fits: FitWatch, loops: LoopWatch) -> None:
    hooks = _Hooks(fits, loops)
    imports.on_import("torch.utils.data.dataloader", hooks.patch_loader)
    imports.on_import("torch.optim.optimizer", hooks.patch_optimizer)
    imports.on_import("torch.optim.lr_scheduler", hooks.patch_schedules)
    imports.on_import("keras", hooks.patch_keras)
    imports.on_import("transformers.training_args", hooks.patch_arguments)


class _Hooks:
    def __init__(self, fits: FitWatch, loops: LoopWatch) -> None:
        self._fits, self._loops = fits, loops
        self._opening: dict[int, float] = {}  # time to make an iterator [s]
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._devices: set[Any] = set()  # devices of the parameters that are trained
        self._arguments_at = ""  # place of the script's TrainingArguments of transformers
        self._places: dict[int, LoaderPlace] = {}  # the script's calls for loaders, by dataset

    def patch_optimizer(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(self._mark)

    def _mark(self, optimizer: Any, *_: Any) -> None:
        self._loops.mark()
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            for group in optimizer.param_groups:
                self._devices.update(each.device for each in group["params"])

    def patch_schedules(self, module: Any) -> None:
        """Keep learning rate schedules from advancing in steps on batches from memory."""
        for owner in list(vars(module).values()):
            is_own = isinstance(owner, type) and owner.__module__ == module.__name__
            if is_own and "step" in vars(owner):
                replaces(owner, "step")(self._step_schedule)

    def _step_schedule(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        return None if self._loops.repeats else step(*args, **kwargs)

    def patch_keras(self, keras: Any) -> None:
        """Mark steps of Keras' optimizers in loops that use them with PyTorch."""
        if not hasattr(keras.backend, "backend") or keras.backend.backend() != "torch":
            return
        owner = next(each for each in keras.optimizers.Optimizer.__mro__ if "apply" in vars(each))

        @replaces(owner, "apply")
        def _(apply: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._fits.active:
                self._loops.mark()
            return apply(*args, **kwargs)

    def patch_arguments(self, module: Any) -> None:
        @replaces(module.TrainingArguments, "__post_init__")
        def _(finish: Any, arguments: Any, *args: Any, **kwargs: Any) -> Any:
            self._arguments_at = find_caller(sys._getframe(1))
            if self._loops.session.ends_the_first:
                if arguments.max_steps > 0:  # a stream has no length, and needs `max_steps`
                    arguments.max_steps = 10**9
                else:
                    arguments.num_train_epochs = 1e6
            return finish(arguments, *args, **kwargs)

    def patch_loader(self, module: Any) -> None:
        self._patch_init(module.DataLoader)
        self._patch_iter(module.DataLoader)
        base = module._BaseDataLoaderIter

        @replaces(base, "__next__")
        def _(take: Any, iterator: Any) -> Any:
            if self._fits.active:
                return self._fits.take(lambda: take(iterator))
            return self._take(iterator, lambda: take(iterator))

        base.next = base.__next__

    def _patch_init(self, owner: Any) -> None:
        @replaces(owner, "__init__")
        def _(init: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            init(loader, *args, **kwargs)
            with contextlib.suppress(Exception):  # another kind of loader: no advice on its call
                loader.whowaits_place = self._find_place(loader, sys._getframe(2))
                made_loaders.add(loader)

    def _find_place(self, loader: Any, caller: Any) -> LoaderPlace:
        """Return the script's call that sets a loader's keywords, also for a library's loader."""
        call, dataset = find_call(caller), id(loader.dataset)
        if call.called in ("", type(loader).__name__):
            self._places[dataset] = LoaderPlace(call.where, call.called or "DataLoader")
        elif self._arguments_at and calls_from(caller, "transformers."):
            return LoaderPlace(self._arguments_at, "TrainingArguments", "dataloader_")
        return self._places.get(dataset, LoaderPlace(call.where))

    def _patch_iter(self, owner: Any) -> None:
        @replaces(owner, "__iter__")
        def _(make_iterator: Any, loader: Any) -> Any:
            clock = self._loops.session.clock
            began = clock()
            iterator = make_iterator(loader)
            with contextlib.suppress(AttributeError):  # another iterator's loop is not timed
                # A loader is one loop, on whatever line its epochs start.
                iterator.whowaits_line = find_caller(sys._getframe(1))
                where = getattr(loader, "whowaits_loop", "") or iterator.whowaits_line
                loader.whowaits_loop = iterator.whowaits_loop = where
                iterator.whowaits_loader = self._refer_to_loader(loader)
                self._opening[id(iterator)] = clock() - began
            return iterator

    def _refer_to_loader(self, loader: Any) -> Callable[[], Any]:
        """Return a function that returns the loader, or None once nobody holds it.

        A loader whose changes may be tried is kept alive, except one with persistent workers.
        """
        persists = getattr(loader, "persistent_workers", False)
        is_held = self._loops.session.ends_the_first and not persists
        return (lambda: loader) if is_held else weakref.ref(loader)

    def _take(self, iterator: Any, take: Any) -> Any:
        torch = sys.modules["torch"]
        session = self._loops.session
        if not session.here:
            return take()
        caller = sys._getframe(3)
        if is_inside_keras(caller):  # evaluate, predict, adapt
            return self._loops.pass_by(take, validates=False)
        if not torch.is_grad_enabled():
            return self._loops.pass_by(take)
        where = getattr(iterator, "whowaits_loop", None)
        if where is None:  # made by a subclass of DataLoader, such as torchdata's
            where = iterator.whowaits_loop = find_caller(caller)
        if not where:
            return take()
        line = getattr(iterator, "whowaits_line", where)
        # A trainer that counts its steps leaves iterators before their end; none is kept alive.
        current = refer_to(iterator)
        loader = getattr(iterator, "whowaits_loader", lambda: None)
        source = Source(
            key=where,
            name=lambda: f"the loop at {line}",
            facts=lambda: _facts(torch, current(), self._accelerators(torch)),
            copy=lambda batch: copy_batch(torch, batch),
            keep=lambda batch: copy_batch(torch, batch, to_keep=True),
            settle=lambda: self._settle(torch),
            buffered=getattr(iterator, "_num_workers", 1) > 0,
            steps=lambda: operator.length_hint(current()) or None,
            tries=lambda training: self._try_changes(torch, loader(), training),
        )
        opening = self._opening.pop(id(iterator), None)
        return self._loops.pull(source, iterator, take, opening_s=opening)

    def _try_changes(self, torch: Any, loader: Any, training: Training) -> Any:
        """Yield batches of copies of a loader until its changes are tried or the time is over."""
        from whowaits.changes.loader_trials import CannotBeTried, ServedLoader
        from whowaits.changes.proof import answer

        if loader is None:
            training.notes.append("no change is tried: the script does not keep its DataLoader")
            return
        session, others = self._loops.session, OtherPrograms()
        place = getattr(loader, "whowaits_place", LoaderPlace())
        deadline = session.trials_end(training)
        trials = ServedLoader(torch, loader, place, training.timing, deadline=deadline)
        if session.options.channel:
            yield from answer(trials, *session.options.channel)
            return
        training.changes, training.untried = trials.found, ""
        try:
            yield from trials.run()
        except CannotBeTried as reason:
            training.notes.append(f"no change is tried: {reason}")
        training.notes += [*trials.refused, *say_disturbed(others)]

    def _accelerators(self, torch: Any) -> set[Any]:
        """Return the accelerators in use: the parameters', and CUDA's current one if set up."""
        devices = {each for each in self._devices if each.type != "cpu"}
        if torch.cuda.is_initialized():
            devices.add(torch.device("cuda", torch.cuda.current_device()))
        return devices

    def _settle(self, torch: Any) -> None:
        for device in self._accelerators(torch):
            synchronize(torch, device.type, device)


def _facts(torch: Any, iterator: Any, accelerators: set[Any]) -> dict[str, Any]:
    workers = getattr(iterator, "_num_workers", 0)
    in_step = in_step_with_others(torch)
    return {
        "passive_because": ON_SEVERAL_HOSTS if in_step else "",
        "untried": explain_loader(iterator),
        "backend": f"PyTorch, DataLoader(num_workers={workers})",
        "on_accelerator": bool(accelerators),
        "synchronous": not accelerators,
    }
