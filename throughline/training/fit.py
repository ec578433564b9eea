"""The training loop: a model's own train step, Keras callbacks, and evaluation.

It can start at any step of any epoch, and reads one sequence of batches that spans all epochs.
Processes that train together all run it; they communicate within the train step (`replicas.py`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from throughline.shared.errors import TrainingDiverged
from throughline.training.step_function import StepFollower, StepFunction, follows_steps
from throughline.training.step_model import find_network


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a training: complete epochs, and steps of the current epoch."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    steps_per_epoch: int
    epochs: int
    start: Position = Position()


class SplitEvaluation:
    """Evaluates a held-out split by its model's test step; `agree` merges processes' metrics."""

    def __init__(
        self,
        model: keras.Model,
        batches: tf.data.Dataset,
        steps: int,
        *,
        agree: Callable[[dict[str, float]], dict[str, float]] = dict,
    ) -> None:
        self._network, self._batches, self._steps = find_network(model), batches, steps
        self._agree, self._test_function = agree, StepFunction(model, trains=False)

    def run(
        self, callbacks: keras.callbacks.CallbackList | None = None, *, steps: int | None = None
    ) -> dict[str, float]:
        """Return the metrics of the split, or of its first `steps`, as Keras' `evaluate` does."""
        every = callbacks or keras.callbacks.CallbackList(model=self._network)
        steps = steps or self._steps
        every.on_test_begin()
        self._network.reset_metrics()
        self._test_function.begin(steps)
        whole = int(self._batches.cardinality()) == steps
        iterator = iter(self._batches if whole else self._batches.take(steps))
        done, logs = 0, {}
        while done < steps:
            every.on_test_batch_begin(done)
            logs = self._test_function(iterator)
            done += self._test_function.steps
            every.on_test_batch_end(done - 1, logs)
        if whole:
            next(iterator, None)  # a cache is complete only once the end of the dataset is reached
        logs = self._agree(as_numbers(logs))
        every.on_test_end(logs)
        return logs


def fit(
    train_function: StepFunction,
    batches: Iterable[Any],
    schedule: Schedule,
    *,
    evaluation: SplitEvaluation,
    callbacks: Sequence[keras.callbacks.Callback],
    last_logs: dict[str, float] | None = None,
) -> None:
    """Train on `batches`, one sequence from the schedule's start to its end; evaluate each epoch.

    On a GPU the host is one step ahead, unless a callback reads the logs of each step. Callbacks
    get the trained network and the calls of Keras' `fit`; they may also end the training before an
    epoch starts. If a training resumes within an epoch, `on_epoch_begin` is called for that epoch
    again, and the last callback must undo its effects. `last_logs` are those of the last complete
    epoch, for a training that has no steps left.

    Raises TrainingDiverged if the loss of an epoch is not finite.
    """
    model, start = train_function.model, schedule.start
    network = find_network(model)
    every = keras.callbacks.CallbackList(
        list(callbacks), model=network, epochs=schedule.epochs, steps=schedule.steps_per_epoch
    )
    followers = [one for one in callbacks if isinstance(one, StepFollower)]
    follow_only = all(map(follows_steps, callbacks))
    network.stop_training = False
    alone = network.distribute_strategy.num_replicas_in_sync == 1
    every.on_train_begin()
    iterator, logs = iter(batches), {**(last_logs or {})}
    for epoch in range(start.epoch, schedule.epochs):
        done = start.step if epoch == start.epoch else 0
        if not network.stop_training:
            network.reset_metrics()
            every.on_epoch_begin(epoch)
        if network.stop_training:
            break
        train_function.begin(schedule.steps_per_epoch - done)
        first = done
        # If one of several processes stopped within an epoch, the others would wait for it.
        while done < schedule.steps_per_epoch and not (alone and network.stop_training):
            every.on_train_batch_begin(done)
            logs = train_function(iterator)
            done += train_function.steps
            if follow_only:
                for follower in followers:
                    follower.on_train_batch_end(done - 1, logs)
            else:
                every.on_train_batch_end(done - 1, logs)
        train_function.end()
        if not alone:  # the mean of the processes' values is not the metric of all their examples
            metrics = network.get_metrics_result()
            logs = metrics if metrics.keys() == logs.keys() else logs
        logs = as_numbers(logs)
        check_finite(epoch, logs, train_function.losses, first=first)
        logs |= {f"val_{name}": value for name, value in evaluation.run(every).items()}
        every.on_epoch_end(epoch, logs)
        if network.stop_training:
            break
    if isinstance(network.optimizer, keras.optimizers.Optimizer):
        network.optimizer.finalize_variable_values(network.trainable_variables)
    every.on_train_end(logs)


def check_finite(
    epoch: int, logs: Mapping[str, float], losses: Sequence[float], *, first: int
) -> None:
    """Raise TrainingDiverged if an epoch's loss is not finite; `losses` begin with step `first`."""
    loss = logs.get("loss", 0.0)
    if math.isfinite(loss):
        return
    wrong = next((step for step, one in enumerate(losses, first) if not math.isfinite(one)), None)
    at = "" if wrong is None else f", in step {wrong + 1:,}"
    raise TrainingDiverged(
        f"the loss is {loss} in epoch {epoch + 1}{at}; the model cannot learn any more."
        " Lower train.learning_rate, clip gradients (train.optimizer: {adam: {clipnorm: 1.0}}),"
        " or look for values and labels in the data that are not finite"
    )


def as_numbers(logs: dict) -> dict[str, float]:
    """Return the scalars of a step's logs, by name; mappings are flattened, as in Keras' `fit`."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return {
        name: float(value)
        for name, value in sorted(flat.items())
        if getattr(value, "shape", ()) == ()
    }
