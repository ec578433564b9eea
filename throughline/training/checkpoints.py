"""The progress of a training that may be interrupted at any instant: epoch rows, timing, and when a
checkpoint is due.

A checkpoint holds position, weights, optimizer, random layers, metrics, what callbacks remember,
and epoch rows; `checkpoint_store` keeps it on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
from throughline.training.epoch_rows import (
    describe_row,
    make_row,
    name_metrics,
    read_logs,
    read_rate,
    read_row,
)
from throughline.training.fit import Position
from throughline.training.model_state import find_incomplete, list_parts, list_variables
from throughline.training.one_ahead import StepFollower, follows_steps
from throughline.training.step_function import StepFunction
from throughline.training.step_model import find_network

CHECKPOINT_FOLDER = ".checkpoint"
CALLBACKS = "callbacks.pickle"
LOG_EVERY_S = 10.0


class MetricsLog(Protocol):
    """Where the metrics of an epoch go; `run_id` is that of MLflow's run, `unsent` the tag of one
    that the store does not have yet. What a run has of an epoch it is not given again.
    """

    run_id: str | None

    @property
    def unsent(self) -> str | None:
        """The tag by which the run will be found."""
        ...

    def log_metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log the metrics of an epoch."""
        ...


class NoLog:
    """Where a process logs that leaves it to another one."""

    run_id: str | None = None
    unsent: str | None = None

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
    first, and without validation. `ended`: the training that goes on had no step left.
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
        self.ended = False
        self._pipeline, self._store = pipeline, store
        self._settings, self._recorder = settings, recorder
        self._train_function: StepFunction | None = None
        self._monitor: Pausable | None = None
        self._others: Callbacks = ()
        self._others_state: bytes | None = None  # to resume from
        self._no_checkpoints = ""  # why the state of this training cannot be kept
        self._agree: Callable[[bool], bool] = bool
        self._follows_steps = True  # as all others do
        self._start = Position()
        self._restored: list[tuple[tf.Variable, np.ndarray]] = []  # until the first epoch begins
        self._metrics: list[Any] = []  # values of the metrics in mid-epoch, to resume from
        self._logged_at = 0.0
        self._step = 0  # of the current epoch, that have been run
        self._steps_of_last = pipeline.steps_per_epoch  # of the epoch of the last row
        self._rate: float | None = None  # of the last step of the current epoch

    @property
    def last_logs(self) -> dict[str, float]:
        """What the last epoch has logged; nothing before the first."""
        return read_logs(self.rows[-1]) if self.rows else {}

    @property
    def steps(self) -> int:
        """How many steps the epochs of the rows are, the last of which a callback may have cut."""
        whole = max(0, len(self.rows) - 1) * self._pipeline.steps_per_epoch
        return whole + (self._steps_of_last if self.rows else 0)

    def attach(
        self,
        train_function: StepFunction,
        monitor: Pausable | None,
        others: Callbacks = (),
        *,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        """Follow the executions of this function, have a monitor pause while a graph is built and
        while the model is validated, and keep the state of the `others`, which are called before.
        What the variables are now, where a training goes on, is what it goes on with. `agree` says
        of what is so in this process whether it is in any of those that train together.
        """
        self._train_function, self._monitor, self._others = train_function, monitor, others
        self._agree, self._follows_steps = agree, all(map(follows_steps, others))
        if self._others_state is not None:
            variables = list_variables(find_network(train_function.model))
            self._restored = [(variable, variable.numpy()) for variable in variables]

    def restore(self, model: keras.Model) -> Position:
        """Load the last usable checkpoint of the same work into the model and say how far it was;
        the beginning where there is none. Its epochs are logged.
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
        self.rows, self._metrics = [read_row(row) for row in state["rows"]], state["metrics"]
        self.ended, self._steps_of_last = state["ended"], state["steps_of_last"]
        for epoch, row in enumerate(self.rows):
            self._recorder.log_metrics(name_metrics(row), step=epoch)
        self._start = Position(epoch=len(self.rows), step=state["step"])
        return self._start

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Undo what the other callbacks, which have just started, have set, and let them remember
        what they knew. Whether checkpoints are kept is the same in all processes: these read
        together what the metrics are in mid-epoch.
        """
        if self._others_state is not None:
            self._go_on(self._others_state)
            self._training_model.stop_training = self.ended
        else:
            try:
                dump_states(self._others, list_parts(self._training_model))
            except TypeError as error:
                self._keep_none(f"a callback holds what cannot be stored ({error})")
        if self._agree(bool(self._no_checkpoints)) and not self._no_checkpoints:
            self._keep_none("another process cannot keep its state")
        self._agree_to_end()

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
        self._rate = None
        self._agree_to_end()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Measure the execution, unless it builds a graph first."""
        steps = self._active_train_function.last_steps
        if steps and not self._follows_steps:  # who looks at a step may set the rate of the next
            self._rate = read_rate(self._training_model.optimizer, ahead=steps - 1)
        if self._monitor and self._active_train_function.builds_graph:
            self._monitor.pause()
        elif self._monitor:
            self._monitor.resume()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Say every few seconds how far a long epoch is, and keep a checkpoint where one is due."""
        if (draws := self._active_train_function.draws) and not self._no_checkpoints:
            self._keep_none(
                f"{', '.join(sorted(draws))} of the train step draws by a state that no checkpoint"
                " holds; use keras.random with a SeedGenerator"
            )
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
        if self._rate is None:
            self._rate = read_rate(self._training_model.optimizer, ahead=-1)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Close the epoch: row, metrics, checkpoint."""
        row = make_row(
            epoch,
            logs or {},
            examples_per_s=self._active_train_function.timer.rates[-1]
            * self._pipeline.examples
            / self._pipeline.steps_per_epoch,
            learning_rate=float("nan") if self._rate is None else self._rate,
        )
        self.rows.append(row)
        self._steps_of_last = self._step
        echo(
            f"  epoch {epoch + 1} of {self._settings.epochs}: {describe_row(row)},"
            f" {row['examples_per_s']:,.0f} examples/s"
        )
        self._recorder.log_metrics(name_metrics(row), step=epoch)
        self._agree_to_end()
        ended = self._training_model.stop_training or epoch + 1 == self._settings.epochs
        count, unit = self._settings.checkpoint_period
        if ended or unit == "steps" or (epoch + 1) % count == 0:
            self._save(0, ended=ended)

    def _agree_to_end(self) -> None:
        """End the training in all processes where a callback has ended it in one of them."""
        self._training_model.stop_training = self._agree(self._training_model.stop_training)

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
        """Say that this training cannot be resumed, and write no checkpoint that would not be all
        of it.
        """
        self._no_checkpoints = reason
        echo_problem(f"no checkpoints are kept, an interrupted training begins again: {reason}")

    def _save(self, step: int, *, ended: bool = False) -> None:
        """Write a checkpoint, also of a training that has `ended`, whose evaluation and records are
        still to come. Where that fails, training continues, and the earlier one stays in force.
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
            "unsent": self._recorder.unsent,
            "ended": ended,
            "steps_of_last": self._steps_of_last,
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


def _metric_variables(model: keras.Model) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
