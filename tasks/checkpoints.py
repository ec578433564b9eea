"""Checkpoints of a training that may be interrupted at any instant: weights, optimizer, random layers, epoch rows.

A checkpoint belongs to one piece of work (data, configuration, model, settings); another work never goes on from it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from tasks.evidence.steps import StepTimer
from tasks.evidence.tracking import Recorder
from tasks.files import read_json, write_json
from tasks.pipelines.dataset import InputPipeline
from tasks.progress import say
from tasks.settings import TrainSettings

EPOCH_COLUMNS = ("epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "examples_per_s", "learning_rate")
FOLDER = ".checkpoint"
STATE = "state.json"
TELL_EVERY_S = 10.0


class Progress:
    """Epoch rows and checkpoints of a training that may be interrupted at any instant."""

    def __init__(self, model: keras.Model, pipeline: InputPipeline, out: Path, work: str, settings: TrainSettings, recorder: Recorder) -> None:
        self.rows: list[dict[str, float]] = []
        self._model, self._pipeline, self._folder, self._work = model, pipeline, out / FOLDER, work
        self._settings, self._recorder = settings, recorder
        self._told = 0.0
        # Every variable by position: weights, optimizer slots, step counter and the state of random layers.
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        self._checkpoint = tf.train.Checkpoint(variables=[getattr(variable, "value", variable) for variable in variables])

    def restore(self) -> int:
        """Load the last checkpoint of the same work and return the number of epochs it has; 0 where there is none."""
        state_file = self._folder / STATE
        if not state_file.exists() or (state := read_json(state_file))["work"] != self._work:
            shutil.rmtree(self._folder, ignore_errors=True)
            return 0
        self._checkpoint.read(str(self._folder / state["checkpoint"])).assert_consumed()
        self.rows = state["rows"]
        self._pipeline.epoch.assign(len(self.rows))
        return len(self.rows)

    def callback(self, timer: StepTimer) -> keras.callbacks.Callback:
        """The callback that closes each epoch: row, metrics, checkpoint, and the epoch counter of random ops."""
        return keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self._begin(epoch),
            on_train_batch_end=lambda batch, logs: self._tell(batch, logs or {}),
            on_epoch_end=lambda epoch, logs: self._close(epoch, logs or {}, timer),
        )

    def _begin(self, epoch: int) -> None:
        self._pipeline.epoch.assign(epoch)
        self._told = time.monotonic()

    def _tell(self, batch: int, logs: Mapping[str, float]) -> None:
        """Say every few seconds how far a long epoch is."""
        if time.monotonic() - self._told >= TELL_EVERY_S:
            self._told = time.monotonic()
            say(f"  step {batch + 1:,} of {self._pipeline.steps:,}: loss {logs.get('loss', float('nan')):.4f}")

    def _close(self, epoch: int, logs: Mapping[str, float], timer: StepTimer) -> None:
        values = (
            epoch,
            logs["loss"],
            logs["accuracy"],
            logs["val_loss"],
            logs["val_accuracy"],
            timer.examples_per_s(self._pipeline.examples)[-1],
            float(self._model.optimizer.learning_rate),
        )
        row = dict(zip(EPOCH_COLUMNS, (float(value) for value in values), strict=True)) | {"epoch": epoch}
        self.rows.append(row)
        say(
            f"  epoch {epoch + 1} of {self._settings.epochs}: loss {row['train_loss']:.4f}, accuracy {row['train_accuracy']:.4f}, "
            f"validation accuracy {row['val_accuracy']:.4f}, {row['examples_per_s']:,.0f} examples/s"
        )
        names = {"train_loss": "train/loss", "train_accuracy": "train/accuracy", "val_loss": "val/loss", "val_accuracy": "val/accuracy"}
        self._recorder.metrics({metric: row[name] for name, metric in names.items()}, step=epoch)
        last = epoch + 1 == self._settings.epochs
        if not last and (epoch + 1) % self._settings.checkpoint_every == 0:
            self._save(epoch)

    def _save(self, epoch: int) -> None:
        """Write the checkpoint, then the state that names it: a kill in between leaves the earlier one in force."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"epoch-{epoch:04d}"
        self._checkpoint.write(str(self._folder / name))
        write_json(self._folder / STATE, {"work": self._work, "checkpoint": name, "rows": self.rows, "run_id": self._recorder.run_id})
        for stale in self._folder.glob("epoch-*"):
            if not stale.name.startswith(name):
                stale.unlink()


def resumable_run(out: Path, work: str) -> str | None:
    """The MLflow run of an interrupted training of the same work."""
    state_file = out / FOLDER / STATE
    state = read_json(state_file) if state_file.exists() else {}
    return state.get("run_id") if state.get("work") == work else None
