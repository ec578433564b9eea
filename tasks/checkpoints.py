"""Checkpoints of a training that may be interrupted at any instant: position, weights, optimizer, random layers, metrics, epoch rows.

A checkpoint belongs to one piece of work (data, ops, configuration, model, settings); another work never goes on from it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tasks.evidence.steps import StepTimer
from tasks.evidence.tracking import Recorder
from tasks.files import read_json, write_json
from tasks.pipelines.dataset import InputPipeline
from tasks.progress import say
from tasks.settings import TrainSettings

FOLDER = ".checkpoint"
STATE = "state.json"
TELL_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training is: whole epochs, and steps of the epoch that has begun."""

    epoch: int = 0
    step: int = 0


class Progress(keras.callbacks.Callback):
    """Epoch rows and checkpoints, as the callback of a training that may be interrupted at any instant."""

    def __init__(self, pipeline: InputPipeline, folder: Path, work: str, settings: TrainSettings, recorder: Recorder) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.timer = StepTimer(settings.steps_per_execution)
        self._pipeline, self._folder, self._work = pipeline, folder, work
        self._settings, self._recorder = settings, recorder
        self._begun = Position()
        self._metrics: list[Any] = []  # values of the metrics in mid-epoch, to go on from
        self._told = 0.0
        self._epoch = 0

    @property
    def _trained(self) -> keras.Model:
        """The model that Keras is training."""
        if self.model is None:
            raise RuntimeError("no training has begun")
        return self.model

    def restore(self, model: keras.Model) -> Position:
        """Load the last checkpoint of the same work into the model and say how far it was; the beginning where there is none."""
        state_file = self._folder / STATE
        if not state_file.exists() or (state := read_json(state_file))["work"] != self._work:
            shutil.rmtree(self._folder, ignore_errors=True)
            return Position()
        self._variables(model).read(str(self._folder / state["checkpoint"])).assert_consumed()
        self.rows, self._metrics = state["rows"], state["metrics"]
        self._begun = Position(epoch=len(self.rows), step=state["step"])
        return self._begun

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """In an epoch that was interrupted, let its metrics go on."""
        self._epoch = epoch
        self._told = time.monotonic()
        self.timer.begin()
        if self._metrics and epoch == self._begun.epoch:
            for variable, value in zip(_metric_variables(self._trained), self._metrics, strict=True):
                variable.assign(np.asarray(value, variable.dtype))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Time the step, say every few seconds how far a long epoch is, and keep a checkpoint where one is due."""
        self.timer.tick()
        earlier = self._begun.step if self._epoch == self._begun.epoch else 0
        # With several steps per execution, Keras' number of the batch may run past the end of the epoch.
        step = min(earlier + batch + 1, self._pipeline.steps)
        if time.monotonic() - self._told >= TELL_EVERY_S:
            self._told = time.monotonic()
            say(f"  step {step:,} of {self._pipeline.steps:,}: loss {(logs or {}).get('loss', float('nan')):.4f}")
        count, unit = self._settings.checkpoint_period
        due = step // count > (step - self._settings.steps_per_execution) // count
        if unit == "steps" and due and self._pipeline.plan.gathers and step < self._pipeline.steps:
            self._save(step)

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """The epoch's last step is done; validation is not timed."""
        self.timer.end()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Close the epoch: row, metrics, checkpoint."""
        values = dict(logs or {})
        metric = next(name for name in values if name not in ("loss", "val_loss") and not name.startswith("val_"))
        row = {
            "epoch": epoch,
            "train_loss": float(values["loss"]),
            f"train_{metric}": float(values[metric]),
            "val_loss": float(values["val_loss"]),
            f"val_{metric}": float(values[f"val_{metric}"]),
            "examples_per_s": self.timer.rates[-1] * self._pipeline.examples / self._pipeline.steps,
            "learning_rate": float(self._trained.optimizer.learning_rate),
        }
        self.rows.append(row)
        say(
            f"  epoch {epoch + 1} of {self._settings.epochs}: loss {row['train_loss']:.4f}, {metric} {row[f'train_{metric}']:.4f}, "
            f"validation {metric} {row[f'val_{metric}']:.4f}, {row['examples_per_s']:,.0f} examples/s"
        )
        kinds = {"train": "train_", "val": "val_"}
        told = {f"{kind}/{name}": row[f"{prefix}{name}"] for kind, prefix in kinds.items() for name in ("loss", metric)}
        self._recorder.metrics(told, step=epoch)
        count, unit = self._settings.checkpoint_period
        if epoch + 1 < self._settings.epochs and (unit == "steps" or (epoch + 1) % count == 0):
            self._save(0)

    def _variables(self, model: keras.Model) -> tf.train.Checkpoint:
        """Every variable by position: weights, optimizer slots, step counter and the state of random layers."""
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        return tf.train.Checkpoint(variables=[getattr(variable, "value", variable) for variable in variables])

    def _save(self, step: int) -> None:
        """Write the checkpoint, then the state that names it: a kill in between leaves the earlier one in force."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"at-{len(self.rows):04d}-{step:08d}"
        self._variables(self._trained).write(str(self._folder / name))
        metrics = [np.asarray(variable).tolist() for variable in _metric_variables(self._trained)] if step else []
        state = {"work": self._work, "checkpoint": name, "step": step, "rows": self.rows, "metrics": metrics, "run_id": self._recorder.run_id}
        write_json(self._folder / STATE, state)
        for stale in self._folder.glob("at-*"):
            if not stale.name.startswith(name):
                stale.unlink()


def _metric_variables(model: keras.Model) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]


def resumable_run(folder: Path, work: str) -> str | None:
    """The MLflow run of an interrupted training of the same work."""
    state_file = folder / STATE
    state = read_json(state_file) if state_file.exists() else {}
    return state.get("run_id") if state.get("work") == work else None
