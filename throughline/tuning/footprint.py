"""The memory of a whole training, by a short one: what it holds besides the steps that contestants
run, when it validates, keeps its state, saves the model and records what it gave.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from throughline.assembly.training import open_batches, open_split_pipelines
from throughline.config.params import Params
from throughline.models.builders import Models
from throughline.models.model_files import save_model
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.shared.layout import MODEL_FILE
from throughline.shared.limits import own_memory
from throughline.training.checkpoint_store import CheckpointStore
from throughline.training.checkpoints import CheckpointCallback, NoLog, build_optimizer
from throughline.training.fit import Position, Schedule, SplitEvaluation, fit
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, find_network, make_step_model

STEPS, EPOCHS, VALIDATION_STEPS = 10, 2, 2
MANY_EPOCHS = 1_000_000  # of batches, for epochs of few steps
# What the train stage imports for its results; contestants have none.
RESULTS = (
    "throughline.assembly.evaluation",
    "throughline.tracking.recorder",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.tensorflow",
)
# Of a long one, whose recorded epochs let it grow: 439 MiB became 506 in 30 epochs.
GROWTH = 1.1
SAMPLE_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory of a training that keeps nothing of its input, at most, and what of it a process that
    only steps does not hold [bytes].
    """

    most: int
    besides_steps: int


def measure_footprint(params: Params, name: str, data: PreparedData, models: Models) -> Footprint:
    """Train a few steps in this process, and do what the train stage does besides."""
    pipelines, settings = open_split_pipelines(params, name, data, address=""), params.train
    model = make_step_model(models, settings, Feed.of(pipelines.train, settings))
    step = StepFunction(model)
    batches = iter(open_batches(pipelines.train, Position(), epochs=MANY_EPOCHS))
    step.begin(STEPS)
    done = 0
    while done < STEPS:
        step(batches)
        done += step.steps
    step.settle()
    stepping = own_memory()
    validation = pipelines.validation
    with watched() as samples, TemporaryDirectory() as folder:
        for module in RESULTS:
            importlib.import_module(module)
        build_optimizer(find_network(model))
        checkpoints = CheckpointCallback(
            pipelines.train, CheckpointStore(Path(folder), {}), settings, NoLog()
        )
        checkpoints.attach(step, None)
        fit(
            step,
            batches,
            Schedule(steps_per_epoch=STEPS, epochs=EPOCHS),
            evaluation=SplitEvaluation(
                model, validation.dataset(), min(VALIDATION_STEPS, validation.steps_per_epoch)
            ),
            callbacks=[checkpoints],
        )
        save_model(models.full_model, Path(folder) / MODEL_FILE)
    most = round(GROWTH * max(stepping, *samples))
    return Footprint(most=most, besides_steps=most - stepping)


@contextmanager
def watched() -> Iterator[list[int]]:
    """What this process holds again and again during the block, and at its end [bytes]."""
    samples: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_EVERY_S):
            samples.append(own_memory())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(own_memory())
