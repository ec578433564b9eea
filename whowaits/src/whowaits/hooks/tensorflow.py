"""Hooks into TensorFlow's iterators, for Keras' train functions and loops with a GradientTape."""

import sys
from collections.abc import Callable
from typing import Any

from whowaits.callers import find_caller, is_inside_keras
from whowaits.changes.places import remember
from whowaits.imports import ImportWatch, replaces
from whowaits.timing.accelerators import synchronize, uses_cuda

from .fits import FitWatch
from .loop_state import Source
from .loops import LoopWatch
from .sources import has_cache

REFUSED = ("TPUStrategy", "ParameterServerStrategy")
LOOP = (
    "no change is tried in a loop of the script's own; what helps its dataset: maps with"
    " num_parallel_calls, a cache before random draws, .prefetch(tf.data.AUTOTUNE)"
)
# Modules, and their classes of iterators.
ITERATORS = {
    "tensorflow.python.data.ops.iterator_ops": "OwnedIterator",
    "tensorflow.python.distribute.input_lib": "DistributedIteratorBase",
}
FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"


def install(imports: ImportWatch, fits: FitWatch, loops: LoopWatch) -> None:
    hooks = _Hooks(fits, loops)
    for name in ITERATORS:
        imports.on_import(name, hooks.patch_iterators)
    imports.on_import("tensorflow.python.data.ops.dataset_ops", hooks.patch_datasets)
    imports.on_import("tensorflow.python.eager.backprop", hooks.patch_gradients)
    imports.on_import(FUNCTIONS, hooks.patch_functions)
    for name in ("tpu_strategy", "parameter_server_strategy", "parameter_server_strategy_v2"):
        imports.on_import(f"tensorflow.python.distribute.{name}", hooks.patch_refused)


class _Hooks:
    def __init__(self, fits: FitWatch, loops: LoopWatch) -> None:
        self._fits, self._loops = fits, loops

    def patch_iterators(self, module: Any) -> None:
        for name in ("__next__", "get_next", "get_next_as_optional"):
            self._patch(getattr(module, ITERATORS[module.__name__]), name)

    def patch_datasets(self, module: Any) -> None:
        """Note on every dataset the line of the script that made it, and the call."""

        @replaces(module.DatasetV2, "__init__")
        def _(initialize: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            initialize(dataset, *args, **kwargs)
            if module.context.executing_eagerly():  # else it is within a function
                remember(dataset, sys._getframe(2))

    def patch_refused(self, module: Any) -> None:
        """Refuse strategies whose workers take batches elsewhere, once one is made."""
        for name, strategy in vars(module).items():
            if name.startswith(REFUSED) and isinstance(strategy, type) and "Extended" not in name:
                self._patch_strategy(strategy)

    def _patch_strategy(self, strategy: Any) -> None:
        session = self._loops.session

        @replaces(strategy, "__init__")
        def _(initialize: Any, made: Any, *args: Any, **kwargs: Any) -> None:
            initialize(made, *args, **kwargs)
            if type(made) is strategy and session.here:
                session.refuse(
                    f"a {strategy.__name__} was made: its workers take batches where whowaits does"
                    " not see them, so nothing is measured"
                )

    def patch_gradients(self, module: Any) -> None:
        @replaces(module.GradientTape, "gradient")
        def _(gradient: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._fits.active:
                self._loops.mark()
            return gradient(*args, **kwargs)

    def patch_functions(self, module: Any) -> None:
        """Mark each call of a `tf.function` that takes gradients, not only its tracing."""

        @replaces(module.Function, "__call__")
        def _(call: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._fits.active:
                return call(function, *args, **kwargs)
            before = self._loops.session.marks
            result = call(function, *args, **kwargs)
            if self._loops.session.marks > before:
                function.whowaits_trains = True
            elif getattr(function, "whowaits_trains", False):
                self._loops.mark()
            return result

    def _patch(self, owner: Any, name: str) -> None:
        if name not in vars(owner):
            return

        @replaces(owner, name)
        def _(take: Any, iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if self._fits.active:
                return self._fits.take(lambda: take(iterator, *args, **kwargs))
            return self._take(iterator, lambda: take(iterator, *args, **kwargs))

    def _take(self, iterator: Any, take: Callable[[], Any]) -> Any:
        tf = sys.modules["tensorflow"]
        session = self._loops.session
        eager = session.here and hasattr(tf, "executing_eagerly") and tf.executing_eagerly()
        if not eager:
            return take()
        caller = sys._getframe(3)
        if is_inside_keras(caller):  # evaluate, predict, adapt
            return self._loops.pass_by(take, validates=False)
        where = find_caller(caller)
        if not where:
            return self._loops.pass_by(take)
        owned = type(iterator).__name__ == "OwnedIterator"
        dataset = getattr(iterator, "_dataset", None)  # a kept source holds no iterator
        source = Source(
            key=where,
            name=lambda: f"the loop at {where}",
            facts=lambda: {**_facts(tf, owned=owned), "fills_cache": has_cache(dataset)},
            copy=lambda batch: batch,  # tensors are immutable
            settle=lambda: _settle(tf),
        )
        return self._loops.pull(source, iterator, take)


def _settle(tf: Any) -> None:
    """Wait for all devices, also PyTorch's: it may train on batches from tf.data."""
    getattr(tf.test.experimental, "sync_devices", lambda: None)()
    if uses_cuda():
        synchronize(sys.modules["torch"], "cuda")


def _facts(tf: Any, *, owned: bool) -> dict[str, Any]:
    accelerator = bool(tf.config.get_visible_devices("GPU")) or uses_cuda()
    facts: dict[str, Any] = {
        "backend": "tensorflow",
        "on_accelerator": accelerator,
        "synchronous": not accelerator,
        "untried": LOOP,
    }
    if not owned:
        facts["passive_because"] = "the model alone is not timed under a distribution strategy"
    return facts
