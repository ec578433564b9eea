"""`fit` of Keras (of every backend) and of tf_keras under the clock: a callback puts a timed
function in the place of the model's train function while a `fit` lasts.

`timed_function.py` has that function; here is what a `fit` is given and what it trains on.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from whowaits.callers import find_caller
from whowaits.session import FIRST_STEP_S, STEP_S, Session, Training
from whowaits.timing.accelerators import default_accelerator
from whowaits.timing.blocks import LEAST_STEPS
from whowaits.timing.waits import Waits

from .sources import count_steps, explain_untried, has_cache, tried_dataset
from .timed_function import TimedFunction

MAX_EPOCHS = 100_000  # so that a training lasts as long as it is measured
WRITING = frozenset(("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint"))
# Where Keras counts the batches of an epoch, and by which names.
COUNTING = (
    "keras.src.trainers.epoch_iterator",
    "keras.src.backend.tensorflow.trainer",  # of the first versions of Keras 3
    "tf_keras.src.engine.data_adapter",
)
COUNTED = ("_num_batches", "_inferred_steps", "_insufficient_data")
ON_SEVERAL_HOSTS = "the model alone is not timed on several hosts, which train in step"


class FitWatch:
    """Times every `fit` of a process."""

    def __init__(self, session: Session, waits: Waits) -> None:
        self.session, self.waits = session, waits
        self.active = False  #: whether a `fit` is running
        self.clock: _Clock | None = None  #: that times it
        self._made: set[int] = set()  # train functions, by their id

    def patch(self, keras: Any) -> None:
        """Time every `fit` of a Keras that has been imported."""
        owner = next((each for each in keras.Model.__mro__ if "fit" in vars(each)), None)
        if owner is None or getattr(owner.fit, "whowaits", False):
            return
        original = owner.fit
        signature = inspect.signature(original)
        watch = self

        @functools.wraps(original)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            if watch.active:
                return original(model, *args, **kwargs)
            if not watch.session.here:
                with watch.closing(model):  # it may have a callback that times it
                    return original(model, *args, **kwargs)
            short = False
            try:
                bound = signature.bind(model, *args, **kwargs)
                short = count_steps(bound.arguments) < LEAST_STEPS
                if short:  # no training, but maybe a step of a loop that is one
                    watch.session.short_fits += 1
                    watch.session.marks += 1
                else:
                    watch._begin(keras, model, bound)
            except Exception as error:  # noqa: BLE001 - the script must not fail for our sake
                watch.session.fail(error)
                return original(model, *args, **kwargs)
            watch.active = True
            try:
                untouched = short or watch.session.options.keep
                with contextlib.nullcontext() if untouched else warnings.catch_warnings():
                    if not untouched:  # what is taken here is missing there
                        warnings.filterwarnings("ignore", "Your input ran out of data")
                    with watch.closing(model):
                        history = original(*bound.args, **bound.kwargs)
            finally:
                watch.active = False
                watch.session.beat(expects=None)
            if watch.session.repeats and not short:
                watch.session.end()  # what follows is meant for another model than this one
            return history

        setattr(fit, "whowaits", True)  # noqa: B010 - a function with an attribute
        owner.fit = fit

    @contextlib.contextmanager
    def closing(self, model: Any) -> Iterator[None]:
        """Whatever ends the `fit` of a model within, an interrupt as well, ends its timing."""
        try:
            yield
        finally:
            if self.clock is not None and self.clock.fitted is model:
                self.clock.close()

    def take(self, take_batch: Callable[[], Any]) -> Any:
        """A batch of the `fit` that is running: waited for, unless another thread takes it, on
        which the one that trains waits elsewhere.
        """
        if threading.current_thread() is not threading.main_thread():
            return take_batch()
        return self.waits.time(take_batch)

    def patch_counting(self, module: Any) -> None:
        """Let Keras go on after an epoch from which batches were taken for another purpose: it
        would take the dataset for shorter than it is, and end later epochs there, or the training.
        """
        for owner in vars(module).values():
            is_own = isinstance(owner, type) and owner.__module__ == module.__name__
            if is_own and "catch_stop_iteration" in vars(owner):
                self._patch_counting(owner)

    def _patch_counting(self, owner: Any) -> None:
        original = owner.catch_stop_iteration
        watch = self

        @contextlib.contextmanager
        def catch(epochs: Any) -> Iterator[None]:
            known = {name: getattr(epochs, name) for name in COUNTED if hasattr(epochs, name)}
            with original(epochs):
                yield
            if watch.active and any(each.timing.active for each in watch.session.measured):
                vars(epochs).update(known)

        owner.catch_stop_iteration = catch

    def make_train_function(self, model: Any) -> None:
        """Make a train function again that was made before its waits were timed."""
        if id(model.train_function) not in self._made:
            model.train_function = None
            # The model's own may take no `force`, and set nothing.
            model.train_function = model.make_train_function() or model.train_function
            self._made.add(id(model.train_function))

    def _begin(self, keras: Any, model: Any, bound: inspect.BoundArguments) -> None:
        """Open a training, and have its callback called."""
        facts = _describe(keras, model)
        training = self.session.open(f"model.fit at {find_caller(sys._getframe(1))}", **facts)
        training.dataset = tried_dataset(model, bound.arguments)
        training.untried = explain_untried(model, bound.arguments)
        training.fills_cache = has_cache(bound.arguments.get("x"))
        training.steps = bound.arguments.get("steps_per_epoch")
        callback = _Clock.of(keras, self.session, self)
        callback.training = training
        first = _Pause.of(keras, self.session, training, callback)
        given: Any = bound.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            # Its parts know what they train already, and it may be given again.
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
            training.epochs = bound.arguments.get("epochs", 1)
            bound.arguments["epochs"] = max(training.epochs, MAX_EPOCHS)
            self._leave_files_alone(training, bound)
        self.session.beat(expects=FIRST_STEP_S)

    def _leave_files_alone(self, training: Training, bound: inspect.BoundArguments) -> None:
        """Leave callbacks out that write what a later training would go on from: this one trains
        on repeated batches, for other epochs than it is asked to.
        """
        given = bound.arguments.get("callbacks")
        if not isinstance(given, list):  # one CallbackList, which has its own
            given = getattr(given, "callbacks", [])
        left_out = [each for each in given if WRITING.intersection(_names(type(each)))]
        if left_out:
            given[:] = [each for each in given if each not in left_out]
            names = " and ".join(sorted({type(each).__name__ for each in left_out}))
            training.notes.append(
                f"{names} is left out of the measured training, and writes nothing"
            )


def _names(kind: type) -> set[str]:
    return {each.__name__ for each in kind.__mro__}


def _describe(keras: Any, model: Any) -> dict[str, Any]:
    """On what a model is trained."""
    backend = _backend(keras)
    facts: dict[str, Any] = {"backend": backend}
    if backend == "tensorflow":
        tf = sys.modules["tensorflow"]
        strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
        kind, replicas = type(strategy).__name__, strategy.num_replicas_in_sync
        facts["on_accelerator"] = bool(tf.config.get_visible_devices("GPU"))
        facts["synchronous"] = not facts["on_accelerator"]
        steps = _steps_per_execution(model)
        if steps > 1:
            facts["synchronous"] = False  # takes the next batch while it works on one
            facts["steps_per_execution"] = steps
            facts["notes"] = [f"steps_per_execution={steps}: a step here is so many"]
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
        facts["passive_because"] = f"the backend {backend} is not known"
    return facts


def in_step_with_others(torch: Any) -> bool:
    """Whether this process of PyTorch trains in step with others."""
    distributed = torch.distributed
    started = distributed.is_available() and distributed.is_initialized()
    return started and distributed.get_world_size() > 1


def _backend(keras: Any) -> str:
    """Of Keras 3; tf_keras has TensorFlow's."""
    name = keras.backend.backend() if hasattr(keras.backend, "backend") else "tensorflow"
    return name if keras.__name__ == "keras" else "tensorflow"


def _steps_per_execution(model: Any) -> int:
    steps = getattr(model, "steps_per_execution", None)
    if steps is None:  # tf_keras
        steps = getattr(model, "_steps_per_execution", None)
    return 1 if steps is None else int(steps if isinstance(steps, int) else steps.numpy())


class _Pause:
    """A callback that comes first: what the script's own do takes as long as it takes."""

    model: Any
    session: Session
    training: Training
    clock: _Clock

    @classmethod
    def of(cls, keras: Any, session: Session, training: Training, clock: _Clock) -> Any:
        """A callback of this Keras, before the one that times."""
        made: Any = type(cls.__name__, (cls, keras.callbacks.Callback), {})()
        made.session, made.training, made.clock = session, training, clock
        return made

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The script's callbacks are called next; what stopped the training came before them."""
        if self.clock.timed:
            self.clock.timed.close_epoch()
        self.session.beat(expects=None)
        if self.training.timing.active and self.model.stop_training:
            # To go on would stop each later epoch, too, after a step of it.
            self.training.notes.append("a callback stopped the training within an epoch")
            self.session.end()


class _Clock:
    """What the callback does that times the `fit` to which it is given; `of` makes it one of the
    user's Keras.
    """

    model: Any
    params: dict[str, Any] | None
    timed: TimedFunction | None = None
    fitted: Any = None  #: the model, while it is timed

    @classmethod
    def of(cls, keras: Any, session: Session, watch: FitWatch) -> Any:
        """A callback of this Keras."""
        made: Any = type(cls.__name__, (cls, keras.callbacks.Callback), {})()
        made.keras, made.session, made.watch, made.training = keras, session, watch, None
        return made

    keras: Any
    session: Session
    watch: FitWatch
    training: Training | None

    def on_train_begin(self, logs: Any = None) -> None:
        """Put the timed function in the place of the model's own."""
        try:
            self.begin()
        except Exception as error:  # noqa: BLE001 - the script must not fail for our sake
            self.session.fail(error)
            if self.training is not None:
                self.training.only_watch("it could not be timed")

    def begin(self) -> None:
        """Time from now on."""
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
        """Give the model its own function back, and keep nothing of the training."""
        if self.timed is None:
            return
        self.fitted.train_function, self.timed = self.original, None
        self.watch.clock = None
        if self.training is not None:
            self.training.close()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The next step is an epoch's first."""
        if self.timed:
            batches = (self.params or {}).get("steps")
            each = _steps_per_execution(self.model)
            self.timed.open_epoch(math.ceil(batches / each) if batches else None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the training where the input has ended for good, or as the script has it where
        nothing is timed.
        """
        if self.timed:
            self.timed.close_epoch()
        if self.training:
            self.training.finished += 1
            if self.training.timing.active and self.training.finished >= self.training.epochs:
                self.session.leave_saves_out()
        self.session.beat(expects=None)  # the next epoch's first batch may fill a buffer
        is_starved = bool(self.timed and self.timed.is_starved)
        # What else would stop a measured training, such as EarlyStopping, sees repeated batches.
        if is_starved or (self.training and self.training.timing.active):
            self.model.stop_training = is_starved
        elif self.training and not self.timed and epoch + 1 >= self.training.epochs:
            self.model.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None:
        """A validation takes as long as it takes."""
        if self.timed:
            self.timed.close_epoch()
        self.session.beat(expects=None)

    def on_test_end(self, logs: Any = None) -> None:
        """The training goes on."""
        self.session.beat(expects=STEP_S)

    def on_train_end(self, logs: Any = None) -> None:
        """Time no longer."""
        self.close()


class _ReportingClock(_Clock):
    """The same for one `fit` by itself, with a report at its end."""

    def begin(self) -> None:
        """Time from now on, unless the command or a `watch` does."""
        if not self.watch.active:
            self.training = self.session.open("model.fit", **_describe(self.keras, self.model))
            super().begin()
            self.watch.active = True

    def close(self) -> None:
        """What follows is no part of this `fit`."""
        if self.timed:
            self.watch.active = False
        super().close()

    def on_train_end(self, logs: Any = None) -> None:
        """Print what was seen."""
        times = self.timed is not None
        self.close()
        if times:
            self.session.print_report()


def make_reporting_callback(keras: Any, session: Session, watch: FitWatch) -> Any:
    """A callback that times the `fit` to which it is given, and prints what it saw at its end."""
    return _ReportingClock.of(keras, session, watch)
