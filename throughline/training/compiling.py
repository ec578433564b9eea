"""Compiles a model by params.yaml: optimizer, learning rate schedule, loss and metrics.

A model that its builder has compiled keeps its own optimizer, loss and metrics.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from throughline.models.builders import Target, import_object
from throughline.models.inference import gives_probabilities
from throughline.models.transformers import PackedModel
from throughline.settings import NamedObject, TrainSettings
from throughline.shared.errors import UnknownModel

AUTO = "auto"
ROWS = 4  # batch size for trying a loss
LOSSES = {
    "class": "sparse_categorical_crossentropy",
    "next_token": "sparse_categorical_crossentropy",
    "soft_labels": "categorical_crossentropy",
    "regression": "mean_squared_error",
}


class SquaredErrorInUnits(keras.losses.Loss):
    """The mean squared error of targets in units of their `scale` (targets,): none dominates."""

    def __init__(self, scale: Sequence[float], **options: Any) -> None:
        super().__init__(**options)
        self._scale = [*scale]

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Map labels and outputs (batch, …, targets) to losses (batch, …)."""
        scale = keras.ops.array(self._scale, y_pred.dtype)
        difference = (y_pred - keras.ops.cast(y_true, y_pred.dtype)) / scale
        return keras.ops.mean(keras.ops.square(difference), axis=-1)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly over the first `steps`, then follows `after`, a rate or a schedule."""

    def __init__(self, after: Any, steps: int) -> None:
        super().__init__()
        self.after, self.steps = after, steps

    def __call__(self, step: Any) -> Any:
        step, begin = keras.ops.cast(step, "float32"), float(self.steps)
        schedule = callable(self.after)
        first = self.after(0) if schedule else self.after
        rest = self.after(keras.ops.maximum(step - begin, 0)) if schedule else self.after
        return keras.ops.where(step < begin, first * (step + 1) / begin, rest)

    def get_config(self) -> dict[str, Any]:
        return {"after": self.after, "steps": self.steps}


def compile_model(
    model: keras.Model, settings: TrainSettings, *, target: Target, steps: int
) -> None:
    """Compile a model for epochs of `steps` steps, unless its builder has compiled it.

    Raises:
      UnknownModel: If a loss, optimizer, metric or schedule does not exist or rejects its options,
          if the builder and params.yaml both name one, or if a loss or metric does not fit outputs.
    """
    if not getattr(model, "compiled", False):
        _compile(model, settings, target=target, steps=steps)
        model.compiled_by_settings = True  # a network that is also timed alone comes here twice
    elif not getattr(model, "compiled_by_settings", False):
        _keep_own(model, settings)
    if target.kind == "regression":
        _check_shapes(model)


def _compile(model: keras.Model, settings: TrainSettings, *, target: Target, steps: int) -> None:
    packed = isinstance(model, PackedModel)
    outputs = {"from_logits": not gives_probabilities(model)}
    if settings.loss == AUTO and len(target.scale) > 1:
        loss: Any = SquaredErrorInUnits(target.scale)
    else:
        named = LOSSES[target.kind] if settings.loss == AUTO else settings.loss
        loss = make_named(named, keras.losses, key="train.loss", defaults=outputs)
    if packed:  # the mean over documents, not over empty slots
        if not isinstance(loss, keras.losses.Loss):
            raise UnknownModel(
                f"train.loss: {settings.loss} is a function, which Keras would average over empty"
                " slots of packed rows, too; name a keras.losses.Loss"
            )
        loss.reduction = "mean_with_sample_weight"
    metrics = [
        # Given its name, Keras chooses the accuracy that fits the labels.
        target.metric
        if metric in (AUTO, target.metric)
        else make_named(metric, keras.metrics, key="train.metrics", defaults=outputs)
        for metric in settings.metrics
    ]
    model.compile(
        optimizer=make_optimizer(settings, steps=steps),
        loss=loss,
        metrics=None if packed else metrics,
        weighted_metrics=metrics if packed else None,
        jit_compile=settings.jit_compile,  # pyright: ignore[reportArgumentType] - Keras takes a boolean, too
        steps_per_execution=settings.steps_per_execution,
    )


def gives_one_number(loss: Any, model: keras.Model) -> bool:
    """Return whether a loss gives one number for a batch, not one per example; False if unknown."""
    shape: Any = getattr(model, "output_shape", None)
    if loss is None or not isinstance(shape, tuple):
        return False
    call = loss.call if isinstance(loss, keras.losses.Loss) else loss
    outputs = np.full([size or ROWS for size in shape], 0.5, np.float32)
    for labels in (np.zeros(outputs.shape[:-1], np.int64), outputs):  # class numbers, or vectors
        try:
            return np.ndim(call(labels, outputs)) == 0
        except Exception:  # noqa: BLE001 - it may raise anything for labels of another kind
            continue
    return False


def describe_own_compile(settings: TrainSettings) -> str:
    return (
        "the model's builder has compiled it: train.learning_rate"
        f" {settings.learning_rate:g} and train.schedule {settings.schedule} are not used, but"
        f" train.jit_compile {str(settings.jit_compile).lower()} is"
    )


def _keep_own(model: keras.Model, settings: TrainSettings) -> None:
    both = [
        f"train.{name}"
        for name in ("optimizer", "loss", "metrics", "warm_up_epochs")
        if name in settings.model_fields_set
    ]
    if both:
        raise UnknownModel(
            f"{', '.join(both)}: not used, because the model's builder compiles the model; remove"
            " these keys from params.yaml, or the call of compile() from the builder"
        )
    if settings.steps_per_execution > 1:
        model.steps_per_execution = settings.steps_per_execution
    model.jit_compile = settings.jit_compile  # Keras' "auto" would turn it on if there is a GPU


@contextmanager
def explain_misfit(
    settings: TrainSettings, *, labels: Sequence[int | None], outputs: Sequence[int | None]
) -> Iterator[None]:
    """Raise UnknownModel if Keras' own loss or metrics do not fit these shapes of a first batch."""
    try:
        yield
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        keys = ["train.loss", *("train.metrics" for _ in settings.metrics)]
        specs = [settings.loss, *settings.metrics]
        named = [
            (key, spec if isinstance(spec, str) else next(iter(spec)))
            for key, spec in zip(keys, specs, strict=True)
            if spec != AUTO
        ]
        if not named or any(":" in name for _, name in named) or "IteratorGetNext" in str(error):
            raise
        reason = "" if isinstance(error, tf.errors.OpError) else f" ({str(error).splitlines()[0]})"
        raise UnknownModel(
            f"{' or '.join(map(': '.join, named))} does not fit labels of shape {tuple(labels)} and"
            f" outputs of shape {tuple(outputs)}{reason}; use `auto`, or others"
        ) from error


def _check_shapes(model: keras.Model) -> None:
    """Refuse a loss or metric that compares each label (batch,) with all outputs (batch, 1)."""
    if getattr(model, "output_shape", None) != (None, 1):
        return
    loss, metrics = getattr(model, "loss", None), getattr(model, "_compile_metrics", None)
    named = [metrics._user_metrics, metrics._user_weighted_metrics] if metrics else []
    own = [one for one in keras.tree.flatten(named) if callable(one) and not _is_of_keras(one)]
    labels = np.arange(1, 5, dtype=np.float32)
    outputs = labels[::-1, None] ** 2
    for one in [*([loss] if isinstance(loss, keras.losses.Loss) else []), *own]:
        shapes = labels, labels[:, None]
        try:
            as_given, in_columns = (np.mean(_compare(one, each, outputs)) for each in shapes)
        except Exception:  # noqa: BLE001 - it may raise anything for these values
            continue
        if not np.isclose(as_given, in_columns, rtol=1e-3, equal_nan=True):
            kind = "loss" if one is loss else "metric"
            raise UnknownModel(
                f"the {kind} {getattr(one, '__name__', type(one).__name__)} compares each label"
                " with all outputs: labels have shape (batch,), but outputs (batch, 1); begin it"
                " with y_true = keras.ops.reshape(y_true, keras.ops.shape(y_pred))"
            )


def _is_of_keras(metric: Any) -> bool:
    """Return whether a metric is one of Keras' own, which align labels and outputs."""
    wraps = isinstance(metric, keras.metrics.MeanMetricWrapper)
    return type(metric).__module__.startswith("keras.") and not wraps


def _compare(one: Any, labels: np.ndarray, outputs: np.ndarray) -> Any:
    if not isinstance(one, keras.metrics.Metric):
        return one(labels, outputs)
    return one.stateless_result(one.stateless_update_state(one.variables, labels, outputs))


def make_optimizer(settings: TrainSettings, *, steps: int) -> keras.optimizers.Optimizer:
    """Make the optimizer; its learning rate follows the schedule over all epochs of `steps`."""
    rate, key = make_schedule(settings, steps=steps), "train.optimizer"
    defaults = {"learning_rate": rate}
    optimizer = make_named(settings.optimizer, keras.optimizers, key=key, defaults=defaults)
    if callable(optimizer):  # a user's function
        optimizer = optimizer(rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UnknownModel(f"{key}: {settings.optimizer} is not a Keras optimizer")
    return optimizer


def make_schedule(settings: TrainSettings, *, steps: int) -> Any:
    warm_up = round(settings.warm_up_epochs * steps)
    rate, rest = settings.learning_rate, max(1, settings.epochs * steps - warm_up)
    schedules = keras.optimizers.schedules
    if settings.schedule == "cosine":
        after: Any = schedules.CosineDecay(rate, rest)
    elif settings.schedule == "linear":
        after = schedules.PolynomialDecay(rate, rest, end_learning_rate=0.0)
    elif settings.schedule == "constant":
        after = rate
    else:
        after = import_object(settings.schedule, key="train.schedule")(rate, rest)
    return WarmUp(after, warm_up) if warm_up else after


def make_named(spec: NamedObject, module: Any, *, key: str, defaults: Mapping[str, Any]) -> Any:
    """Make the object that a name, or {name: arguments}, stands for; raises UnknownModel.

    The name is a class of Keras' `module`, or a user's `package.module:name`. It is called with the
    arguments and the `defaults` that it accepts. A user's function without arguments is not called.
    """
    name, given = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    kind = import_object(name, key=key) if ":" in name else _find_class(name, module)
    if kind is None:
        raise UnknownModel(
            f"{key}: Keras has no {name} for this key; name your own as package.module:name"
        )
    if ":" in name and not given and not inspect.isclass(kind):
        return kind
    try:
        given = {key: value for key, value in defaults.items() if _takes(kind, key)} | given
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise UnknownModel(f"{key}: {name} does not accept {given}: {error}") from error


def _takes(kind: Any, option: str) -> bool:
    """Return whether a class or function accepts an option; **options pass it to the base class."""
    bases = kind.__mro__ if inspect.isclass(kind) else ()
    for called in [one.__init__ for one in bases if "__init__" in vars(one)] or [kind]:
        parameters = inspect.signature(called).parameters
        if option in parameters:
            return True
        if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
            return False
    return not bases


def _find_class(name: str, module: Any) -> type | None:
    """Find a Keras module's class by its or its function's name, in any spelling Keras accepts."""
    classes = {key.lower(): one for key, one in vars(module).items() if inspect.isclass(one)}
    plain = name.replace("_", "").lower()
    if plain not in classes:  # a short name, such as mse
        try:
            plain = getattr(module.get(name), "__name__", "").replace("_", "").lower()
        except ValueError:
            return None
    return classes.get(plain)
