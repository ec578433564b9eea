"""Keras callbacks that params.yaml names, early stopping among them, and their state: what a
checkpoint keeps of them, so that a resumed training goes on as one that never stopped.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import keras

from throughline.models.builders import import_object
from throughline.settings import TrainSettings
from throughline.shared.errors import UnknownModel

Callbacks = Sequence[keras.callbacks.Callback]
KERAS = {"_model", "params", "validation_data"}  # which Keras gives to each callback


def make_callbacks(settings: TrainSettings) -> list[keras.callbacks.Callback]:
    """The callbacks of a training, in the order of params.yaml, then early stopping.

    Raises:
      UnknownModel: one cannot be imported, or is no callback.
    """
    made: list[keras.callbacks.Callback] = []
    for path in settings.callbacks:
        found = import_object(path, key="train.callbacks")
        try:
            callback = found() if callable(found) else found
        except TypeError as error:
            raise UnknownModel(f"train.callbacks: {path}() cannot be called: {error}") from error
        if not isinstance(callback, keras.callbacks.Callback):
            raise UnknownModel(
                f"train.callbacks: {path} gives {type(callback).__name__}; expected a"
                " keras.callbacks.Callback, or a function without arguments that returns one"
            )
        made.append(callback)
    return [*made, *make_early_stopping(settings)]


def make_early_stopping(settings: TrainSettings) -> Sequence[keras.callbacks.Callback]:
    """The callback that ends a training early, where one is asked for."""
    stopping = settings.early_stopping
    if stopping is None:
        return []
    return [
        keras.callbacks.EarlyStopping(
            stopping.monitor,
            min_delta=stopping.min_delta,  # pyright: ignore[reportArgumentType]
            patience=stopping.patience,
            mode=stopping.mode,
            restore_best_weights=stopping.restore_best,
        )
    ]


def find_best_epoch(callbacks: Callbacks) -> int | None:
    """The epoch, from 0, whose weights the last callback that restores some has restored; None
    where the weights are the last epoch's.
    """
    restored = [
        callback.best_epoch
        for callback in callbacks
        if isinstance(callback, keras.callbacks.EarlyStopping)
        and callback.restore_best_weights
        and callback.best_weights is not None
    ]
    return restored[-1] if restored else None


def dump_state(callbacks: Callbacks) -> bytes:
    """What callbacks remember, but for the model and what else Keras gives them.

    Raises:
      TypeError: one of them holds what cannot be stored; says which, and what.
    """
    states = [
        {name: value for name, value in vars(callback).items() if name not in KERAS}
        for callback in callbacks
    ]
    try:
        return pickle.dumps(states)
    except Exception as error:  # whatever objects raise that are asked for their state
        for callback, state in zip(callbacks, states, strict=True):
            for name, value in state.items():
                _check_storable(value, f"{type(callback).__name__}.{name}")
        raise TypeError(str(error)) from error


def _check_storable(value: Any, whose: str) -> None:
    try:
        pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"{whose}: {error}") from error


def load_state(callbacks: Callbacks, stored: bytes) -> None:
    """Have callbacks remember what `dump_state` wrote of them."""
    states: list[dict[str, Any]] = pickle.loads(stored)
    for callback, state in zip(callbacks, states, strict=True):
        vars(callback).update(state)
