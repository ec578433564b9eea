"""Evaluates a trained model on single held-out examples, and writes what it finds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.assembly.inputs import name_targets, open_stored_pipeline
from throughline.assembly.step_batch import StepBatch
from throughline.config.params import Params
from throughline.measurement.evaluation import (
    describe_inputs,
    describe_outcomes,
    encode_worst,
    evaluate_examples,
    name_values,
)
from throughline.models.builders import Models
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
    """Describe the examples of a batch by falling loss of the `model`.

    Without a model, and for next tokens and packed texts, losses are NaN.
    """
    pipeline, content = batch.pipeline, batch.content
    schema, window = pipeline.data.shards.schema, pipeline.plan.window
    targets = name_targets(params, pipeline.data)
    classes = [] if targets else pipeline.data.shards.classes
    packed, tokens = "weight" in content, bool(window) and not schema.is_series
    if model is not None and not packed and not tokens:
        batches = [{name: tf.constant(values) for name, values in content.items()}]
        outcomes = evaluate_examples(
            model, pipeline, classes=bool(classes), batches=batches, most=len(content["key"])
        )
        described = describe_outcomes(
            outcomes, pipeline, classes=classes, targets=targets, manifest=layout.manifest
        ).worst
        keys, inputs = outcomes.worst["keys"], outcomes.worst["inputs"]
    else:
        there = content["weight"] > 0 if packed else slice(None)
        keys, inputs, labels = content["key"][there], content[schema.input.name], content["label"]
        values = {COLUMNS: content[COLUMNS]} if schema.table_input else {"inputs": inputs}
        vectors = bool(classes) and labels.ndim > 1 and not packed
        known = labels.argmax(axis=-1) if vectors else labels[there]
        described = tuple(
            WorstExample(
                id=name,
                truth=truth,
                predicted="",
                probability=None,
                loss=float("nan"),
                value=value,
            )
            for truth, (name, value) in zip(
                [""] * len(keys) if tokens else name_values(known, classes),
                describe_inputs({"keys": keys, **values}, pipeline, layout.manifest),
                strict=True,
            )
        )
    changed_by = {} if packed else dict(zip(content["key"], batch.changed_by, strict=True))
    return DescribedBatch(
        examples=described, changed_by=[changed_by.get(key, ()) for key in keys], inputs=inputs
    )
