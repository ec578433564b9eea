"""The training loop: Keras' own train function, callbacks and evaluation, entered at any step of
any epoch, over one sequence of batches that goes through all epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from throughline.training.step_model import find_network
from throughline.training.train_function import TrainFunction


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training is: whole epochs, and steps of the epoch that has begun."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is trained: `epochs` of `steps_per_epoch`, from the position `start` on."""

    steps_per_epoch: int
    epochs: int
    start: Position = Position()


def fit(
    train_function: TrainFunction,
    batches: tf.data.Dataset,
    schedule: Schedule,
    *,
    validation: tf.data.Dataset,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Train on `batches`, one sequence from the start of the schedule to its end, so that the next
    epoch's first batch is ready in time; after each epoch evaluate on `validation`.

    Callbacks see the network that is trained, and what Keras' `fit` would show them.
    """
    model, start = train_function.model, schedule.start
    network = find_network(model)
    every = keras.callbacks.CallbackList(
        list(callbacks), model=network, epochs=schedule.epochs, steps=schedule.steps_per_epoch
    )
    network.stop_training = False
    every.on_train_begin()
    iterator, logs = iter(batches), {}
    for epoch in range(start.epoch, schedule.epochs):
        network.reset_metrics()
        done = start.step if epoch == start.epoch else 0
        train_function.begin(schedule.steps_per_epoch - done)
        every.on_epoch_begin(epoch)
        while done < schedule.steps_per_epoch and not network.stop_training:
            every.on_train_batch_begin(done)
            logs = train_function(iterator)
            done += train_function.steps
            every.on_train_batch_end(done - 1, logs)
        logs = as_numbers(logs)
        held_out = model.evaluate(validation, callbacks=every, verbose=0, return_dict=True)  # pyright: ignore[reportArgumentType]
        logs |= {f"val_{name}": value for name, value in as_numbers(held_out).items()}
        every.on_epoch_end(epoch, logs)
        if network.stop_training:
            break
    if isinstance(network.optimizer, keras.optimizers.Optimizer):
        network.optimizer.finalize_variable_values(network.trainable_variables)
    every.on_train_end(logs)


def as_numbers(logs: dict) -> dict[str, float]:
    """Those values of a step that are single numbers, by their names."""
    return {name: float(value) for name, value in logs.items() if getattr(value, "shape", ()) == ()}
