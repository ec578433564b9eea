"""Evaluates a trained model: on a held-out split, and on the examples of a training's batch."""

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.assembly.inputs import name_targets, open_stored_pipeline
from throughline.assembly.step_batch import Batch, StepBatch
from throughline.config.params import Params
from throughline.measurement.evaluation import (
    count_confusions,
    describe_inputs,
    evaluate_examples,
    judge,
    name_values,
    order_by_loss,
)
from throughline.models.builders import Models
from throughline.models.inference import gives_probabilities
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.schema import COLUMNS
from throughline.results.evaluation import Evaluation
from throughline.results.train import TrainResult
from throughline.shared.files import atomic_folder
from throughline.shared.layout import Layout


def complete_metrics(
    result: TrainResult, models: Models, params: Params, name: str, data: PreparedData
) -> TrainResult:
    """Add the metric that compares models, accuracy or mae, if training did not compute it."""
    metric, classes = result.metric, models.target.kind != "regression"

    def judge(split: str) -> float:
        pipeline = open_stored_pipeline(params, name, data, split=split)
        return evaluate_examples(models.full_model, pipeline, classes=classes).metric

    last, test = dict(result.last_epoch), dict(result.test)
    if f"val_{metric}" not in last:
        last[f"val_{metric}"] = judge("validation")
    if test and metric not in test:
        test[metric] = judge("test")
    return replace(result, last_epoch=last, test=test)


def write_evaluation(
    models: Models, params: Params, name: str, data: PreparedData, out: Path
) -> Evaluation:
    """Write the classes that the model confuses or its targets' errors; of tokens, only a count."""
    targets, classes = name_targets(params, data), data.shards.classes
    split = "test" if "test" in data.shards.splits else "validation"
    pipeline = open_stored_pipeline(params, name, data, split=split)
    if models.target.kind == "next_token":
        result = Evaluation(split=split, examples=pipeline.examples, confusion=None)
    else:
        numbers = models.target.kind == "regression"
        seen = evaluate_examples(models.full_model, pipeline, classes=not numbers)
        result = Evaluation(
            split=split,
            examples=seen.examples,
            confusion=(
                None if numbers else count_confusions(seen.truths, seen.predictions, classes)
            ),
            mae_by_target=(
                dict(zip(targets, seen.target_errors.tolist(), strict=True))
                if len(targets) > 1
                else {}
            ),
        )
    with atomic_folder(out) as folder:
        result.write(folder)
    return result


def describe_batch(
    batch: StepBatch, model: keras.Model | None, params: Params, layout: Layout
) -> tuple[list[dict[str, str]], np.ndarray]:
    """Describe the examples of a batch in words, those with the highest losses of a `model` first.

    Returns the cells of each by their headings, and the inputs as the model got them, (batch, …).
    """
    pipeline, content = batch.pipeline, batch.content
    schema, targets = pipeline.data.shards.schema, name_targets(params, pipeline.data)
    classes = [] if targets else pipeline.data.shards.classes
    changed_by = [" ".join(ops) for ops in batch.changed_by]
    if "weight" in content:
        content = unpack(content, schema.input.name)
        changed_by = [""] * len(content["key"])
    inputs, labels, nothing = content[schema.input.name], content["label"], [""] * len(changed_by)
    next_token = bool(pipeline.plan.window) and not schema.is_series
    judged: dict[str, np.ndarray] = {}
    if model is not None and next_token:
        judged = {"losses": measure_token_losses(model, inputs, labels)}
    elif model is not None:
        tensors = {name: tf.constant(values) for name, values in content.items()}
        outcome = judge(model, tensors, schema, classes=bool(classes))
        judged = {name: value.numpy() for name, value in outcome.items()}
    losses = judged.get("losses", np.full(len(nothing), np.nan))
    truths = labels.argmax(axis=-1) if classes and labels.ndim > 1 else labels
    predicted = judged.get("predictions")
    shown = content[COLUMNS] if schema.table_input else inputs
    ids, values = describe_inputs(content["key"].tolist(), shown, pipeline, layout.manifest)
    columns = {
        "id": ids,
        "label": nothing if next_token else name_values(truths, classes),
        "predicted": nothing if predicted is None else name_values(predicted, classes),
        "probability": [f"{one:.3f}" for one in judged.get("probabilities", ())] or nothing,
        "error" if targets else "loss": ["" if np.isnan(one) else f"{one:.4g}" for one in losses],
        "changed by": changed_by,
        "value": values,
    }
    order = order_by_loss(losses)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [rows[place] for place in order], inputs[order]


def unpack(content: Batch, name: str) -> Batch:
    """Return the texts in packed rows of tokens `name` as a batch of texts that are padded with 0.

    `content` has (rows, width) tokens, and (rows, segments) labels and keys.
    """
    there = content["weight"] > 0
    tokens, segments = content[name], content["segment_ids"]
    texts = [tokens[row][segments[row] == slot + 1] for row, slot in np.argwhere(there)]
    padded = np.zeros((len(texts), max(map(len, texts))), tokens.dtype)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    return {name: padded, "label": content["label"][there], "key": content["key"][there]}


def measure_token_losses(
    model: keras.Model, tokens: np.ndarray, following: np.ndarray
) -> np.ndarray:
    """Return the mean cross-entropy (n,) of the tokens that follow those of windows (n, length)."""
    likely = model(tf.constant(tokens), training=False)
    losses = keras.losses.sparse_categorical_crossentropy(
        following, likely, from_logits=not gives_probabilities(model)
    )
    return tf.reduce_mean(losses, axis=-1).numpy()
