"""Makes the replicas of a Keras model in several processes behave as one model.

Batch statistics are those of the whole batch, random draws differ, and weights stay equal.
"""

from typing import Any

import keras
import numpy as np

from throughline.settings import TrainSettings
from throughline.shared.errors import UnknownModel
from throughline.shared.progress import echo_fact
from throughline.training.compiling import gives_one_number
from throughline.training.replicas import Replicas, count_training_gpus, digest_to_int
from throughline.training.step_function import StepFunction

RANDOM_STATE = "seed_generator_state"  # Keras' name for the state of random layers
# Effects of an optimizer's options with several processes.
_CLIPS = "clips the gradient of each slice, not that of the batch"
_SKIPS = "synchronizes in some steps only, which TensorFlow cannot do"
UNFIT = {
    **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"), _CLIPS),
    **dict.fromkeys(("gradient_accumulation_steps", "ema_overwrite_frequency"), _SKIPS),
}


def adapt_to_replicas(model: keras.Model, network: keras.Model) -> None:
    """Make several processes train the model exactly as one would, or raise UnknownModel."""
    check_gradients_add_up(network)
    synchronize_normalization(network)
    if not count_training_gpus():
        model.jit_compile = False  # XLA does not support the exchange between processes
    if type(network).train_step is not keras.Model.train_step:
        echo_fact(
            "the model has a train step of its own: its gradients are summed over the processes, so"
            " it must divide its loss by their number, as Keras does, and clipping would apply to"
            " the gradients of a slice (docs/training.md, Several processes)"
        )


def check_weights(replicas: Replicas, model: keras.Model) -> None:
    """Raise ProcessesDiffer unless all processes have the same weights, bit for bit."""
    if replicas.several:
        content = b"".join(
            np.asarray(one).tobytes() for one in model.variables if one.name != RANDOM_STATE
        )
        replicas.check_same(
            {"weights": digest_to_int(content)},
            remedy="a layer keeps state from its own slice of the batches, or an operation is not"
            " deterministic; train in one process",
        )


def check_gradients_add_up(model: keras.Model) -> None:
    """Raise UnknownModel unless the slices' gradients add up to those of the whole batch.

    Gradients do not add up if the optimizer clips them or synchronizes only in some steps, if
    outputs have a mask, or if a loss is not divided by the number of examples.
    """
    optimizer, outputs = model.optimizer, getattr(model, "outputs", None) or ()
    parts = (optimizer, getattr(optimizer, "inner_optimizer", None))
    for one in (*parts, *getattr(optimizer, "optimizers", ())):
        for name, why in UNFIT.items():
            if getattr(one, name, None):
                raise UnknownModel(
                    f"train.optimizer: with several processes, {name} {why}; leave it out, or train"
                    " in one process"
                )
    if any(getattr(each, "_keras_mask", None) is not None for each in outputs):
        raise UnknownModel(
            "the model's outputs have a mask, so with several processes the loss is divided by the"
            " unmasked values of each slice, not of the batch; end the mask before the outputs,"
            " or train in one process"
        )
    for given in keras.tree.flatten(getattr(model, "loss", None)):
        loss: Any = keras.losses.get(given)
        name = getattr(loss, "name", getattr(loss, "__name__", given))
        if getattr(loss, "ignore_class", None) is not None:
            reason = "ignore_class divides it by the counted labels of each slice, not of the batch"
        elif getattr(loss, "reduction", None) == "mean_with_sample_weight":
            reason = "its reduction divides it by the weights of each slice, not of the batch"
        elif gives_one_number(loss, model):
            reason = "it is one number per slice, which Keras does not divide by the slice count"
        else:
            continue
        raise UnknownModel(
            f"train.loss: with several processes, {name} is not the loss of the batch: {reason};"
            " use a loss per example in which all examples count, or train in one process"
        )


def make_random_layers_differ(replicas: Replicas, model: keras.Model) -> None:
    """Derive the random layers' seeds from the chief's, so that slices get different masks."""
    if replicas.is_chief:
        return
    for variable in model.variables:
        if variable.name == RANDOM_STATE:
            seed, *rest = np.asarray(variable).tolist()
            drawn = digest_to_int(f"{seed} {replicas.worker.index}".encode()) % (1 << 32)
            variable.assign(np.asarray([drawn, *rest], variable.dtype))


def synchronize_normalization(model: keras.Model) -> None:
    """Let every BatchNormalization, also in nested models, use statistics of the whole batch."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


class StepDeadline(keras.callbacks.Callback):
    """Ends a process whose step, with all later callbacks, takes too long; compares weights."""

    def __init__(
        self, replicas: Replicas, train_function: StepFunction, settings: TrainSettings
    ) -> None:
        super().__init__()
        self._replicas, self._deadline = replicas, replicas.deadline
        self._train_function, self._settings = train_function, settings

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        settings = self._settings
        building = self._train_function.builds_graph
        limit = settings.start_timeout_s if building else settings.step_timeout_s
        self._deadline.begin(limit, f"step {batch + 1:,} of its epoch")

    def on_test_begin(self, logs: Any = None) -> None:
        """End the time limit: each process evaluates by itself, for as long as it needs."""
        self._deadline.end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model is not None:
            check_weights(self._replicas, self.model)
