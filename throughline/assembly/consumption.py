"""Finds when a training consumed an example, from the order of its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from throughline.assembly.fingerprint import training_fingerprint
from throughline.assembly.inputs import open_inputs
from throughline.assembly.receipts import make_receipt
from throughline.assembly.step_batch import find_doubt, open_training_batches
from throughline.config.params import Params, load_params
from throughline.config.params_file import PARAMS_FILE
from throughline.data.manifest import Manifest, read_manifest
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.results.receipt import Receipt
from throughline.settings import PipelineConfig
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo_problem
from throughline.tracking.receipts import LoggedTraining
from throughline.training.checkpoint_store import list_checkpoints
from throughline.training.checkpoints import CHECKPOINT_FOLDER

ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DataVersion:
    """The prepared data of a project or run, with its parameters and its manifest."""

    params: Params
    data: PreparedData
    manifest: Manifest

    @classmethod
    def open(cls, layout: Layout) -> DataVersion:
        params = load_params(layout.root / PARAMS_FILE)
        data, manifest = open_inputs(params, layout), read_manifest(layout.manifest)
        return cls(params=params, data=data, manifest=manifest)


@dataclass(frozen=True, kw_only=True)
class Use:
    """The epochs, from 1, whose batches have an example, and the first step; None in a stream."""

    epochs: Sequence[int]
    first_step: int | None


def find_uses(pipeline: InputPipeline, rows: np.ndarray, *, steps: int) -> Mapping[int, Use]:
    """Return when the first `steps` steps consumed `rows` of the split; leaves out unused rows.

    Raises:
      ImpossiblePlan: Batches depended on timing, are windows, or came from an unrecorded stream.
    """
    per_epoch, order, plan = pipeline.steps_per_epoch, pipeline.order, pipeline.plan
    epochs, rest = divmod(steps, per_epoch)
    doubt = find_doubt(pipeline)
    if not doubt and plan.window:
        doubt = "its examples are windows, and have no names"
    if not doubt and order is None and (plan.sampling != "uniform" or rest):
        doubt = "a stream keeps no record of its draws by class, or of its position in an epoch"
    if doubt:
        raise ImpossiblePlan(doubt)
    if order is None:
        return {row: Use(epochs=range(1, epochs + 1), first_step=None) for row in rows.tolist()}
    whole = pipeline.data.count_examples(pipeline.split, plan.window)
    once = plan.sampling == "uniform" and pipeline.examples == whole  # each epoch has each row
    ranges = [(0, min(steps, per_epoch)), (epochs * per_epoch, steps)] if once else [(0, steps)]
    met: dict[int, list[int]] = {}
    at_once = max(1, ROWS_AT_ONCE // pipeline.batch_size)
    for first, stop in ranges:
        for start in range(first, stop, at_once):
            numbers = tf.range(start, min(stop, start + at_once), dtype=tf.int64)
            drawn, sizes = order.rows(numbers).numpy(), order.size(numbers).numpy()
            drawn[np.arange(drawn.shape[1]) >= sizes[:, None]] = -1  # rows that fill up a batch
            for place in np.argwhere(np.isin(drawn, rows)):
                met.setdefault(int(drawn[tuple(place)]), []).append(start + int(place[0]))
    whole_epochs = range(1, epochs + 1) if once else ()
    return {
        row: Use(
            epochs=sorted({*whole_epochs, *(step // per_epoch + 1 for step in taken)}),
            first_step=min(taken) + 1,
        )
        for row, taken in met.items()
    }


def find_uses_in(
    receipt: Receipt, version: DataVersion, keys: np.ndarray
) -> Mapping[int, Use] | str:
    """Return when a training consumed the examples with these keys, or why that is not known."""
    name, data = receipt.pipeline, version.data
    params = replace(
        version.params,
        pipelines={name: PipelineConfig.model_validate(receipt.config)},
        batch_size=receipt.batch_size,
        train=version.params.train.model_copy(update={"seed": receipt.seed}),
    )
    stored = np.asarray(data.memmap("train", "key"))
    rows = np.flatnonzero(np.isin(stored, keys))
    try:
        pipeline = open_training_batches(params, name, data, multiple=receipt.batch_multiple)
        uses = find_uses(pipeline, rows, steps=receipt.steps)
    except ImpossiblePlan as error:
        return f"cannot be known, because {error}"
    return {int(stored[row]): use for row, use in uses.items()}


def list_interrupted(
    layout: Layout, version: DataVersion, name: str, needs: Mapping[str, Mapping[str, str]]
) -> list[LoggedTraining]:
    """List a training for each checkpoint of a configuration, with the steps it has trained for."""
    kept = list_checkpoints(layout.results(name) / CHECKPOINT_FOLDER)
    if not kept:
        return []
    params, data, found = version.params, version.data, list[LoggedTraining]()
    parts = training_fingerprint(params, name, data, needs=needs)
    for folder, content in kept:
        path, state = from_here(folder), content["state"]
        if content["work"] != parts:
            echo_problem(
                f"{path} may have seen them: its parameters, data or code have changed since"
            )
            continue
        pipeline = open_training_batches(params, name, data, multiple=state["batch_multiple"])
        steps = len(state["rows"]) * pipeline.steps_per_epoch + state["step"]
        receipt = make_receipt(pipeline, params, name, parts, steps=steps)
        found.append(LoggedTraining(name=f"{name} ({path})", receipt=receipt, versions=()))
    return found
