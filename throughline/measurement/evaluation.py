"""Finds the held-out examples that a trained model gets wrong, in one pass over a split."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.data.manifest import map_documents, read_manifest
from throughline.kernels.elements import select_inputs
from throughline.models.inference import gives_probabilities
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.schema import COLUMNS, TableColumns
from throughline.results.evaluation import Confusion, Evaluation, WorstExample

MOST_CLASSES, MOST_WORST = 20, 12
LONGEST_TEXT = 200  # characters of a text to show
SMALLEST_PROBABILITY = 1e-7  # as in Keras' losses
THUMBNAIL = 96  # longest side of an image [pixels]


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The predictions of a model for a split.

    Attributes:
      metric: Accuracy, or the mean absolute error of numbers.
      truths, predictions: Classes (examples,) int64; zeros for numbers.
      worst: The examples with the highest loss, worst first: `keys` (worst,) int64, `losses`,
          `probabilities` of the predicted class, `inputs`, `labels` and `outputs` (worst, …).
      target_errors: The mean absolute error of each target (targets,) float64; empty for classes.
    """

    examples: int
    metric: float
    truths: np.ndarray
    predictions: np.ndarray
    worst: dict[str, np.ndarray]
    target_errors: np.ndarray


def evaluate_examples(
    model: keras.Model,
    pipeline: InputPipeline,
    *,
    classes: bool,
    batches: Iterable[dict[str, tf.Tensor]] | None = None,
    most: int = MOST_WORST,
) -> Outcomes:
    """Run the model on each example of a `pipeline` that delivers keys, or of its `batches`.

    Keeps the `most` examples with the highest loss. Without `classes`, the model predicts numbers,
    and an example's loss is its absolute error.
    """
    schema = pipeline.data.shards.schema
    given = {"keys": "key", "inputs": schema.input.name, "labels": "label"}
    given |= {COLUMNS: COLUMNS} if schema.table_input else {}
    judge = _judge_classes if classes else _judge_numbers
    probabilities = classes and gives_probabilities(model)

    def run(element: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = tf.cast(model(select_inputs(element, schema), training=False), tf.float32)
        if probabilities:
            outputs = tf.math.log(tf.maximum(outputs, SMALLEST_PROBABILITY))
        return {"outputs": outputs, **judge(outputs, element["label"])}

    # A few batches would take longer to trace than to run.
    traced = tf.function(run, autograph=False, reduce_retracing=True) if batches is None else run
    truths, predictions, errors = [], [], []
    worst: dict[str, np.ndarray] = {}
    for element in pipeline.dataset() if batches is None else batches:
        judged = {name: value.numpy() for name, value in traced(element).items()}
        truths.append(judged["truths"])
        predictions.append(judged["predictions"])
        errors.append(judged.pop("target_errors"))
        batch = judged | {name: np.asarray(element[part]) for name, part in given.items()}
        if batch["inputs"].dtype == np.int32:  # tokens, whose number varies by batch, are not shown
            batch["inputs"] = np.zeros(len(batch["inputs"]))
        worst = _keep_worst(worst, batch, most=most)
    true, predicted = np.concatenate(truths), np.concatenate(predictions)
    target_errors = np.concatenate(errors).mean(axis=0, dtype=np.float64)
    return Outcomes(
        examples=len(true),
        metric=float((true == predicted).mean() if classes else target_errors.mean()),
        truths=true,
        predictions=predicted,
        worst=worst,
        target_errors=target_errors,
    )


def describe_outcomes(
    outcomes: Outcomes,
    pipeline: InputPipeline,
    *,
    classes: Sequence[str],
    targets: Sequence[str],
    manifest: Path,
) -> Evaluation:
    """Describe outcomes by names and texts; `classes` is empty if the model predicts numbers."""
    worst, count = outcomes.worst, len(outcomes.worst["keys"])
    columns = ("truths", "predictions") if classes else ("labels", "outputs")
    described = zip(
        describe_inputs(worst, pipeline, manifest),
        *(name_values(worst[name], classes) for name in columns),
        worst["probabilities"].tolist() if classes else [None] * count,
        worst["losses"].tolist(),
        strict=True,
    )
    return Evaluation(
        split=pipeline.split,
        examples=outcomes.examples,
        confusion=(
            count_confusions(outcomes.truths, outcomes.predictions, classes) if classes else None
        ),
        worst=tuple(
            WorstExample(
                id=name, truth=truth, predicted=predicted, probability=sure, loss=loss, value=value
            )
            for (name, value), truth, predicted, sure, loss in described
        ),
        picture=pipeline.data.shards.schema.input.encoding.modality == "images",
        mae_by_target=(
            dict(zip(targets, outcomes.target_errors.tolist(), strict=True))
            if len(targets) > 1
            else {}
        ),
    )


def name_values(values: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Return the names of classes (n,), or numbers (n, …) as text if `classes` is empty."""
    if classes:
        return [classes[int(number)] for number in values]
    return [", ".join(f"{value:.4g}" for value in np.ravel(each)) for each in values]


def count_confusions(
    truths: np.ndarray, predictions: np.ndarray, classes: Sequence[str], *, most: int = MOST_CLASSES
) -> Confusion:
    """Count each class's predictions, (examples,), for the `most` classes with most errors."""
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


def encode_worst(outcomes: Outcomes) -> bytes:
    """Encode the worst examples, which are images, as one PNG, one below the other at one size."""
    images = tf.constant(outcomes.worst["inputs"])
    height, width = images.shape[1:3]
    scale = min(1.0, THUMBNAIL / max(height, width))
    if scale < 1:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        images = tf.cast(tf.round(tf.image.resize(images, size, method="area")), tf.uint8)
    return tf.io.encode_png(tf.concat(tf.unstack(images), axis=0)).numpy()


def _judge_classes(logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return each example's class, prediction and cross-entropy; labels are numbers or vectors."""
    if labels.shape.rank == logits.shape.rank:
        truths = tf.argmax(labels, axis=-1)
        losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    else:
        truths = tf.cast(labels, tf.int64)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return {
        "truths": truths,
        "predictions": tf.argmax(logits, axis=-1),
        "probabilities": tf.reduce_max(tf.nn.softmax(logits), axis=-1),
        "losses": losses,
        "target_errors": tf.zeros((tf.shape(losses)[0], 0)),
    }


def _judge_numbers(outputs: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the mean absolute error of each example, and of each target (batch, targets)."""
    labels = tf.reshape(tf.cast(labels, tf.float32), tf.shape(outputs))
    errors = tf.abs(outputs - labels)
    axes = list(range(1, outputs.shape.rank))
    nothing = tf.zeros(tf.shape(outputs)[:1], tf.int64)
    return {
        "truths": nothing,
        "predictions": nothing,
        "losses": tf.reduce_mean(errors, axis=axes),
        "target_errors": tf.reduce_mean(errors, axis=axes[:-1]),
    }


def _keep_worst(
    worst: dict[str, np.ndarray], batch: dict[str, np.ndarray], *, most: int
) -> dict[str, np.ndarray]:
    """Return the `most` examples of both with the highest losses; NaN is the highest."""
    if worst:
        batch = {name: np.concatenate([worst[name], values]) for name, values in batch.items()}
    order = np.argsort(-np.nan_to_num(batch["losses"], nan=np.inf), kind="stable")[:most]
    return {name: values[order] for name, values in batch.items()}


def describe_inputs(
    examples: Mapping[str, np.ndarray], pipeline: InputPipeline, folder: Path
) -> list[tuple[str, str]]:
    """Return the id of each example, and its value in words; "" for an image.

    `examples` has their `keys` (n,), and `inputs` or table columns (n, …).
    """
    schema, keys = pipeline.data.shards.schema, examples["keys"].tolist()
    if schema.is_series:
        return [(f"window from time step {key + 1:,}", "") for key in keys]
    if pipeline.plan.window:
        return [(f"window {key + 1:,}", "") for key in keys]
    rows = read_manifest(folder).examples.set_index("key").loc[keys]
    values = [""] * len(keys)
    if schema.is_text:
        documents = map_documents(folder)
        values = [
            _shorten(bytes(documents[start : start + size]).decode("utf-8", "replace"))
            for start, size in zip(rows["row"], rows["bytes"], strict=True)
        ]
    elif schema.table_input or schema.input.encoding.modality == "numbers":
        seen = examples[COLUMNS if schema.table_input else "inputs"]
        values = [_describe_row(row, schema.columns) for row in seen]
    return list(zip(rows["id"].tolist(), values, strict=True))


def _describe_row(row: np.ndarray, columns: TableColumns) -> str:
    if row.ndim > 1:
        extent = "×".join(map(str, row.shape))
        return f"{extent} values from {row.min():.4g} to {row.max():.4g}"
    cells = [f"{value:.4g}" for value in row[: columns.numeric]]
    coded = zip(columns.categories, row[columns.numeric :], strict=True)
    cells += [names[int(code)] for names, code in coded]
    return _shorten(", ".join(map("{}: {}".format, columns.names, cells)))


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
