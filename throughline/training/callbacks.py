"""Keras callbacks that params.yaml names, early stopping, and their state for checkpoints."""

import io
import pickle
from collections.abc import Sequence
from typing import Any

import keras

from throughline.models.builders import import_object
from throughline.settings import TrainSettings
from throughline.shared.errors import UnknownModel

Callbacks = Sequence[keras.callbacks.Callback]
KERAS = {"_model", "params", "validation_data"}  # set on every callback by Keras


def make_callbacks(settings: TrainSettings) -> list[keras.callbacks.Callback]:
    """Return params.yaml's callbacks in their order, then early stopping; raises UnknownModel."""
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
    stopping = settings.early_stopping
    if stopping is None:
        return []
    named = stopping.model_dump(exclude={"restore_best"})
    return [keras.callbacks.EarlyStopping(**named, restore_best_weights=stopping.restore_best)]


def find_best_epoch(callbacks: Callbacks) -> int | None:
    """Return the epoch, from 0, whose weights early stopping restored; None if it restored none."""
    for callback in reversed(callbacks):
        stops = isinstance(callback, keras.callbacks.EarlyStopping)
        if stops and callback.restore_best_weights and callback.best_weights is not None:
            return callback.best_epoch
    return None


def find_stopping_key(callbacks: Callbacks, settings: TrainSettings) -> str:
    """Return the key of params.yaml that ended a training early; the last callback is stopping."""
    stopping = callbacks[-1] if settings.early_stopping and callbacks else None
    stopped = isinstance(stopping, keras.callbacks.EarlyStopping) and stopping.stopped_epoch > 0
    return "train.early_stopping" if stopped else "train.callbacks"


def may_replace_weights(callbacks: Callbacks) -> bool:
    """Return whether a callback may replace the weights after the last validation.

    A user's `on_epoch_end` or `on_train_end` may; early stopping restores only validated weights.
    """
    methods = (
        getattr(method, "__func__", method)
        for callback in callbacks
        for method in (callback.on_epoch_end, callback.on_train_end)
    )
    return any(not str(method.__module__).startswith("keras.") for method in methods)


def dump_states(callbacks: Callbacks, parts: Sequence[Any]) -> bytes:
    """Serialize the attributes of callbacks, except Keras' own; the model's `parts` become indices.

    Raises TypeError if a value cannot be stored and read again; names callback and attribute.
    """
    states = [
        {name: value for name, value in vars(callback).items() if name not in KERAS}
        for callback in callbacks
    ]
    try:
        return _dump(states, parts)
    except Exception as error:  # objects that are asked for their state may raise anything
        for callback, state in zip(callbacks, states, strict=True):
            for name, value in state.items():
                try:
                    _dump(value, parts)
                except Exception as reason:
                    raise TypeError(f"{type(callback).__name__}.{name}: {reason}") from reason
        raise TypeError(str(error)) from error


def load_states(callbacks: Callbacks, stored: bytes, parts: Sequence[Any]) -> None:
    for callback, state in zip(callbacks, read_states(stored, parts), strict=True):
        vars(callback).update(state)


def read_states(stored: bytes, parts: Sequence[Any]) -> list[dict[str, Any]]:
    """Read what `dump_states` stored, for a model with the same `parts`; raises ValueError."""
    try:
        return _load(stored, parts)
    except Exception as error:
        raise ValueError(f"the callbacks' state cannot be read: {error}") from error


def _dump(value: Any, parts: Sequence[Any]) -> bytes:
    file, numbers = io.BytesIO(), {id(part): number for number, part in enumerate(parts)}
    pickler = pickle.Pickler(file)
    pickler.persistent_id = lambda obj: numbers.get(id(obj))
    pickler.dump(value)
    _load(file.getvalue(), parts)
    return file.getvalue()


def _load(stored: bytes, parts: Sequence[Any]) -> Any:
    unpickler = pickle.Unpickler(io.BytesIO(stored))
    unpickler.persistent_load = parts.__getitem__
    return unpickler.load()
