"""The training loop: a model's own train step, Keras' callbacks, and evaluation, entered at any
step of any epoch, over one sequence of batches that goes through all epochs.

One process and each of several that train together run the same loop; what they exchange is within
the train step (`replicas.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from throughline.shared.errors import TrainingDiverged
from throughline.training.one_ahead import StepFollower, follows_steps
from throughline.training.step_function import StepFunction
from throughline.training.step_model import find_network

_WATCHED_LOSSES = 1000  # per epoch


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training is: whole epochs, and steps of the epoch that has started."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is trained: `epochs` of `steps_per_epoch`, from the position `start` on."""

    steps_per_epoch: int
    epochs: int
    start: Position = Position()


class SplitEvaluation:
    """A model's own test step over the `batches` of a held-out split, `steps` of them. What several
    processes have each found `agree` makes one.
    """

    def __init__(
        self,
        model: keras.Model,
        batches: tf.data.Dataset,
        steps: int,
        *,
        agree: Callable[[dict[str, float]], dict[str, float]] = dict,
    ) -> None:
        self._model, self._batches, self._steps = model, batches, steps
        self._agree = agree
        self._test_function = StepFunction(model, trains=False)

    def run(
        self, callbacks: keras.callbacks.CallbackList | None = None, *, steps: int | None = None
    ) -> dict[str, float]:
        """The metrics of the split, or of its first `steps`, as Keras' `evaluate` gives them."""
        every = callbacks or keras.callbacks.CallbackList(model=find_network(self._model))
        steps, network = steps or self._steps, find_network(self._model)
        every.on_test_begin()
        network.reset_metrics()
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
            next(iterator, None)  # or else a cache is never complete
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
    """Train on `batches`, one sequence from the start of the schedule to its end, so that the next
    epoch's first batch is ready in time; each epoch ends with the `evaluation`.

    Callbacks see the network that is trained, and what Keras' `fit` would show them; one of them
    may end the training before an epoch. For all but the last of them an epoch that is resumed
    begins again; the last one is to undo what that has changed. `last_logs` are those of the epoch
    before the start, for a training that has no step left. On a GPU the host is one step ahead
    unless one of them looks at each step's logs.
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
        losses = LossWatch(schedule.steps_per_epoch)
        # A process of several that stopped within an epoch would leave the others waiting.
        while done < schedule.steps_per_epoch and not (alone and network.stop_training):
            every.on_train_batch_begin(done)
            logs = train_function(iterator)
            done += train_function.steps
            losses.add(done, logs)
            if follow_only:
                for follower in followers:
                    follower.on_train_batch_end(done - 1, logs)
            else:
                every.on_train_batch_end(done - 1, logs)
        train_function.end()
        logs = as_numbers(whole_logs(network, logs))
        losses.check(epoch, logs)
        logs |= {f"val_{name}": value for name, value in evaluation.run(every).items()}
        every.on_epoch_end(epoch, logs)
        if network.stop_training:
            break
    if isinstance(network.optimizer, keras.optimizers.Optimizer):
        network.optimizer.finalize_variable_values(network.trainable_variables)
    every.on_train_end(logs)


class LossWatch:
    """Keeps the mean loss so far after some steps of an epoch, on the device: to look at each would
    make the host wait for it.
    """

    def __init__(self, steps_per_epoch: int) -> None:
        self._every = max(1, steps_per_epoch // _WATCHED_LOSSES)
        self._last, self._kept = 0, dict[int, Any]()

    def add(self, done: int, logs: Mapping[str, Any]) -> None:
        """The logs of the execution after which so many steps are done."""
        if done - self._last >= self._every and "loss" in logs:
            self._last, self._kept[done] = done, logs["loss"]

    def check(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Check the loss of an epoch, from 0.

        Raises:
          TrainingDiverged: it is no finite number; says from which step on.
        """
        loss = logs.get("loss", 0.0)
        if math.isfinite(loss):
            return
        first = next((done for done, one in self._kept.items() if not math.isfinite(one)), None)
        at = f", by step {first:,}" if first else ""
        raise TrainingDiverged(
            f"the loss is {loss} in epoch {epoch + 1}{at}; the model learns nothing any more."
            " Lower train.learning_rate, clip gradients (train.optimizer: {adam: {clipnorm: 1.0}}),"
            " or look for values and labels in the data that are no finite numbers"
        )


def whole_logs(network: keras.Model, logs: dict) -> dict:
    """The logs of an epoch's last step; of several processes those metrics of which the mean of
    their values is not the value of the whole are computed from all that they have seen.
    """
    if network.distribute_strategy.num_replicas_in_sync == 1:
        return logs
    metrics = network.get_metrics_result()
    return metrics if metrics.keys() == logs.keys() else logs


def as_numbers(logs: dict) -> dict[str, float]:
    """Those values of a step that are single numbers, in the order of their names; of a metric
    whose result is a mapping the values in it, as in Keras' own `fit`.
    """
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return {
        name: float(value)
        for name, value in sorted(flat.items())
        if getattr(value, "shape", ()) == ()
    }
