"""What a trained model makes of single held-out examples, written next to its other results."""

from __future__ import annotations

from pathlib import Path

from tasks.assembly.inputs import open_stored_pipeline
from tasks.files import atomic_folder
from tasks.layout import Layout
from tasks.measurement.evaluation import describe_outcomes, encode_worst, evaluate_examples
from tasks.params import Params
from tasks.pipelines.prepared_data import PreparedData
from tasks.results.evaluation import WORST_PICTURE, Evaluation
from tasks.training.models import Models


def write_evaluation(
    models: Models, params: Params, data: PreparedData, layout: Layout, out: Path
) -> Evaluation:
    """Write what the model makes of each held-out example into the folder `out`: the classes it
    confuses, and its worst examples; of next tokens nothing but how many windows there are.
    """
    classes = [] if models.target.kind == "regression" else data.shards.classes
    split = "test" if "test" in data.shards.splits else "validation"
    pipeline = open_stored_pipeline(params, data, split=split)
    with atomic_folder(out) as folder:
        if models.target.kind == "next_token":
            result = Evaluation(
                split=split, examples=pipeline.examples, confusion=None, worst=(), picture=False
            )
        else:
            outcomes = evaluate_examples(models.full_model, pipeline, classes=bool(classes))
            result = describe_outcomes(
                outcomes, pipeline, classes=classes, manifest=layout.manifest
            )
            if result.picture:
                (folder / WORST_PICTURE).write_bytes(encode_worst(outcomes))
        result.write(folder)
    return result
