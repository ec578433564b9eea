"""Predict with a trained model: images, rows of tables, texts, or what follows a series.

Not a stage: it reads runs/NAME/model.keras, which holds all that it needs: the names of the
classes, the vocabularies of columns, the tokenizer, and the ops by which evaluation prepares an
example. Paths are files, folders or tables of what the model was trained on. Every input is a line
of the result, a CSV; one that cannot be used has its reason there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tasks.assembly.inference import describe_changed_data
from tasks.cli import trained_model_cli
from tasks.data.sources.base import Rejected
from tasks.errors import ImpossiblePlan, NothingPredicted
from tasks.files import atomic_file
from tasks.prediction.examples import Wanted, read_examples
from tasks.prediction.predictor import predict
from tasks.prediction.table import make_header, make_rows
from tasks.progress import echo, note, progress
from tasks.training.inference import TrainedModel, open_trained_model

REASONS_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many inputs were predicted and how many could not be, with the first of these."""

    predicted: int
    rejected: int
    first: Sequence[Rejected]


def write_predictions(
    trained: TrainedModel,
    paths: Sequence[Path],
    out: IO[str],
    *,
    wanted: Wanted,
    batch_size: int,
    show_progress: bool = True,
) -> Counts:
    """Predict what is at `paths` and write the CSV.

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
    writer.writerow(make_header(trained.spec))
    predicted, rejected, first = 0, 0, []
    for item in items:
        writer.writerows(make_rows(item, trained.spec))
        if isinstance(item, Rejected):
            rejected += 1
            first += [item] if len(first) < REASONS_SHOWN else []
        else:
            predicted += 1
    return Counts(predicted=predicted, rejected=rejected, first=first)


def report_rejected(counts: Counts, *, strict: bool) -> None:
    """List what could not be used on standard error.

    Raises:
      NothingPredicted: nothing was predicted, or, `strict`, not everything.
    """
    for item in counts.first:
        note(f"  {item.id}: {item.reason}")
    if counts.rejected > len(counts.first):
        note(f"  and {counts.rejected - len(counts.first):,} more")
    total = counts.predicted + counts.rejected
    if counts.rejected and (strict or not counts.predicted):
        raise NothingPredicted(
            f"{counts.rejected:,} of {total:,} inputs cannot be used, for the reasons above"
            + ("; without --strict the others are predicted" if counts.predicted else "")
        )
    if counts.rejected:
        note(f"predict: {counts.rejected:,} of {total:,} inputs not used")


@contextmanager
def _open_out(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        return
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        yield file


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What the command line takes besides the model."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="files, folders or tables"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the CSV there")
    parser.add_argument(
        "--lines",
        action=argparse.BooleanOptionalAction,
        help="each line of a .txt file is a text; the usual where the training had lines",
    )
    parser.add_argument(
        "--every-window", action="store_true", help="all windows of a series, not the last alone"
    )
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="at once (256)")
    parser.add_argument("--strict", action="store_true", help="fail where any input cannot be used")


def main() -> None:
    """Predict with a trained model; the result is a CSV with a line for each input."""
    with (
        trained_model_cli(main, declare_options) as context,
        open_trained_model(context.model, trusted=context.trusted) as trained,
    ):
        options = context.options
        if options.pipeline and (
            changed := describe_changed_data(trained, options.pipeline, context.layout)
        ):
            note(f"predict: {changed}")
        of_lines = trained.spec.data.source == "text_lines"
        wanted = Wanted(
            lines=of_lines if options.lines is None else options.lines,
            every_window=options.every_window,
        )
        with _open_out(options.out) as out:
            counts = write_predictions(
                trained,
                options.paths,
                out,
                wanted=wanted,
                batch_size=max(1, options.batch_size),
                show_progress=options.out is not None,
            )
            report_rejected(counts, strict=options.strict)
        if options.out:
            echo(f"predict: {counts.predicted:,} predictions in {options.out}")


if __name__ == "__main__":
    main()
