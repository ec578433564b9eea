"""The progress of a training that may be interrupted at any instant: epoch rows, timing, and when a
checkpoint is due.

A checkpoint holds position, weights, optimizer, random layers, metrics and epoch rows;
`checkpoint_store` keeps it on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tasks.errors import disk_reason
from tasks.pipelines.input_pipeline import InputPipeline
from tasks.progress import echo, echo_problem
from tasks.settings import TrainSettings
from tasks.training.checkpoint_store import CheckpointStore
from tasks.training.step_timer import StepTimer
from tasks.training.train_function import TrainFunction

CHECKPOINT_FOLDER = ".checkpoint"
LOG_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training is: whole epochs, and steps of the epoch that has begun."""

    epoch: int = 0
    step: int = 0


class MetricsLog(Protocol):
    """Where the metrics of an epoch go; `run_id` is that of MLflow's run."""

    run_id: str | None

    def log_metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log the metrics of an epoch."""
        ...


class Pausable(Protocol):
    """A measurement of this process that leaves out what is between `pause` and `resume`."""

    @property
    def running(self) -> bool:
        """Whether it is measuring now."""
        ...

    def pause(self) -> None:
        """Leave out what follows."""
        ...

    def resume(self) -> None:
        """Measure what follows."""
        ...


class CheckpointCallback(keras.callbacks.Callback):
    """Epoch rows and checkpoints, as the callback of a training that may be interrupted at any
    instant.

    `measured_steps` are those that the monitor has measured: without executions that build a graph
    first, and without validation.
    """

    def __init__(
        self,
        pipeline: InputPipeline,
        store: CheckpointStore,
        settings: TrainSettings,
        recorder: MetricsLog,
    ) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.timer = StepTimer()
        self.measured_steps = 0
        self._pipeline, self._store = pipeline, store
        self._settings, self._recorder = settings, recorder
        self._train_function: TrainFunction | None = None
        self._monitor: Pausable | None = None
        self._start = Position()
        self._metrics: list[Any] = []  # values of the metrics in mid-epoch, to resume from
        self._logged_at = 0.0
        self._step = 0  # of the current epoch, that have been run

    def attach(self, train_function: TrainFunction, monitor: Pausable) -> None:
        """Follow the executions of this function, and have the monitor pause while a graph is
        built and while the model is validated.
        """
        self._train_function, self._monitor = train_function, monitor

    def restore(self, model: keras.Model) -> Position:
        """Load the last usable checkpoint of the same work into the model and say how far it was;
        the beginning where there is none.
        """
        state = self._store.restore(_variables(model))
        if state is None:
            return Position()
        self.rows, self._metrics = [dict(row) for row in state["rows"]], state["metrics"]
        self._start = Position(epoch=len(self.rows), step=state["step"])
        return self._start

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """In an epoch that was interrupted, let its metrics continue."""
        resumed = epoch == self._start.epoch
        self._step = self._start.step if resumed else 0
        self._active_train_function.begin(self._pipeline.steps_per_epoch - self._step)
        self._logged_at = time.monotonic()
        if self._metrics and resumed:
            for variable, value in zip(
                _metric_variables(self._training_model), self._metrics, strict=True
            ):
                variable.assign(np.asarray(value, variable.dtype))
        self.timer.begin()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Measure the execution, unless it builds a graph first."""
        if self._monitor and self._active_train_function.builds_graph:
            self._monitor.pause()
        elif self._monitor:
            self._monitor.resume()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Time the execution, say every few seconds how far a long epoch is, and keep a checkpoint
        where one is due.
        """
        # Keras' number of the batch may run past the end of the epoch.
        steps = self._active_train_function.steps
        self.timer.tick(steps)
        before, self._step = self._step, self._step + steps
        if self._monitor and self._monitor.running:
            self.measured_steps += steps
        if time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            echo(
                f"  step {self._step:,} of {self._pipeline.steps_per_epoch:,}: loss"
                f" {(logs or {}).get('loss', float('nan')):.4f}"
            )
        count, unit = self._settings.checkpoint_period
        due = self._step // count > before // count
        if (
            unit == "steps"
            and due
            and self._pipeline.plan.seekable
            and self._step < self._pipeline.steps_per_epoch
        ):
            self._save(self._step)

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """The epoch's last step is done; validation is neither timed nor measured."""
        self.timer.end()
        if self._monitor:
            self._monitor.pause()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Close the epoch: row, metrics, checkpoint."""
        values = dict(logs or {})
        metric = next(
            name
            for name in values
            if name not in ("loss", "val_loss") and not name.startswith("val_")
        )
        row = {
            "epoch": epoch,
            "train_loss": float(values["loss"]),
            f"train_{metric}": float(values[metric]),
            "val_loss": float(values["val_loss"]),
            f"val_{metric}": float(values[f"val_{metric}"]),
            "examples_per_s": self.timer.rates[-1]
            * self._pipeline.examples
            / self._pipeline.steps_per_epoch,
            "learning_rate": float(self._training_model.optimizer.learning_rate),
        }
        self.rows.append(row)
        echo(
            f"  epoch {epoch + 1} of {self._settings.epochs}: loss {row['train_loss']:.4f},"
            f" {metric} {row[f'train_{metric}']:.4f}, validation {metric}"
            f" {row[f'val_{metric}']:.4f}, {row['examples_per_s']:,.0f} examples/s"
        )
        kinds = {"train": "train_", "val": "val_"}
        metrics = {
            f"{kind}/{name}": row[f"{prefix}{name}"]
            for kind, prefix in kinds.items()
            for name in ("loss", metric)
        }
        self._recorder.log_metrics(metrics, step=epoch)
        count, unit = self._settings.checkpoint_period
        if epoch + 1 < self._settings.epochs and (unit == "steps" or (epoch + 1) % count == 0):
            self._save(0)

    @property
    def _training_model(self) -> keras.Model:
        """The model that Keras is training."""
        if self.model is None:
            raise RuntimeError("no training has begun")
        return self.model

    @property
    def _active_train_function(self) -> TrainFunction:
        if self._train_function is None:
            raise RuntimeError("attach() the train_function of the model first")
        return self._train_function

    def _save(self, step: int) -> None:
        """Write a checkpoint. Where that fails, training continues, and the earlier checkpoint
        stays in force.
        """
        metrics = (
            [np.asarray(variable).tolist() for variable in _metric_variables(self._training_model)]
            if step
            else []
        )
        state = {
            "step": step,
            "rows": self.rows,
            "metrics": metrics,
            "run_id": self._recorder.run_id,
        }
        try:
            self._store.write(
                _variables(self._training_model), state, epoch=len(self.rows), step=step
            )
        except (OSError, tf.errors.OpError) as error:
            reason = disk_reason(error) or str(error).splitlines()[0][:200]
            echo_problem(
                f"no checkpoint could be written ({reason}); training continues, the earlier one"
                " stays"
            )


def _variables(model: keras.Model) -> list[tf.Variable]:
    """Every variable by position: weights, optimizer slots, step counter and the state of random
    layers.
    """
    model.optimizer.build(model.trainable_variables)
    return [
        getattr(variable, "value", variable)
        for variable in (*model.variables, *model.optimizer.variables)
    ]


def _metric_variables(model: keras.Model) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
