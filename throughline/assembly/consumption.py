"""When a training consumed an example, computed from the order of its batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from throughline.assembly.step_batch import find_doubt
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.shared.errors import ImpossiblePlan

ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Use:
    """The epochs, counted from 1, whose batches have an example, and the first step, from 1.

    Of a stream, the first step is not known.
    """

    epochs: Sequence[int]
    first_step: int | None


def find_uses(pipeline: InputPipeline, rows: np.ndarray, *, steps: int) -> Mapping[int, Use]:
    """Return when the first `steps` steps consumed rows of the split; without rows never used.

    Raises:
      ImpossiblePlan: Which examples they consumed depended on timing, or was drawn within a stream.
    """
    if doubt := find_doubt(pipeline):
        raise ImpossiblePlan(doubt)
    per_epoch, order, plan = pipeline.steps_per_epoch, pipeline.order, pipeline.plan
    whole = pipeline.data.count_examples(pipeline.split, plan.window)
    epochs, rest = divmod(steps, per_epoch)
    if plan.window:
        raise ImpossiblePlan("its examples are windows, and have no names")
    if order is None:
        if plan.sampling != "uniform" or rest:
            raise ImpossiblePlan("what a stream draws by class, or had read by then, is not noted")
        return {row: Use(epochs=range(1, epochs + 1), first_step=None) for row in rows.tolist()}
    once = plan.sampling == "uniform" and pipeline.examples == whole  # each epoch has each row
    ranges = [(0, min(steps, per_epoch)), (epochs * per_epoch, steps)] if once else [(0, steps)]
    met: dict[int, list[int]] = {}
    at_once = max(1, ROWS_AT_ONCE // pipeline.batch_size)
    for first, stop in ranges:
        for start in range(first, stop, at_once):
            numbers = tf.range(start, min(stop, start + at_once), dtype=tf.int64)
            drawn, sizes = order.rows(numbers).numpy(), order.size(numbers).numpy()
            drawn[np.arange(drawn.shape[1]) >= sizes[:, None]] = -1  # they only fill up a batch
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
