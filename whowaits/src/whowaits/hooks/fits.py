"""Times `fit` of Keras, with any backend, and of tf_keras: a callback puts a timed function in the
place of the model's train function (`timed_function.py`).
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from whowaits.callers import find_caller
from whowaits.imports import replaces
from whowaits.session import FIRST_STEP_S, STEP_S, Session
from whowaits.timing.accelerators import default_accelerator
from whowaits.timing.blocks import LEAST_STEPS
from whowaits.timing.waits import Waits
from whowaits.training import Training

from .sources import count_steps, explain_untried, has_cache, strategy_of, tried_dataset
from .timed_function import TimedFunction

MAX_EPOCHS = 100_000  # so that a training lasts as long as it is measured
WRITING = frozenset(("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint"))
# Modules and attributes with which Keras counts the batches of an epoch.
COUNTING = (
    "keras.src.trainers.epoch_iterator",
    "keras.src.backend.tensorflow.trainer",  # in the first versions of Keras 3
    "tf_keras.src.engine.data_adapter",
)
COUNTED = ("_num_batches", "_inferred_steps", "_insufficient_data")
ON_SEVERAL_HOSTS = "the model alone is not timed on several hosts or processes, which synchronize"


class FitWatch:
    def __init__(self, session: Session, waits: Waits) -> None:
        self.session, self.waits = session, waits
        self.active = False  #: whether a `fit` is running
        self.clock: _Clock | None = None  #: the callback that times it
        self._made: set[int] = set()  # ids of train functions that were made while waits were timed

    def patch(self, keras: Any) -> None:
        """Time every `fit` of an imported Keras."""
        owner = next((each for each in keras.Model.__mro__ if "fit" in vars(each)), None)
        if owner is None or getattr(owner.fit, "whowaits", False):
            return
        signature = inspect.signature(owner.fit)

        @replaces(owner, "fit")
        def _(fit: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.active:
                return fit(model, *args, **kwargs)
            if not self.session.here:
                with self.closing(model):  # a callback in its arguments may time it
                    return fit(model, *args, **kwargs)
            short = False
            try:
                bound = signature.bind(model, *args, **kwargs)
                short = count_steps(bound.arguments) < LEAST_STEPS
                if short:  # too short, but perhaps part of a training loop
                    self.session.short_fits += 1
                    self.session.marks += 1
                else:
                    self._begin(keras, model, bound)
            except Exception as error:  # noqa: BLE001 - the script must not fail because of us
                self.session.fail(error)
                return fit(model, *args, **kwargs)
            self.active = True
            try:
                untouched = short or self.session.options.keep
                with contextlib.nullcontext() if untouched else warnings.catch_warnings():
                    if not untouched:  # Keras misses the batches taken here
                        warnings.filterwarnings("ignore", "Your input ran out of data")
                    with self.closing(model):
                        history = fit(*bound.args, **bound.kwargs)
            finally:
                self.active = False
                self.session.heartbeat(expects=None)
            if self.session.repeats and not short:
                self.session.end()  # the rest of the script expects another model than this
            return history

        owner.fit.whowaits = True

    @contextlib.contextmanager
    def closing(self, model: Any) -> Iterator[None]:
        """End the timing of a model's `fit` with the block, even after an interrupt."""
        try:
            yield
        finally:
            if self.clock is not None and self.clock.fitted is model:
                self.clock.close()

    def take(self, take_batch: Callable[[], Any]) -> Any:
        """Take a batch; time the wait if this is the main thread.

        While another thread takes batches, the main thread waits elsewhere.
        """
        if threading.current_thread() is not threading.main_thread():
            return take_batch()
        return self.waits.time(take_batch)

    def patch_counting(self, module: Any) -> None:
        """Let Keras continue after an epoch from which batches were taken for another purpose.

        Otherwise Keras would take the dataset for shorter, and end later epochs or the training.
        """
        for owner in vars(module).values():
            is_own = isinstance(owner, type) and owner.__module__ == module.__name__
            if is_own and "catch_stop_iteration" in vars(owner):
                replaces(owner, "catch_stop_iteration")(self._keep_counts)

    @contextlib.contextmanager
    def _keep_counts(self, catch: Any, epochs: Any) -> Iterator[None]:
        known = {name: getattr(epochs, name) for name in COUNTED if hasattr(epochs, name)}
        with catch(epochs):
            yield
        if self.active and any(each.timing.active for each in self.session.measured):
            vars(epochs).update(known)

    def make_train_function(self, model: Any) -> None:
        """Make a model's train function again if it was made before its waits were timed."""
        if id(model.train_function) not in self._made:
            model.train_function = None
            # An overridden method may not accept `force`, and may not set the attribute.
            model.train_function = model.make_train_function() or model.train_function
            self._made.add(id(model.train_function))

    def _begin(self, keras: Any, model: Any, bound: inspect.BoundArguments) -> None:
        """Open a training, and add the callbacks that time it."""
        facts = _describe(keras, model)
        training = self.session.open(f"model.fit at {find_caller(sys._getframe(1))}", **facts)
        training.dataset = tried_dataset(model, bound.arguments)
        training.untried = explain_untried(model, bound.arguments)
        training.fills_cache = has_cache(bound.arguments.get("x"))
        training.steps = bound.arguments.get("steps_per_epoch")
        facts = {"session": self.session, "training": training}
        callback = make_callback(keras, _Clock, watch=self, **facts)
        first = make_callback(keras, _Pause, clock=callback, **facts)
        given: Any = bound.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            # The list's callbacks know their model already, and the script may use it again.
            bound.arguments["callbacks"] = listed = copy.copy(given)
            listed.callbacks = [first, *given.callbacks, callback]
            for each in (first, callback):
                each.set_model(model)
                each.set_params(getattr(given, "params", None))
        else:
            given = [] if given is None else given
            listed = list(given) if isinstance(given, (list, tuple)) else [given]
            bound.arguments["callbacks"] = [first, *listed, callback]
        if training.timing.active:
            before = bound.arguments.get("initial_epoch", 0)
            training.epochs = bound.arguments.get("epochs", 1) - before
            bound.arguments["epochs"] = before + max(training.epochs, MAX_EPOCHS)
        if training.timing.active or self.session.serves(training):
            self._leave_files_alone(training, bound)
        self.session.heartbeat(expects=FIRST_STEP_S)

    def _leave_files_alone(self, training: Training, bound: inspect.BoundArguments) -> None:
        """Remove callbacks that save: the training has repeated batches and other epochs."""
        given = bound.arguments.get("callbacks")
        if not isinstance(given, list):  # a CallbackList, which has its own list
            given = getattr(given, "callbacks", [])
        saves = [each for each in given if WRITING & {kind.__name__ for kind in type(each).__mro__}]
        if saves:
            given[:] = [each for each in given if each not in saves]
            names = " and ".join(sorted({type(each).__name__ for each in saves}))
            training.notes.append(
                f"left out of the measured training, so that nothing is written: {names}"
            )


def _describe(keras: Any, model: Any) -> dict[str, Any]:
    backend = _backend(keras)
    facts: dict[str, Any] = {"backend": backend}
    if backend == "tensorflow":
        tf = sys.modules["tensorflow"]
        strategy = strategy_of(model)
        kind, replicas = type(strategy).__name__, strategy.num_replicas_in_sync
        facts["on_accelerator"] = bool(tf.config.get_visible_devices("GPU"))
        facts["synchronous"] = not facts["on_accelerator"]
        steps = _steps_per_execution(model)
        if steps > 1:
            facts["synchronous"] = False  # takes the next batch while it works on one
            facts["steps_per_execution"] = steps
            facts["notes"] = [f"steps_per_execution={steps}: a step here is {steps} of the model's"]
        if kind.startswith(("MultiWorkerMirrored", "CollectiveAllReduce")):
            facts["passive_because"] = ON_SEVERAL_HOSTS
        elif replicas > 1:
            facts["passive_because"] = f"the model alone is not timed on {replicas} replicas"
    elif backend == "jax":
        jax = sys.modules["jax"]
        facts["on_accelerator"], facts["synchronous"] = jax.default_backend() != "cpu", False
        if jax.process_count() > 1:
            facts["passive_because"] = ON_SEVERAL_HOSTS
    elif backend == "torch":
        torch = sys.modules["torch"]
        facts["on_accelerator"] = bool(default_accelerator(torch))
        facts["synchronous"] = not facts["on_accelerator"]
        if in_step_with_others(torch):
            facts["passive_because"] = ON_SEVERAL_HOSTS
    else:
        facts["passive_because"] = f"the backend {backend} of Keras is not known"
    return facts


def in_step_with_others(torch: Any) -> bool:
    distributed = torch.distributed
    started = distributed.is_available() and distributed.is_initialized()
    return started and distributed.get_world_size() > 1


def _backend(keras: Any) -> str:
    name = keras.backend.backend() if hasattr(keras.backend, "backend") else "tensorflow"
    return name if keras.__name__ == "keras" else "tensorflow"


def _steps_per_execution(model: Any) -> int:
    named = (getattr(model, f"{each}steps_per_execution", None) for each in ("", "_"))  # tf_keras
    steps = next((each for each in named if each is not None), 1)
    return int(steps if isinstance(steps, int) else steps.numpy())


def make_callback(keras: Any, kind: type, **facts: Any) -> Any:
    """Make one of the classes below a callback of the user's Keras, with `facts` as attributes."""
    made: Any = type(kind.__name__, (kind, keras.callbacks.Callback), {})()
    vars(made).update(keras=keras, **facts)
    return made


class _Pause:
    """A callback that comes before the script's own, so that their time is not limited."""

    model: Any
    session: Session
    training: Training
    clock: _Clock

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prepare for the script's callbacks; end the script if one stopped this epoch early."""
        if self.clock.timed:
            self.clock.timed.close_epoch()
        self.session.heartbeat(expects=None)
        if self.training.timing.active and self.model.stop_training:
            # Each later epoch would stop after a step, too.
            self.training.notes.append("a callback stopped the training within an epoch")
            self.session.end()


class _Clock:
    """The callback that times a `fit`."""

    keras: Any
    session: Session
    watch: FitWatch
    training: Training | None = None
    model: Any
    params: dict[str, Any] | None
    timed: TimedFunction | None = None
    fitted: Any = None  #: the model, while it is timed

    def on_train_begin(self, logs: Any = None) -> None:
        """Replace the model's train function by the timed one."""
        try:
            self.begin()
        except Exception as error:  # noqa: BLE001 - the script must not fail because of us
            self.session.fail(error)
            if self.training is not None:
                self.training.only_watch("its `fit` could not be timed")

    def begin(self) -> None:
        if self.training is None:
            return
        if self.training.backend == "tensorflow":
            self.watch.waits.start(sys.modules["tensorflow"])
            self.watch.make_train_function(self.model)
        self.fitted, self.original = self.model, self.model.train_function
        timed = TimedFunction(self.original, self.session, self.training, self.watch.waits)
        self.fitted.train_function = self.timed = timed
        self.watch.clock = self

    def close(self) -> None:
        """Give the model its own function back, and release the training's data."""
        if self.timed is None:
            return
        self.fitted.train_function, self.timed = self.original, None
        self.watch.clock = None
        if self.training is not None:
            self.training.close()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.timed:
            batches = (self.params or {}).get("steps")
            each = _steps_per_execution(self.model)
            self.timed.open_epoch(math.ceil(batches / each) if batches else None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Continue a measured training unless starved; end an untimed one after its epochs."""
        if self.timed:
            self.timed.close_epoch()
        if self.training:
            self.training.finished += 1
            if self.training.timing.active and self.training.finished >= self.training.epochs:
                self.session.saves.leave_out()
        self.session.heartbeat(expects=None)  # the next epoch may take long to fill a buffer
        is_starved = bool(self.timed and self.timed.is_starved)
        # Other callbacks, such as EarlyStopping, judge by repeated batches in a measured training.
        if is_starved or (self.training and self.training.timing.active):
            self.model.stop_training = is_starved
        elif self.training and not self.timed and self.training.finished >= self.training.epochs:
            self.model.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None:
        """End the epoch's timing; set no time limit for the validation."""
        if self.timed:
            self.timed.close_epoch()
        self.session.heartbeat(expects=None)

    def on_test_end(self, logs: Any = None) -> None:
        self.session.heartbeat(expects=STEP_S)

    def on_train_end(self, logs: Any = None) -> None:
        self.close()


class ReportingClock(_Clock):
    """Times a single `fit`, and prints a report at its end."""

    def begin(self) -> None:
        """Time this `fit`, unless the command or a `watch` does."""
        if not self.watch.active:
            self.training = self.session.open("model.fit", **_describe(self.keras, self.model))
            super().begin()
            self.watch.active = True

    def close(self) -> None:
        if self.timed:
            self.watch.active = False
        super().close()

    def on_train_end(self, logs: Any = None) -> None:
        times = self.timed is not None
        self.close()
        if times:
            self.session.print_report()
