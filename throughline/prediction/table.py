"""Writes predictions as CSV: classes with probabilities, or values by the names of the targets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from throughline.data.found import Rejected
from throughline.models.inference import InferenceSpec, TrainedModel
from throughline.prediction.examples import Wanted, describe_inputs, read_examples
from throughline.prediction.predictor import Prediction, predict
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.progress import progress

MOST_CLASSES = 3  # likeliest classes that have columns
REASONS_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many inputs were predicted and rejected, the first rejects, and what the model takes."""

    predicted: int
    rejected: int
    first: Sequence[Rejected]
    takes: str


def write_predictions(
    trained: TrainedModel,
    paths: Sequence[Path],
    out: IO[str],
    *,
    wanted: Wanted,
    batch_size: int,
    show_progress: bool = True,
) -> Counts:
    """Predict what is at `paths` and write the CSV; write nothing before the first prediction.

    Raises:
      ImpossiblePlan: the model predicts next tokens, not labels.
    """
    if trained.spec.task == "next_token":
        raise ImpossiblePlan(
            "a language model predicts the next token of a text, which is no label; write it as a"
            " SavedModel with `python -m tasks.export` and call serve(text)"
        )
    examples = read_examples(paths, trained, wanted)
    items: Iterable = predict(trained, examples.items, batch_size=batch_size)
    if show_progress:
        items = progress(items, total=examples.total, label="predict")
    writer = csv.writer(out, lineterminator="\n")
    predicted, rejected, first = 0, 0, []
    waiting: list[Iterable[list[str]]] = [[make_header(trained.spec)]]
    for item in items:
        waiting.append(make_rows(item, trained.spec))
        if isinstance(item, Rejected):
            rejected += 1
            first += [item] if len(first) < REASONS_SHOWN else []
        else:
            predicted += 1
        if predicted:
            writer.writerows(chain.from_iterable(waiting))
            waiting.clear()
    return Counts(
        predicted=predicted, rejected=rejected, first=first, takes=describe_inputs(trained.spec)
    )


def make_header(spec: InferenceSpec) -> list[str]:
    """Return the names of the columns.

    Each input is a line, and `error` says why it has no prediction. For a series, each predicted
    time step is a line, and `row` is its number, from 1.
    """
    if spec.task == "regression":
        steps = ["row"] if spec.schema.is_series else []
        return ["input", *steps, *spec.targets, "error"]
    names = ["class", "probability"]
    for rank in range(2, _shown(spec) + 1):
        names += [f"class_{rank}", f"probability_{rank}"]
    return ["input", *names, "error"]


def make_rows(item: Prediction | Rejected, spec: InferenceSpec) -> Iterator[list[str]]:
    width = len(make_header(spec)) - 2
    if isinstance(item, Rejected):
        yield [item.id, *[""] * width, item.reason]
    elif spec.task == "regression":
        series = spec.schema.is_series
        for ahead, values in enumerate(np.atleast_2d(item.output), start=1):
            row = [str(item.example.row + ahead)] if series else []
            yield [item.example.id, *row, *(f"{value:.7g}" for value in values), ""]
    else:
        likeliest = np.argsort(-item.output, kind="stable")[: _shown(spec)]
        cells = [(spec.classes[place], f"{item.output[place]:.6f}") for place in likeliest]
        yield [item.example.id, *(cell for pair in cells for cell in pair), ""]


def _shown(spec: InferenceSpec) -> int:
    return min(MOST_CLASSES, len(spec.classes))
