"""Judges a trained model's predictions for single examples, of a split or of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.data.manifest import map_documents, read_manifest
from throughline.kernels.elements import select_inputs
from throughline.models.inference import gives_probabilities
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.schema import Schema, TableColumns
from throughline.results.evaluation import Confusion

MOST_CLASSES = 20
LONGEST_TEXT = 200  # characters of a text to show
SMALLEST_PROBABILITY = 1e-7  # as in Keras' losses


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The predictions of a model for a split.

    Attributes:
      metric: Accuracy, or the mean absolute error of numbers.
      truths, predictions: Classes (examples,) int64; empty for numbers.
      target_errors: The mean absolute error of each target (targets,) float64; empty for classes.
    """

    examples: int
    metric: float
    truths: np.ndarray
    predictions: np.ndarray
    target_errors: np.ndarray


def evaluate_examples(model: keras.Model, pipeline: InputPipeline, *, classes: bool) -> Outcomes:
    """Run the model on each example of a pipeline; without `classes`, it predicts numbers."""
    schema = pipeline.data.shards.schema
    wanted = ("truths", "predictions") if classes else ("target_errors",)

    def run(element: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        judged = judge(model, element, schema, classes=classes)
        return [judged[name] for name in wanted]

    traced = tf.function(run, autograph=False, reduce_retracing=True)
    batches = [[value.numpy() for value in traced(element)] for element in pipeline.dataset()]
    values = [np.concatenate(each) for each in zip(*batches, strict=True)]
    true, predicted = values if classes else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    errors = np.zeros(0) if classes else values[0].mean(axis=0, dtype=np.float64)
    return Outcomes(
        examples=len(values[0]),
        metric=float((true == predicted).mean() if classes else errors.mean()),
        truths=true,
        predictions=predicted,
        target_errors=errors,
    )


def judge(
    model: keras.Model, batch: dict[str, tf.Tensor], schema: Schema, *, classes: bool
) -> dict[str, tf.Tensor]:
    """Return the model's `predictions` (batch, …) for a batch, and the `losses` (batch,) float32.

    For classes, also the `truths`, and the `probabilities` of the predicted classes. For numbers,
    the loss is the mean absolute error, and `target_errors` (batch, targets) has each target's.
    """
    outputs = tf.cast(model(select_inputs(batch, schema), training=False), tf.float32)
    if not classes:
        return _judge_numbers(outputs, batch["label"])
    if gives_probabilities(model):
        outputs = tf.math.log(tf.maximum(outputs, SMALLEST_PROBABILITY))
    return _judge_classes(outputs, batch["label"])


def order_by_loss(losses: np.ndarray) -> np.ndarray:
    """Return the places of losses (n,), the highest first; NaN is the highest."""
    return np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")


def name_values(values: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Return the names of classes (n,), or numbers (n, …) as text if `classes` is empty."""
    if classes:
        return [classes[int(number)] for number in values]
    return [", ".join(f"{value:.4g}" for value in np.ravel(each)) for each in values]


def count_confusions(
    truths: np.ndarray, predictions: np.ndarray, classes: Sequence[str], *, most: int = MOST_CLASSES
) -> Confusion:
    """Count how often each class is predicted as each class, from (examples,) arrays.

    If there are more than `most` classes, those with the most errors in either direction are kept.
    """
    number = len(classes)
    pairs, counts = np.unique(truths * number + predictions, return_counts=True)
    true, predicted = pairs // number, pairs % number
    wrong = np.where(true != predicted, counts, 0)
    confused = np.bincount(true, wrong, number) + np.bincount(predicted, wrong, number)
    kept = np.sort(np.argsort(-confused, kind="stable")[:most])
    place = np.full(number, -1)
    place[kept] = np.arange(len(kept))
    shown = (place[true] >= 0) & (place[predicted] >= 0)
    matrix = np.zeros((len(kept), len(kept)), np.int64)
    matrix[place[true[shown]], place[predicted[shown]]] = counts[shown]
    return Confusion(
        classes=tuple(classes[int(index)] for index in kept),
        counts=tuple(tuple(row) for row in matrix.tolist()),
        left_out=number - len(kept),
    )


def _judge_classes(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Judge classes for `judge`; labels are numbers or vectors, the loss is the cross-entropy."""
    vectors = labels.shape.rank == logits.shape.rank
    truths = tf.argmax(labels, axis=-1) if vectors else tf.cast(labels, tf.int64)
    losses = (
        tf.nn.softmax_cross_entropy_with_logits(labels, logits)
        if vectors
        else tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    )
    return {
        "truths": truths,
        "predictions": tf.argmax(logits, axis=-1),
        "probabilities": tf.reduce_max(tf.nn.softmax(logits), axis=-1),
        "losses": losses,
    }


def _judge_numbers(outputs: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    labels = tf.reshape(tf.cast(labels, tf.float32), tf.shape(outputs))
    errors = tf.abs(outputs - labels)
    axes = list(range(1, outputs.shape.rank))
    return {
        "predictions": outputs,
        "losses": tf.reduce_mean(errors, axis=axes),
        "target_errors": tf.reduce_mean(errors, axis=axes[:-1]),
    }


def describe_inputs(
    keys: Sequence[int], inputs: np.ndarray, pipeline: InputPipeline, manifest: Path
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the ids of examples with these keys (n,), and their values in words; "" for an image.

    `inputs` (n, …) are their table columns, or else the model's input.
    """
    schema, nothing = pipeline.data.shards.schema, [""] * len(keys)
    if pipeline.plan.window:
        kind = "window from time step" if schema.is_series else "window"
        return [f"{kind} {key + 1:,}" for key in keys], nothing
    rows = read_manifest(manifest).examples.set_index("key").loc[[*keys]]
    values = nothing
    if schema.is_text:
        documents = map_documents(manifest)
        values = [
            _shorten(bytes(documents[start : start + size]).decode("utf-8", "replace"))
            for start, size in zip(rows["row"], rows["bytes"], strict=True)
        ]
    elif schema.table_input or schema.input.encoding.modality == "numbers":
        values = [_describe_row(row, schema.columns) for row in inputs]
    return rows["id"].tolist(), values


def _describe_row(row: np.ndarray, columns: TableColumns) -> str:
    if row.ndim > 1:
        extent = "×".join(map(str, row.shape))
        return f"{extent} values from {row.min():.4g} to {row.max():.4g}"
    cells = [
        f"{name}: {row[place]:.4g}"
        if place < columns.numeric
        else f"{name}: {columns.categories[place - columns.numeric][int(row[place])]}"
        for place, name in enumerate(columns.names)
    ]
    return _shorten(", ".join(cells))


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
