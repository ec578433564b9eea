"""Runs a model's own train step on the batches of an input pipeline.

The pipeline delivers stored examples, which the device postprocesses, or step numbers, whose
batches the device gathers. The network's own step does not depend on that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from throughline.models import emulation
from throughline.models.builders import Models
from throughline.models.transformers import make_packed_model
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.settings import Sampling, TrainSettings
from throughline.shared.errors import ImpossiblePlan, UnknownModel, did_you_mean
from throughline.training.compiling import compile_model, gives_one_number

Prepare = Callable[[Any], Any]


class StepModel(keras.Model):
    """A compiled `network`, and the functions that its batches go through first.

    `gather` makes a training batch from a step's number, `postprocess` makes floats of stored
    inputs, and `weigh` adds weights to a training batch.
    """

    def __init__(
        self,
        network: keras.Model,
        *,
        postprocess: Prepare | None,
        gather: Prepare | None,
        weigh: Prepare | None,
    ) -> None:
        super().__init__(name="step_model")
        self.network = network
        self._postprocess, self._gather, self._weigh = postprocess, gather, weigh
        self.compile(
            optimizer=network.optimizer,
            # XLA does not support the index shuffle by which batches are gathered.
            jit_compile=network.jit_compile and gather is None,  # pyright: ignore[reportArgumentType]
            run_eagerly=network.run_eagerly,
            steps_per_execution=network.steps_per_execution,
            auto_scale_loss=False,  # the network's optimizer scales it
        )

    @property
    def metrics(self) -> list[Any]:
        return self.network.metrics

    def train_step(self, data: Any) -> Any:
        data = self._gather(data) if self._gather else data
        data = self._postprocessed(data)
        return self.network.train_step(self._weigh(data) if self._weigh else data)

    def test_step(self, data: Any) -> Any:
        return self.network.test_step(self._postprocessed(data))

    def _postprocessed(self, data: Any) -> Any:
        return (self._postprocess(data[0]), *data[1:]) if self._postprocess else data


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The input of train steps from an input pipeline, in epochs of `steps_per_epoch`.

    Attributes:
      stored: Whether inputs are stored values that are still to be postprocessed.
      gather: Makes a batch from the number of a step, if steps receive numbers.
      segments: The most documents in a packed row; None if rows are not packed.
      class_weights: The weight of each class in training batches, (classes,) float32.
    """

    steps_per_epoch: int
    stored: bool
    gather: Prepare | None = None
    segments: int | None = None
    class_weights: np.ndarray | None = None

    @classmethod
    def of(cls, pipeline: InputPipeline, settings: TrainSettings, *, gathers: bool = True) -> Feed:
        return cls(
            steps_per_epoch=pipeline.steps_per_epoch,
            stored=bool(pipeline.plan.device_ops),
            gather=pipeline.gather_fn() if gathers and pipeline.plan.gathers_on_device else None,
            segments=pipeline.segments,
            class_weights=compute_class_weights(
                settings.class_weights, pipeline.data, sampling=pipeline.plan.sampling
            ),
        )


def make_step_model(models: Models, settings: TrainSettings, feed: Feed) -> keras.Model:
    """Return the model to train: the compiled network, or a StepModel if batches need preparing.

    Raises:
      ImpossiblePlan: If batches would be gathered on, or packed for, an emulated accelerator.
      UnknownModel: If the network mixes or weighs documents of a packed row itself, cannot be
          compiled, or may not use the class weights.
    """
    if feed.class_weights is not None and (
        feed.segments or models.target.kind not in ("class", "soft_labels")
    ):
        raise UnknownModel(
            "train.class_weights: packed rows and next tokens do not have one class per example;"
            " leave it out"
        )
    own_step = type(models.network).train_step is not keras.Model.train_step
    if feed.class_weights is not None and own_step:
        raise UnknownModel(
            "train.class_weights: the model has a train step of its own, which may ignore them;"
            " leave them out, and weigh the examples in that step"
        )
    postprocess, gather = (models.postprocess if feed.stored else None), feed.gather
    if models.emulation:
        if feed.segments:
            raise ImpossiblePlan(
                "batch.pack needs a model that keeps segments apart; with model.name: emulated use"
                " `batch: {pad_to: auto}`"
            )
        if gather:
            raise ImpossiblePlan(
                "snapshot_on: device needs the memory of an accelerator, and model.name: emulated"
                " has none; use snapshot_on: host"
            )
        network: keras.Model = emulation.EmulatedTraining(
            models.emulation, emulation.find_output(models.network), models.target.shape
        )
        postprocess = None
    elif feed.segments:
        if models.network.compiled:
            raise UnknownModel(
                "batch.pack weighs the documents of a row in loss and metrics, but the model's"
                " builder compiles its own; leave loss and metrics to params.yaml, or use"
                " `batch: {pad_to: auto}`"
            )
        network = make_packed_model(models.network, segments=feed.segments)
    else:
        network = models.network
    compile_model(network, settings, target=models.target, steps=feed.steps_per_epoch)
    if feed.class_weights is not None and gives_one_number(network.loss, network):
        raise UnknownModel(
            "train.class_weights: the loss is one number for a batch, in which no example can weigh"
            " more than another; leave them out, or return a loss for each example"
        )
    weigh = None if feed.class_weights is None else _make_weigh(feed.class_weights)
    if models.emulation or not (postprocess or gather or weigh):
        return network
    return StepModel(network, postprocess=postprocess, gather=gather, weigh=weigh)


def find_network(model: keras.Model) -> keras.Model:
    """Return the compiled network, which callbacks see, in a model from `make_step_model`."""
    return model.network if isinstance(model, StepModel) else model


def compute_class_weights(
    setting: str | Mapping[str, float], data: PreparedData, *, sampling: Sampling = "uniform"
) -> np.ndarray | None:
    """Return the weight of each class, (classes,) float32; None for the setting `none`.

    `auto` is the inverse of the class's share of the training split, scaled to a mean weight of 1
    per example. Classes that a mapping does not name have weight 1.

    Raises UnknownModel if there are no classes, a name is not a class, all weights are 0, or `auto`
    is combined with a `sampling` that changes the shares.
    """
    if setting == "none":
        return None
    classes = data.shards.classes
    if data.shards.schema.target is None or data.shards.schema.predicts_number or not classes:
        raise UnknownModel("train.class_weights: the data has no classes; leave it out")
    if isinstance(setting, str):
        if sampling != "uniform":
            raise UnknownModel(
                "train.class_weights: auto follows how often the data has each class, but the"
                " configuration's sampling changes how often it is drawn; leave out one of the two"
            )
        labels = np.asarray(data.memmap("train", "label"))
        counts = np.bincount(labels, minlength=len(classes))
        return (len(labels) / (len(classes) * np.maximum(counts, 1))).astype(np.float32)
    unknown = [name for name in setting if name not in classes]
    if unknown:
        raise UnknownModel(
            f"train.class_weights: {unknown[0]} is not a class;"
            f" {did_you_mean(unknown[0], list(classes))}"
        )
    weights = np.asarray([setting.get(name, 1.0) for name in classes], np.float32)
    if not weights.any():
        raise UnknownModel("train.class_weights: all are 0, so nothing would be learned")
    return weights


def _make_weigh(class_weights: np.ndarray) -> Prepare:
    weights = tf.constant(class_weights, tf.float32)

    def weigh(data: Any) -> Any:
        inputs, labels = data[:2]
        if labels.shape.rank == 1:
            return inputs, labels, tf.gather(weights, labels)
        return inputs, labels, tf.linalg.matvec(tf.cast(labels, tf.float32), weights)

    return weigh
