"""What makes of the replicas of a Keras model, one in each of several processes, a single model:
statistics of whole batches, draws that differ, and weights that do not.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from throughline.settings import TrainSettings
from throughline.training.replicas import Replicas, digest_to_int
from throughline.training.step_function import StepFunction

RANDOM_STATE = "seed_generator_state"  # as Keras names the variables of random layers


def check_weights(replicas: Replicas, model: keras.Model) -> None:
    """Check that all processes have the same weights, bit for bit.

    Raises:
      ProcessesDiffer: they have not.
    """
    if replicas.several:
        content = b"".join(
            np.asarray(one).tobytes() for one in model.variables if one.name != RANDOM_STATE
        )
        replicas.check_same(
            {"weights": digest_to_int(content)},
            remedy="a layer keeps what it has seen of its own slice of the batches, or an"
            " operation is not repeatable; train in one process",
        )


def make_random_layers_differ(replicas: Replicas, model: keras.Model) -> None:
    """Let the random layers of each process draw numbers of their own, given the chief's state:
    with the same, dropout would have one mask for all slices.
    """
    if replicas.is_chief:
        return
    for variable in model.variables:
        if variable.name == RANDOM_STATE:
            seed, *rest = np.asarray(variable).tolist()
            drawn = digest_to_int(f"{seed} {replicas.worker.index}".encode()) % (1 << 32)
            variable.assign(np.asarray([drawn, *rest], variable.dtype))


def synchronize_normalization(model: keras.Model) -> None:
    """Have every BatchNormalization take mean and variance of the whole batch, also of models that
    are layers, such as those of keras.applications.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


class StepDeadline(keras.callbacks.Callback):
    """Ends a process whose step, with what callbacks do after it, takes too long, and compares the
    weights after each epoch; the first of the callbacks.
    """

    def __init__(
        self, replicas: Replicas, train_function: StepFunction, settings: TrainSettings
    ) -> None:
        super().__init__()
        self._replicas, self._deadline = replicas, replicas.deadline
        self._train_function, self._settings = train_function, settings

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin to wait for a step."""
        settings = self._settings
        building = self._train_function.builds_graph
        limit = settings.start_timeout_s if building else settings.step_timeout_s
        self._deadline.begin(limit, f"step {batch + 1:,} of its epoch")

    def on_test_begin(self, logs: Any = None) -> None:
        """Wait for nobody: each process evaluates by itself."""
        self._deadline.end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare the weights of all processes."""
        if self.model is not None:
            check_weights(self._replicas, self.model)
