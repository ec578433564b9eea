"""Predict with a trained model: images, rows of tables, texts, or the next values of a series.

Not a stage: it reads runs/NAME/model.keras, which holds everything needed: class names,
vocabularies of columns, the tokenizer, and the ops by which evaluation prepares an example. Paths
are files, folders or tables of the kind that the model was trained on. The result is a CSV with a
line for every input; the line of an unusable input gives the reason. A path that does not exist is
refused before anything is read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

from throughline.config.cli import trained_model_cli
from throughline.results.train import TrainResult, describe_weakness
from throughline.shared.errors import DataNotFound, UnexpectedFiles, UnusableInputs, UserError
from throughline.shared.files import atomic_file
from throughline.shared.progress import echo, note

if TYPE_CHECKING:
    from throughline.prediction.table import Counts


def report_rejected(counts: Counts, *, strict: bool) -> None:
    """List the inputs that could not be used; an error if none could, or, if `strict`, not all."""
    total, more = counts.predicted + counts.rejected, counts.rejected - len(counts.first)
    if not counts.rejected:
        return
    if total == 1:
        (only,) = counts.first
        end = "" if only.reason.endswith((".", "?")) else "."
        raise UnusableInputs(f"{only.id}: {only.reason}{end} {counts.takes}")
    listed = [f"  {item.id}: {item.reason}" for item in counts.first]
    listed += [f"  and {more:,} more"] if more else []
    which = f"{counts.rejected:,} of {total:,} inputs"
    if strict or not counts.predicted:
        others = ["Without --strict the others are predicted."] if counts.predicted else []
        lines = [f"{which} cannot be used:", *listed, counts.takes, *others]
        raise UnusableInputs("\n".join(lines))
    note("\n".join([*listed, f"predict: {which} not used. {counts.takes}"]))


@contextmanager
def _open_out(path: Path | None, *, strict: bool) -> Iterator[IO[str]]:
    """Open the output of the predictions. If the block fails, an existing file stays as it was,
    and, if `strict`, nothing is written to standard output.
    """
    if path is None:
        try:
            out = StringIO(newline="") if strict else sys.stdout
            yield out
            if isinstance(out, StringIO):
                sys.stdout.write(out.getvalue())
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if path.is_dir():
        raise UnexpectedFiles(f"{path} is a folder; name a file with --out")
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        yield file


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="files, folders or tables"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the CSV there")
    parser.add_argument(
        "--lines",
        action=argparse.BooleanOptionalAction,
        help="each line of a .txt file is a text; the default if the model was trained on lines",
    )
    parser.add_argument(
        "--every-window", action="store_true", help="all windows of a series, not only the last"
    )
    parser.add_argument(
        "--batch-size", type=int, default=256, metavar="N", help="examples at once; default: 256"
    )
    parser.add_argument("--strict", action="store_true", help="fail if any input cannot be used")


def main() -> None:
    """Predict with a trained model; the result is a CSV with a line for each input."""
    with trained_model_cli(main, declare_options) as context:
        if lacking := [str(path) for path in context.options.paths if not path.exists()]:
            do = "do" if len(lacking) > 1 else "does"
            raise DataNotFound(f"{', '.join(lacking)} {do} not exist; nothing is predicted")
        from throughline.assembly.inference import describe_changed_data  # TensorFlow
        from throughline.models.inference import open_trained_model
        from throughline.prediction.examples import Wanted
        from throughline.prediction.table import write_predictions

        options = context.options
        with (
            _open_out(options.out, strict=options.strict) as out,
            open_trained_model(context.model, trusted=context.trusted) as trained,
        ):
            if options.pipeline and (
                changed := describe_changed_data(trained, options.pipeline, context.layout)
            ):
                note(f"predict: {changed}")
            with suppress(UserError):  # a model file may stand alone, without results
                if weakness := describe_weakness(TrainResult.read(context.model.parent)):
                    note(f"predict: {weakness}")
            of_lines = trained.spec.data.source == "text_lines"
            wanted = Wanted(
                lines=of_lines if options.lines is None else options.lines,
                every_window=options.every_window,
            )
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
