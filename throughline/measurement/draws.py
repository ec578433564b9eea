"""Checks which examples an epoch of training draws.

The digest of examples (`equality.py`) leaves out shuffling and sampling. Here the training's own
plan runs for an epoch; to save time, without the ops on values.
"""

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from throughline.measurement.equality import RowsByKey
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.order.packed_batches import NO_DOCUMENT
from throughline.pipelines.read.prepared_data import read_labels_and_weights
from throughline.plan.ops import Op, Parse
from throughline.plan.plan import Plan
from throughline.plan.steps import Batch, BucketBatch, Map, Step
from throughline.results.build import EpochDraws
from throughline.shared.errors import UnequalConfigurations

MAX_COUNT_STDERRS = 6  # from a class's expected count: even of many classes, none fails by chance
STEPS_PER_CHECK_CALL = 1024


class KeepKeyAndLabel(Op):
    """Keep only the key and label of an element."""

    name: ClassVar[str] = "keys"

    def compute(self, element: Any, draw: Any) -> Any:
        return {name: element[name] for name in ("key", "label")}


def check_epoch(pipeline: InputPipeline) -> tuple[EpochDraws, np.ndarray] | None:
    """Draw an epoch of the training's plan, and check how often it draws each example.

    The pipeline must deliver whole batches, not a worker's slices. Also returns the drawn rows.
    Returns None for a stream of windows, whose examples depend on the order. A tf.data service may
    repeat examples unless its sharding is static.

    Raises:
      UnequalConfigurations: If an example is not in the split, or is drawn too often or too rarely.
    """
    if pipeline.plan.window and not pipeline.plan.reads_snapshot:
        return None
    rows = _gathered_rows(pipeline) if pipeline.plan.reads_snapshot else _streamed_rows(pipeline)
    expected = pipeline.data.count_examples(pipeline.split, pipeline.plan.window)
    counts = np.bincount(rows, minlength=expected)
    if len(rows) != pipeline.examples or len(counts) > expected:
        raise UnequalConfigurations(
            f"{pipeline.plan}: an epoch draws {len(rows):,} examples from {len(counts):,} rows,"
            f" instead of {pipeline.examples:,} from {expected:,}"
        )
    _check_counts(pipeline, rows, counts)
    distinct, most_often = int((counts > 0).sum()), int(counts.max())
    return EpochDraws(examples=len(rows), distinct=distinct, most_often=most_often), rows


def _gathered_rows(pipeline: InputPipeline) -> np.ndarray:
    order, count, chunks = pipeline.reader.order, pipeline.steps_per_epoch, []
    for first in range(0, count, STEPS_PER_CHECK_CALL):
        steps = tf.range(first, min(first + STEPS_PER_CHECK_CALL, count), dtype=tf.int64)
        rows = order.rows(steps).numpy()
        chunks.append(rows[np.arange(rows.shape[1]) < order.size(steps).numpy()[:, None]])
    drawn = np.concatenate(chunks)
    return drawn[drawn != NO_DOCUMENT]


def _streamed_rows(pipeline: InputPipeline) -> np.ndarray:
    keys_only = dataclasses.replace(pipeline, plan=_keys_only(pipeline.plan), with_keys=True)
    batches = itertools.islice(keys_only.dataset().as_numpy_iterator(), keys_only.steps_per_epoch)
    return RowsByKey(pipeline).find(np.concatenate([batch["key"] for batch in batches]))


def _keys_only(plan: Plan) -> Plan:
    """Return the plan without the ops on values: records are parsed only for keys and labels.

    Batches by length become batches of one size, because keys have no length.
    """
    steps, picking = list[Step](), [KeepKeyAndLabel()]  # in the first map
    for step in plan.steps:
        if isinstance(step, Map):
            ops = (*(op for op in step.ops if isinstance(op, Parse)), *picking)
            picking = []
            steps += [dataclasses.replace(step, ops=ops)] if ops else []
        elif isinstance(step, BucketBatch):
            steps.append(Batch(size=step.size))
        else:
            steps.append(step)
    return dataclasses.replace(plan, steps=tuple(steps), device_ops=())


def _check_counts(pipeline: InputPipeline, rows: np.ndarray, counts: np.ndarray) -> None:
    plan, service = pipeline.plan, pipeline.plan.service
    if plan.sampling != "uniform":
        _check_classes(pipeline, rows)
    elif service is None or service.sharding == "static":
        missing, doubled = int((counts == 0).sum()), int((counts > 1).sum())
        if missing > len(counts) - pipeline.examples or doubled:  # a dropped last batch is missing
            raise UnequalConfigurations(
                f"{plan}: an epoch of training lacks {missing:,} of {len(counts):,} examples and"
                f" repeats {doubled:,}"
            )


def _check_classes(pipeline: InputPipeline, rows: np.ndarray) -> None:
    labels, weights = read_labels_and_weights(pipeline.plan.sampling, pipeline.data, pipeline.split)
    drawn = np.bincount(np.asarray(labels)[rows], minlength=len(weights))
    shares = np.asarray(weights) / np.sum(weights)
    allowed = 1 + MAX_COUNT_STDERRS * np.sqrt(len(rows) * shares * (1 - shares))
    far = np.flatnonzero(np.abs(drawn - len(rows) * shares) > allowed)
    if len(far):
        name = pipeline.data.shards.classes[far[0]]
        raise UnequalConfigurations(
            f"{pipeline.plan}: class {name} is drawn {drawn[far[0]]:,} times an epoch, instead of"
            f" about {len(rows) * shares[far[0]]:,.0f}"
        )
