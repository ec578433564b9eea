"""Evaluates a trained model on single held-out examples, and writes what it finds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.assembly.inputs import name_targets, open_stored_pipeline
from throughline.assembly.step_batch import Batch, StepBatch
from throughline.config.params import Params
from throughline.measurement.evaluation import (
    describe_inputs,
    describe_outcomes,
    encode_worst,
    evaluate_examples,
    name_values,
)
from throughline.models.builders import Models
from throughline.models.inference import gives_probabilities
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.schema import COLUMNS
from throughline.results.evaluation import WORST_PICTURE, Evaluation, WorstExample
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
    models: Models, params: Params, name: str, data: PreparedData, layout: Layout, out: Path
) -> Evaluation:
    """Write the model's confused classes and worst held-out examples into `out`.

    For next tokens, write only the number of windows.
    """
    classes = [] if models.target.kind == "regression" else data.shards.classes
    split = "test" if "test" in data.shards.splits else "validation"
    pipeline = open_stored_pipeline(params, name, data, split=split)
    with atomic_folder(out) as folder:
        if models.target.kind == "next_token":
            result = Evaluation(
                split=split, examples=pipeline.examples, confusion=None, worst=(), picture=False
            )
        else:
            outcomes = evaluate_examples(models.full_model, pipeline, classes=bool(classes))
            result = describe_outcomes(
                outcomes,
                pipeline,
                classes=classes,
                targets=name_targets(params, data),
                manifest=layout.manifest,
            )
            if result.picture:
                (folder / WORST_PICTURE).write_bytes(encode_worst(outcomes))
        result.write(folder)
    return result


@dataclass(frozen=True, kw_only=True)
class DescribedBatch:
    """A batch's examples, the ops of `augment` that changed each, and their inputs (n, …)."""

    examples: Sequence[WorstExample]
    changed_by: Sequence[Sequence[str]]
    inputs: np.ndarray


def describe_batch(
    batch: StepBatch, model: keras.Model | None, params: Params, layout: Layout
) -> DescribedBatch:
    """Describe the examples of a batch by falling loss of the `model`; without one, it is NaN."""
    pipeline, content = batch.pipeline, batch.content
    schema, window = pipeline.data.shards.schema, pipeline.plan.window
    targets = name_targets(params, pipeline.data)
    classes = [] if targets else pipeline.data.shards.classes
    changed_by: dict[int, Sequence[str]] = {}
    if "weight" in content:
        content = unpack(content, schema.input.name)
    else:
        changed_by = dict(zip(content["key"].tolist(), batch.changed_by, strict=True))
    tokens = bool(window) and not schema.is_series
    if model is not None and not tokens:
        batches = [{name: tf.constant(values) for name, values in content.items()}]
        outcomes = evaluate_examples(
            model, pipeline, classes=bool(classes), batches=batches, most=len(content["key"])
        )
        described = describe_outcomes(
            outcomes, pipeline, classes=classes, targets=targets, manifest=layout.manifest
        ).worst
        keys, inputs = outcomes.worst["keys"], outcomes.worst["inputs"]
    else:
        losses = np.full(len(content["key"]), np.nan)
        if model is not None:
            losses = measure_token_losses(model, content[schema.input.name], content["label"])
        order = np.argsort(-losses, kind="stable")
        content = {name: values[order] for name, values in content.items()}
        keys, inputs, labels = content["key"], content[schema.input.name], content["label"]
        values = {COLUMNS: content[COLUMNS]} if schema.table_input else {"inputs": inputs}
        known = labels.argmax(axis=-1) if classes and labels.ndim > 1 else labels
        described = tuple(
            WorstExample(
                id=name,
                truth=truth,
                predicted="",
                probability=None,
                loss=float(loss),
                value=value,
            )
            for loss, truth, (name, value) in zip(
                losses[order],
                [""] * len(keys) if tokens else name_values(known, classes),
                describe_inputs({"keys": keys, **values}, pipeline, layout.manifest),
                strict=True,
            )
        )
    return DescribedBatch(
        examples=described, changed_by=[changed_by.get(int(key), ()) for key in keys], inputs=inputs
    )


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
