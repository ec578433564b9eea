"""The progress of a training that may be interrupted at any instant: epoch rows, timing, and when a
checkpoint is due.

A checkpoint holds position, weights, optimizer, random layers, metrics, what callbacks remember,
and epoch rows; `checkpoint_store` keeps it on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from throughline.pipelines.input_pipeline import InputPipeline
from throughline.settings import TrainSettings
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.failures import disk_reason
from throughline.shared.progress import echo, echo_problem
from throughline.training.callbacks import Callbacks, dump_states, load_states, read_states
from throughline.training.checkpoint_store import CheckpointStore, first_line
from throughline.training.fit import Position
from throughline.training.model_state import find_incomplete, list_parts, list_variables
from throughline.training.one_ahead import StepFollower
from throughline.training.step_function import StepFunction
from throughline.training.step_model import find_network

CHECKPOINT_FOLDER = ".checkpoint"
CALLBACKS = "callbacks.pickle"
LOG_EVERY_S = 10.0


class MetricsLog(Protocol):
    """Where the metrics of an epoch go; `run_id` is that of MLflow's run."""

    run_id: str | None

    def log_metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log the metrics of an epoch."""
        ...


class NoLog:
    """Where a process logs that leaves it to another one."""

    run_id: str | None = None

    def log_metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log nothing."""


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


class CheckpointCallback(StepFollower):
    """Epoch rows and checkpoints, as the last callback of a training that may be interrupted at any
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
        self.measured_steps = 0
        self._pipeline, self._store = pipeline, store
        self._settings, self._recorder = settings, recorder
        self._train_function: StepFunction | None = None
        self._monitor: Pausable | None = None
        self._others: Callbacks = ()
        self._others_state: bytes | None = None  # to resume from
        self._no_checkpoints = ""  # why the state of this training cannot be kept
        self._start = Position()
        self._restored: list[tuple[tf.Variable, np.ndarray]] = []  # until the first epoch begins
        self._metrics: list[Any] = []  # values of the metrics in mid-epoch, to resume from
        self._logged_at = 0.0
        self._step = 0  # of the current epoch, that have been run

    def attach(
        self, train_function: StepFunction, monitor: Pausable | None, others: Callbacks = ()
    ) -> None:
        """Follow the executions of this function, have a monitor pause while a graph is built and
        while the model is validated, and keep the state of the `others`, which are called before.
        What the variables are now, where a training goes on, is what it goes on with.
        """
        self._train_function, self._monitor, self._others = train_function, monitor, others
        if self._others_state is not None:
            variables = list_variables(find_network(train_function.model))
            self._restored = [(variable, variable.numpy()) for variable in variables]

    def restore(self, model: keras.Model) -> Position:
        """Load the last usable checkpoint of the same work into the model and say how far it was;
        the beginning where there is none.
        """
        if reason := find_incomplete(model):
            self._keep_none(reason)
            return Position()
        saved = self._store.restore(
            list_variables(model),
            check=lambda saved: read_states(saved.read(CALLBACKS), list_parts(model)),
        )
        if saved is None:
            return Position()
        state, self._others_state = saved.state, saved.read(CALLBACKS)
        self._check_batches(state)
        self.rows, self._metrics = [_read_row(row) for row in state["rows"]], state["metrics"]
        self._start = Position(epoch=len(self.rows), step=state["step"])
        return self._start

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Undo what the other callbacks, which have just started, have set, and let them remember
        what they knew.
        """
        if self._others_state is not None:
            self._go_on(self._others_state)
            return
        try:
            dump_states(self._others, list_parts(self._training_model))
        except TypeError as error:
            self._keep_none(f"a callback holds what cannot be stored ({error})")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Go on with the metrics of an epoch that was interrupted, and with what the other
        callbacks, which have just begun it again, knew and had set.
        """
        resumed = epoch == self._start.epoch and self._start.step > 0
        if resumed and self._others_state is not None:
            self._go_on(self._others_state)
        self._restored = []
        if resumed:
            for variable, value in zip(
                _metric_variables(self._training_model), self._metrics, strict=True
            ):
                variable.assign(np.asarray(value, variable.dtype))
        self._step, self._logged_at = self._start.step if resumed else 0, time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Measure the execution, unless it builds a graph first."""
        if self._monitor and self._active_train_function.builds_graph:
            self._monitor.pause()
        elif self._monitor:
            self._monitor.resume()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Say every few seconds how far a long epoch is, and keep a checkpoint where one is due."""
        # Keras' number of the batch may run past the end of the epoch.
        steps = self._active_train_function.steps
        before, self._step = self._step, self._step + steps
        if self._monitor and self._monitor.running:
            self.measured_steps += steps
        if time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            echo(
                f"  step {self._step:,} of {self._pipeline.steps_per_epoch:,}: loss"
                f" {float((logs or {}).get('loss', float('nan'))):.4f}"
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
        """The epoch's last step is done; validation is not measured."""
        if self._monitor:
            self._monitor.pause()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Close the epoch: row, metrics, checkpoint."""
        values, model = dict(logs or {}), self._training_model
        rate = getattr(model.optimizer, "learning_rate", float("nan"))
        row = {
            "epoch": epoch,
            **_name_columns(values),
            "examples_per_s": self._active_train_function.timer.rates[-1]
            * self._pipeline.examples
            / self._pipeline.steps_per_epoch,
            "learning_rate": float(np.asarray(rate)),
        }
        self.rows.append(row)
        echo(
            f"  epoch {epoch + 1} of {self._settings.epochs}: {_describe(row)},"
            f" {row['examples_per_s']:,.0f} examples/s"
        )
        metrics = {
            f"{split}/{name}": value
            for column, value in row.items()
            for split, _, name in [column.partition("_")]
            if split in ("train", "val")
        }
        self._recorder.log_metrics(metrics, step=epoch)
        if model.stop_training:
            return
        count, unit = self._settings.checkpoint_period
        if epoch + 1 < self._settings.epochs and (unit == "steps" or (epoch + 1) % count == 0):
            self._save(0)

    def _check_batches(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on with other batches than a checkpoint was trained on.

        Raises:
          ImpossiblePlan: they are multiples of another number, and cut differently.
        """
        multiple, examples = self._pipeline.worker.multiple, self._pipeline.examples
        before = state.get("batch_multiple", 1)
        by_length = self._pipeline.plan.batching is not None
        if before != multiple and (by_length or state.get("examples", examples) != examples):
            raise ImpossiblePlan(
                f"the interrupted training's batches were multiples of {before}, now they would be"
                f" of {multiple}, with other examples; set train.batch_multiple: {before} to go"
                f" on, or remove {CHECKPOINT_FOLDER} in the folder of its results to begin again"
            )

    def _go_on(self, stored: bytes) -> None:
        """Give all variables the values of the checkpoint, and the other callbacks their state."""
        for variable, restored in self._restored:
            variable.assign(restored)
        load_states(self._others, stored, list_parts(self._training_model))

    @property
    def _training_model(self) -> keras.Model:
        """The model that Keras is training."""
        if self.model is None:
            raise RuntimeError("no training has started")
        return self.model

    @property
    def _active_train_function(self) -> StepFunction:
        if self._train_function is None:
            raise RuntimeError("attach() the train_function of the model first")
        return self._train_function

    def _keep_none(self, reason: str) -> None:
        """Say before the first step that this training cannot be resumed, and write no checkpoint
        that would not be all of it.
        """
        self._no_checkpoints = reason
        echo_problem(f"no checkpoints are kept, an interrupted training begins again: {reason}")

    def _save(self, step: int) -> None:
        """Write a checkpoint. Where that fails, training continues, and the earlier checkpoint
        stays in force.
        """
        if self._no_checkpoints:
            return
        metrics = (
            [np.asarray(variable).tolist() for variable in _metric_variables(self._training_model)]
            if step
            else []
        )
        if self._pipeline.worker.index:
            return  # the first process writes, and all have read what their metrics are together
        state = {
            "step": step,
            "examples": self._pipeline.examples,
            "batch_multiple": self._pipeline.worker.multiple,
            "rows": self.rows,
            "metrics": metrics,
            "run_id": self._recorder.run_id,
        }
        try:
            self._store.write(
                list_variables(self._training_model),
                state,
                {CALLBACKS: dump_states(self._others, list_parts(self._training_model))},
                position=(len(self.rows), step),
            )
        except (OSError, TypeError, tf.errors.OpError) as error:  # of what a callback holds by now
            reason = disk_reason(error) or first_line(error)
            echo_problem(
                f"no checkpoint could be written ({reason}); training continues, the earlier one"
                " stays"
            )


def _name_columns(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an epoch by their columns in history.csv: of training, then of validation, the
    loss first.
    """
    names = sorted(
        (name for name in values if name != "learning_rate"),
        key=lambda name: (name.startswith("val_"), not name.endswith("loss"), name),
    )
    return {
        name if name.startswith("val_") else f"train_{name}": float(values[name]) for name in names
    }


def _read_row(row: Mapping[str, Any]) -> dict[str, float]:
    """The row of an epoch as a checkpoint holds it, in which NaN is a string."""
    return {name: float(value) if isinstance(value, str) else value for name, value in row.items()}


def _describe(row: Mapping[str, float]) -> str:
    """The loss and the other metrics of an epoch, and those of validation but its loss."""
    shown = {
        column.replace("train_", "").replace("val_", "validation "): value
        for column, value in row.items()
        if column.startswith(("train_", "val_")) and column != "val_loss"
    }
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


def _metric_variables(model: keras.Model) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
