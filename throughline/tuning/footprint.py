"""The memory that a whole training needs beyond the steps that contestants run.

A training also validates, writes checkpoints, saves the model and logs it to MLflow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from throughline.assembly.training import SplitPipelines
from throughline.models.builders import Models
from throughline.models.model_files import save_model
from throughline.race.training import MANY_EPOCHS, WARM_UP_STEPS, advance, warm_up
from throughline.settings import TrainSettings
from throughline.shared.layout import MODEL_FILE
from throughline.shared.limits import own_memory
from throughline.shared.scratch import Scratch
from throughline.tracking.recorder import import_client
from throughline.training.callbacks import make_early_stopping
from throughline.training.checkpoint_store import CheckpointStore
from throughline.training.checkpoints import CheckpointCallback, NoLog
from throughline.training.fit import Schedule, SplitEvaluation, fit
from throughline.training.model_state import build_optimizer
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, find_network, make_step_model

EPOCHS, VALIDATION_STEPS = 2, 2
EPOCH_S = 2.0  # duration of an epoch here; slow steps make it shorter
# For the growth over epochs, the test split and recording: 67 MiB in 30 epochs of an MLP.
GROWTH_BYTES = 96 * 2**20
SAMPLE_EVERY_S = 0.02


def measure_besides_steps(
    models: Models, pipelines: SplitPipelines, settings: TrainSettings, root: Path
) -> int:
    """Train a few steps as the train stage does, and return the memory beyond stepping [bytes].

    The result includes the copy of the model for MLflow. Runs in this process.
    """
    model = make_step_model(models, settings, Feed.of(pipelines.train, settings))
    step, network = StepFunction(model), find_network(model)
    batches = iter(pipelines.train.steps(epochs=MANY_EPOCHS))
    steps = min(WARM_UP_STEPS, warm_up(step, partial(advance, step, batches), seconds=EPOCH_S))
    stepping, validation, scratch = own_memory(), pipelines.validation, Scratch(root)
    with watched() as samples, TemporaryDirectory(dir=scratch.folder) as folder:
        import_client()
        build_optimizer(network)
        stopping = make_early_stopping(settings)
        checkpoints = CheckpointCallback(
            pipelines.train,
            CheckpointStore(Path(folder), {}),
            settings.model_copy(update={"checkpoint_every": "1 epoch"}),
            NoLog(),
        )
        checkpoints.attach(step, None, stopping)
        fit(
            step,
            batches,
            Schedule(steps_per_epoch=steps, epochs=EPOCHS),
            evaluation=SplitEvaluation(
                model, validation.dataset(), min(VALIDATION_STEPS, validation.steps_per_epoch)
            ),
            callbacks=[*stopping, checkpoints],
        )
        save_model(models.full_model, Path(folder) / MODEL_FILE)
    values = [variable.value for variable in network.variables]
    copied = sum(value.shape.num_elements() * value.dtype.size for value in values)
    return max(samples) - stepping + copied + GROWTH_BYTES


@contextmanager
def watched() -> Iterator[list[int]]:
    """Collect the memory of this process [bytes] regularly during the block, and at its end."""
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
