"""Measuring how fast a data set can be read: warm and cold apart, the first batch apart, the gap between epochs apart."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import tensorflow as tf

from tasks.errors import EmptyDataset
from tasks.pipelines.dataset import InputPipeline


@dataclass(frozen=True, kw_only=True)
class EpochTiming:
    """One pass over the data, or as much of it as the time allowed.

    `first_batch_s` runs from asking for the iterator to the first batch; `steady_examples_per_s` is everything after it.
    `gap_s` is what lay between the last batch before and the first one here, destruction of the old iterator included.
    """

    examples: int
    first_batch_s: float
    steady_examples_per_s: float
    gap_s: float | None
    complete: bool


@dataclass(frozen=True, kw_only=True)
class InputThroughput:
    """What an input pipeline delivers when nothing consumes it but a loop."""

    input_examples_per_s: float
    spread_examples_per_s: tuple[float, float]
    cold_examples_per_s: float
    first_batch_s: float
    epoch_gap_s: float | None
    passes: int


def measure_input(pipeline: InputPipeline, *, passes: int, max_seconds: float) -> InputThroughput:
    """Drain `passes` epochs, each for at most `max_seconds`, and give the median of the warm ones.

    The first pass is cold for whatever the configuration keeps (a cache, the page cache); it counts only if it is alone. A cache
    is complete only after a whole epoch, so a configuration that has one gets its first pass in full.

    Raises:
      EmptyDataset: nothing came out.
    """
    timings = list(_epochs(pipeline, passes, max_seconds))
    warm = [timing.steady_examples_per_s for timing in (timings[1:] or timings)]
    gaps = [timing.gap_s for timing in timings if timing.gap_s is not None]
    return InputThroughput(
        input_examples_per_s=statistics.median(warm),
        spread_examples_per_s=(min(warm), max(warm)),
        cold_examples_per_s=timings[0].steady_examples_per_s,
        first_batch_s=timings[0].first_batch_s,
        epoch_gap_s=statistics.median(gaps) if gaps else None,
        passes=len(timings),
    )


def _epochs(pipeline: InputPipeline, passes: int, max_seconds: float) -> Iterator[EpochTiming]:
    """Time epoch after epoch: one sequence for a continuous plan, an iterator each for the others."""
    dataset = pipeline.dataset() if not pipeline.plan.continuous else None
    batches: Iterator = iter(())
    last_batch: float | None = None
    for epoch in range(passes):
        pipeline.epoch.assign(epoch)
        asked = time.perf_counter()
        if dataset is not None:
            batches = iter(dataset)  # the old iterator is destroyed here: part of the gap
        elif epoch == 0:
            batches = pipeline.batches(epochs=passes)
        limit = math.inf if epoch == 0 and pipeline.plan.caches else max_seconds
        timing, ended = _one_epoch(batches, pipeline, asked, last_batch, limit)
        yield timing
        # A pass that was cut short left its iterator in mid-epoch, so what would follow is not an epoch's gap.
        last_batch = ended if timing.complete else None
        if not timing.complete and pipeline.plan.continuous:
            return


def _one_epoch(batches: Iterator, pipeline: InputPipeline, asked: float, last_batch: float | None, max_seconds: float) -> tuple[EpochTiming, float]:
    first = next(batches, None)
    begun = now = time.perf_counter()
    if first is None:
        raise EmptyDataset(f"the {pipeline.split} split of this configuration delivers no batch; its plan is {pipeline.plan}")
    first_size, count, steps = _examples(first), 0, 1
    while steps < pipeline.steps and now - begun < max_seconds:
        count += _examples(next(batches))
        steps += 1
        now = time.perf_counter()
    timing = EpochTiming(
        examples=first_size + count,
        first_batch_s=begun - asked,
        steady_examples_per_s=count / (now - begun) if count else first_size / max(begun - asked, 1e-9),
        gap_s=None if last_batch is None else begun - last_batch,
        complete=steps == pipeline.steps,
    )
    return timing, now


def _examples(batch: tuple[tf.Tensor, ...] | dict[str, tf.Tensor]) -> int:
    return int((batch["label"] if isinstance(batch, dict) else batch[1]).shape[0])
