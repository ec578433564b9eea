"""The callback that records epochs and writes checkpoints, so that a training can be interrupted.

A checkpoint holds the position, weights, the state of optimizers, random layers and callbacks,
metrics, epoch rows and the loss of each step.
"""

import time
from array import array
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
from throughline.training.checkpoint_store import RUN, CheckpointStore, first_line
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
from throughline.training.step_function import StepFollower, StepFunction, follows_steps
from throughline.training.step_model import find_network

CHECKPOINT_FOLDER = ".checkpoint"
CALLBACKS, LOSSES = "callbacks.pickle", "losses.float32"
LOG_EVERY_S = 10.0


class MetricsLog(Protocol):
    """Receives each epoch's metrics, as an MLflow run does; `unsent` tags one that MLflow lacks."""

    run_id: str | None

    @property
    def unsent(self) -> str | None: ...

    def log_metrics(
        self, values: Mapping[str, float | None], *, step: int | None = None
    ) -> None: ...


class Pausable(Protocol):
    """A measurement of this process that can be paused."""

    @property
    def running(self) -> bool: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class CheckpointCallback(StepFollower):
    """Records epoch rows and writes checkpoints; the last callback of a training.

    Attributes:
      losses: The loss of each step up to the last checkpoint or end of an epoch, float32.
      measured_steps: Number of steps that the monitor has measured, without those building a graph.
      ended: Whether the restored training had already ended.
    """

    def __init__(
        self,
        pipeline: InputPipeline,
        store: CheckpointStore,
        settings: TrainSettings,
        recorder: MetricsLog | None,
    ) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.losses = array("f")
        self.measured_steps = 0
        self.ended = False
        self._pipeline, self._store = pipeline, store
        self._settings, self._recorder = settings, recorder
        self._monitor: Pausable | None = None
        self._others: Callbacks = ()
        self._others_state: bytes | None = None  # to be restored when the training begins
        self._no_checkpoints = ""  # why checkpoints of this training would be incomplete
        self._start = Position()
        self._restored: list[tuple[tf.Variable, np.ndarray]] = []  # values until the epoch begins
        self._metrics: list[Any] = []  # metrics' values within the resumed epoch
        self._logged_at = 0.0
        self._step = 0  # steps of the current epoch that have run
        self._steps_of_last = pipeline.steps_per_epoch  # steps of the last row's epoch
        self._rate: float | None = None  # learning rate of the current epoch's last step

    @property
    def last_logs(self) -> dict[str, float]:
        return read_logs(self.rows[-1]) if self.rows else {}

    @property
    def steps(self) -> int:
        """The number of steps in all rows; a callback may have cut the last epoch short."""
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
        """Follow a train function, and keep the state of the other callbacks.

        A resumed training continues with the current values of the variables. `monitor` is paused
        while a graph is built or the model is validated. `agree` returns whether a condition holds
        in any of the processes that train together.
        """
        self._train_function, self._monitor, self._others = train_function, monitor, others
        self._network, self._agree = find_network(train_function.model), agree
        self._follow_steps = all(map(follows_steps, others))
        if self._others_state is not None:
            variables = list_variables(self._network)
            self._restored = [(variable, variable.numpy()) for variable in variables]

    def restore(self, model: keras.Model) -> Position:
        """Load the newest usable checkpoint, if any, into the model, and return its position.

        Logs the restored epochs again. Raises ImpossiblePlan if batches are cut differently now.
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
        self.losses.frombytes(saved.read(LOSSES))
        self._check_batches(state)
        self.rows, self._metrics = [read_row(row) for row in state["rows"]], state["metrics"]
        self.ended, self._steps_of_last = state["ended"], state["steps_of_last"]
        for epoch, row in enumerate(self.rows):
            self._log(row, epoch)
        self._start = Position(epoch=len(self.rows), step=state["step"])
        return self._start

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """If resumed, undo the changes of other callbacks' starts, and restore their state."""
        if self._others_state is not None:
            self._go_on(self._others_state)
            self._network.stop_training = self.ended
        else:
            try:
                dump_states(self._others, list_parts(self._network))
            except TypeError as error:
                self._keep_none(f"a callback has state that cannot be stored ({error})")
        if self._agree(bool(self._no_checkpoints)) and not self._no_checkpoints:
            self._keep_none("another process cannot keep its state")
        self._agree_to_end()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Restore an interrupted epoch's metrics; undo what other callbacks set at its start."""
        resumed = epoch == self._start.epoch and self._start.step > 0
        if resumed and self._others_state is not None:
            self._go_on(self._others_state)
        self._restored = []
        if resumed:
            variables = _metric_variables(self._network)
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(np.asarray(value, variable.dtype))
        self._step, self._logged_at = self._start.step if resumed else 0, time.monotonic()
        self._rate = None
        self._agree_to_end()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Pause the monitor if the next execution builds a graph; resume it otherwise."""
        steps = self._train_function.last_steps
        if steps and not self._follow_steps:  # callbacks may change the rate after each step
            self._rate = read_rate(self._network.optimizer, ahead=steps - 1)
        if self._monitor and self._train_function.builds_graph:
            self._monitor.pause()
        elif self._monitor:
            self._monitor.resume()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Print a long epoch's progress every few seconds, and write a checkpoint if one is due."""
        if (draws := self._train_function.draws) and not self._no_checkpoints:
            self._keep_none(
                "the train step draws random numbers from a state that no checkpoint holds"
                f" ({', '.join(sorted(draws))}); use keras.random with a SeedGenerator"
            )
        # The batch number of Keras may exceed the steps of the epoch.
        steps = self._train_function.steps
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
        due = unit == "steps" and self._step // count > before // count
        ends = self._step >= self._pipeline.steps_per_epoch
        if due and not ends and self._pipeline.plan.seekable:
            self._save(self._step)

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        if self._monitor:
            self._monitor.pause()
        if self._rate is None:
            self._rate = read_rate(self._network.optimizer, ahead=-1)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        per_step = self._pipeline.examples / self._pipeline.steps_per_epoch
        row = make_row(
            epoch,
            logs or {},
            examples_per_s=self._train_function.timer.rates[-1] * per_step,
            learning_rate=float("nan") if self._rate is None else self._rate,
        )
        self.rows.append(row)
        self.losses += self._train_function.losses
        self._steps_of_last = self._step
        echo(
            f"  epoch {epoch + 1} of {self._settings.epochs}: {describe_row(row)},"
            f" {row['examples_per_s']:,.0f} examples/s"
        )
        self._log(row, epoch)
        self._agree_to_end()
        ended = self._network.stop_training or epoch + 1 == self._settings.epochs
        count, unit = self._settings.checkpoint_period
        if ended or unit == "steps" or (epoch + 1) % count == 0:
            self._save(0, ended=ended)

    def _log(self, row: Mapping[str, float], epoch: int) -> None:
        if self._recorder:
            self._recorder.log_metrics(name_metrics(row), step=epoch)

    def _agree_to_end(self) -> None:
        self._network.stop_training = self._agree(self._network.stop_training)

    def _check_batches(self, state: Mapping[str, Any]) -> None:
        """Refuse to resume if batches would be cut differently from those of the checkpoint."""
        multiple, examples = self._pipeline.worker.multiple, self._pipeline.examples
        before = state.get("batch_multiple", 1)
        by_length = self._pipeline.plan.batching is not None
        if before != multiple and (by_length or state.get("examples", examples) != examples):
            raise ImpossiblePlan(
                f"the interrupted training cut its batches to multiples of {before}; now they would"
                f" be cut to multiples of {multiple}, with other examples. To continue, set"
                f" train.batch_multiple: {before}; to begin again, remove {CHECKPOINT_FOLDER} in"
                " the folder of its results"
            )

    def _go_on(self, stored: bytes) -> None:
        for variable, restored in self._restored:
            variable.assign(restored)
        load_states(self._others, stored, list_parts(self._network))

    def _keep_none(self, reason: str) -> None:
        self._no_checkpoints = reason
        echo_problem(f"no checkpoints are kept, so an interrupted training begins again: {reason}")

    def _save(self, step: int, *, ended: bool = False) -> None:
        """Write a checkpoint; if that fails, training continues, and the earlier one stays."""
        if self._no_checkpoints:
            return
        self._train_function.settle()
        losses, metrics = self.losses, []
        if step:
            losses = losses + self._train_function.losses
            metrics = [np.asarray(one).tolist() for one in _metric_variables(self._network)]
        if self._pipeline.worker.index:
            return  # the chief writes, after all processes have read the metrics together
        state = {
            "step": step,
            "examples": self._pipeline.examples,
            "batch_multiple": self._pipeline.worker.multiple,
            "rows": self.rows,
            "metrics": metrics,
            **{key: getattr(self._recorder, key, None) for key in RUN},
            "ended": ended,
            "steps_of_last": self._steps_of_last,
        }
        position, parts = (len(self.rows), step), list_parts(self._network)
        try:
            members = {CALLBACKS: dump_states(self._others, parts), LOSSES: losses.tobytes()}
            self._store.write(list_variables(self._network), state, members, position=position)
        except (OSError, TypeError, tf.errors.OpError) as error:  # TypeError from callbacks' state
            reason = disk_reason(error) or first_line(error)
            echo_problem(
                f"no checkpoint could be written ({reason}); training continues, and the earlier"
                " one stays"
            )


def _metric_variables(model: keras.Model) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
