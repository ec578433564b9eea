"""Show the batch of a training step as the model got it: its files or rows, their labels, which ops
of `augment` changed them, and their losses.

Nothing is trained. The batch is rebuilt from the prepared data and params.yaml, and compared with
the training's runs/NAME/receipt.json. The command names any difference, and shows no batch that may
be a different one. STEP is N, counted from 1 over all epochs, or EPOCH/N, as in the log. Losses of
single examples are the trained model's: they show what it has not learned.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from throughline.config.cli import add_run_option, command_cli
from throughline.config.params import check_pipelines_exist
from throughline.measurement.spikes import find_spikes, find_usual
from throughline.results.base import read_value
from throughline.results.receipt import Receipt, name_step, read_losses
from throughline.shared.errors import MissingInput
from throughline.shared.files import atomic_file
from throughline.shared.layout import MODEL_FILE, Layout, from_here
from throughline.shared.progress import echo, echo_problem

if TYPE_CHECKING:
    from throughline.assembly.step_batch import StepBatch

LISTED, PICTURED = 20, 36  # examples, those with the highest losses
IMAGES = 4  # axes of a batch of images
LOGGED = "steps"  # folder of the training's MLflow run


def read_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def declare_options(parser: argparse.ArgumentParser) -> None:
    given_here = Path.cwd().joinpath  # `--name` changes the folder
    parser.add_argument("--pipeline", required=True, metavar="NAME", help="whose training")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("step", nargs="?", metavar="STEP", help="N, or EPOCH/N")
    which.add_argument(
        "--worst", type=read_count, metavar="N", help="the N largest spikes of the loss"
    )
    which.add_argument("--last", action="store_true", help="the last step")
    parser.add_argument(
        "--out",
        type=given_here,
        metavar="DIR",
        help="write a table of all examples, and a picture, there and to the training's MLflow run",
    )
    parser.add_argument(
        "--receipt", type=given_here, metavar="FILE", help="of a training elsewhere, not of here"
    )
    add_run_option(parser)


def choose_steps(
    options: argparse.Namespace, losses: np.ndarray, *, steps: int, per_epoch: int
) -> list[int]:
    """Return the steps to show, counted from 0 over all epochs, of a training of `steps` steps."""
    if options.worst:
        spikes = find_spikes(losses, most=options.worst)
        if not spikes and np.isfinite(losses).any():
            raise MissingInput("no step's loss is above those around it; name a STEP")
        if not spikes:
            raise MissingInput(
                "there are no losses of single steps: the train step reports none, or the training"
                " ran elsewhere; name a STEP"
            )
        return [spike.step for spike in spikes]
    if options.last:
        return [steps - 1]
    found = re.fullmatch(r"(?:(\d+)/)?(\d+)", options.step)
    epoch, number = (int(part or 1) for part in found.groups()) if found else (0, 0)
    step = (epoch - 1) * per_epoch + number - 1
    most = per_epoch if found and found[1] else steps
    if not (epoch and 1 <= number <= most and step < steps):
        raise MissingInput(
            f"there is no step {options.step}: name one of {steps:,} as N, or, with"
            f" {per_epoch:,} in an epoch, as EPOCH/N; all count from 1"
        )
    return [step]


def format_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the first rows below their headings, without empty columns."""
    cells = [[*rows[0]], *([*row.values()] for row in rows[:LISTED])]
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    aligned = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["  ".join(line).rstrip() for line in zip(*aligned, strict=True)]
    if len(rows) > LISTED:
        lines.append(f"and {len(rows) - LISTED:,} more; --out writes all")
    return "\n".join(f"  {line}" for line in lines)


def describe_step(
    batch: StepBatch, name: str, losses: np.ndarray, *, examples: int, compared: bool
) -> str:
    """Describe a batch as a whole; in packed texts, rows hold several `examples`."""
    step, loss = batch.step, ""
    inputs = batch.content[batch.pipeline.data.shards.schema.input.name]
    if step < len(losses) and not math.isnan(losses[step]):
        loss = f", loss {losses[step]:.4g} ({find_usual(losses)[step]:.4g} around it)"
    rows = ", rows equal to the records of the shards" if compared else ""
    return (
        f"look {name}: step {step + 1:,}, {name_step(step, batch.pipeline.steps_per_epoch)},"
        f" {examples:,} examples{loss}\n"
        f"  {inputs.dtype} {'×'.join(map(str, inputs.shape[1:]))} from {inputs.min():.4g} to"
        f" {inputs.max():.4g}{rows}; digest {batch.digest[:12]}"
    )


def write_batch(rows: Sequence[Mapping[str, str]], inputs: np.ndarray, stem: Path) -> list[Path]:
    """Write a table of all examples, and a picture of the first ones if they are images."""
    from throughline.reporting.evaluation_plots import plot_images

    stem.parent.mkdir(parents=True, exist_ok=True)
    table, images = stem.with_suffix(".csv"), inputs[:PICTURED]
    with atomic_file(table) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    if images.dtype != np.uint8 or images.ndim != IMAGES:
        return [table]
    plot_images(rows[:PICTURED], images, stem)
    return [table, stem.with_suffix(".png"), stem.with_suffix(".svg")]


def main() -> None:
    """Show the batch of a training step as the model got it."""
    with command_cli(main, declare_options) as (params, options), ExitStack() as opened:
        from tasks.own_code import find_needs
        from throughline.assembly.evaluation import describe_batch  # imports TensorFlow
        from throughline.assembly.fingerprint import training_fingerprint
        from throughline.assembly.inputs import open_inputs
        from throughline.assembly.receipts import check_files, compare_with_receipt
        from throughline.assembly.step_batch import (
            check_rows,
            open_training_batches,
            rebuild_batches,
        )
        from throughline.models.inference import open_trained_model

        name, layout = options.pipeline, Layout()
        check_pipelines_exist(params.pipelines, [name])
        data, folder = open_inputs(params, layout), layout.results(name)
        noted, path = None, options.receipt or Receipt.path(folder)
        if options.receipt or path.exists():
            noted = read_value(Receipt, path, f"train@{name}")
        multiple = noted.batch_multiple if noted else 1
        pipeline = open_training_batches(params, name, data, multiple=multiple)
        per_epoch = pipeline.steps_per_epoch
        steps = noted.steps if noted else params.train.epochs * per_epoch
        parts = training_fingerprint(params, name, data, needs=find_needs(layout.root, "train"))
        if noted is None:
            echo_problem(f"{path} is missing, so nothing shows that batches are the training's")
        elif differing := compare_with_receipt(noted, pipeline, parts):
            echo_problem(f"the noted batch is the training's, but these parts differ: {differing}")
        model, losses, written = None, np.zeros(0, np.float32), list[Path]()
        if noted and not options.receipt:
            check_files(noted, folder)
            model = opened.enter_context(open_trained_model(folder / MODEL_FILE)).model
            losses = read_losses(folder)
        chosen = choose_steps(options, losses, steps=steps, per_epoch=per_epoch)
        for batch in rebuild_batches(pipeline, params, name, chosen):
            compared = check_rows(batch)
            rows, inputs = describe_batch(batch, model, params, layout)
            echo(describe_step(batch, name, losses, examples=len(rows), compared=compared))
            echo(format_table(rows))
            if options.out:
                files = write_batch(rows, inputs, options.out / f"{name}-{batch.step + 1}")
                echo(f"  written: {', '.join(map(str, map(from_here, files)))}")
                written += files
        if written and model is not None:
            from throughline.assembly.logged_training import find_recorder  # imports MLflow

            if recorder := find_recorder(params, layout, name, what="the batch"):
                with recorder:
                    for file in written:
                        recorder.log_artifact(file, folder=LOGGED)


if __name__ == "__main__":
    main()
