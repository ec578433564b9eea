"""Evaluates a trained model on single held-out examples, and writes what it finds."""

from dataclasses import replace
from pathlib import Path

from throughline.assembly.inputs import name_targets, open_stored_pipeline
from throughline.config.params import Params
from throughline.measurement.evaluation import describe_outcomes, encode_worst, evaluate_examples
from throughline.models.builders import Models
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.results.evaluation import WORST_PICTURE, Evaluation
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
