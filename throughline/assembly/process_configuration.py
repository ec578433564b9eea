"""Seeds, determinism and precision of a process that trains or measures."""

from __future__ import annotations

import keras
import tensorflow as tf

from throughline.plan.training_workers import TrainingWorker
from throughline.settings import TrainSettings


def configure_process(settings: TrainSettings, worker: TrainingWorker | None = None) -> None:
    """Set this process's seeds, `train.deterministic` and `train.mixed_precision`."""
    keras.utils.set_random_seed(settings.seed)
    if worker is not None and worker.index:
        tf.random.set_seed(settings.seed + worker.index)  # for draws outside of Keras layers
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    if settings.mixed_precision:
        # float16 would need loss scaling, in each train step and alike in all processes.
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
