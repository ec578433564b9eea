"""Predictions as lines of a CSV: the classes in words with their probabilities, or values by the
names of the targets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tasks.data.sources.base import Rejected
from tasks.prediction.predictor import Prediction
from tasks.training.inference import InferenceSpec

MOST_CLASSES = 3  # columns of the likeliest


def make_header(spec: InferenceSpec) -> list[str]:
    """Names of the columns; each input is a line, and `error` says why it has no prediction. Of a
    series each predicted time step is a line: `row` is its number, from 1.
    """
    if spec.task == "regression":
        steps = ["row"] if spec.schema.payload == "series" else []
        return ["input", *steps, *spec.targets, "error"]
    names = ["class", "probability"]
    for rank in range(2, _shown(spec) + 1):
        names += [f"class_{rank}", f"probability_{rank}"]
    return ["input", *names, "error"]


def make_rows(item: Prediction | Rejected, spec: InferenceSpec) -> Iterator[list[str]]:
    """The lines of one example."""
    width = len(make_header(spec)) - 2
    if isinstance(item, Rejected):
        yield [item.id, *[""] * width, item.reason]
    elif spec.task == "regression":
        series = spec.schema.payload == "series"
        for ahead, values in enumerate(np.atleast_2d(item.output), start=1):
            row = [str(item.example.row + ahead)] if series else []
            yield [item.example.id, *row, *(f"{value:.7g}" for value in values), ""]
    else:
        likeliest = np.argsort(-item.output, kind="stable")[: _shown(spec)]
        cells = [(spec.classes[place], f"{item.output[place]:.6f}") for place in likeliest]
        yield [item.example.id, *(cell for pair in cells for cell in pair), ""]


def _shown(spec: InferenceSpec) -> int:
    return min(MOST_CLASSES, len(spec.classes))
