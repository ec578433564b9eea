"""Measuring how fast a dataset can be read: warm and cold apart, the first batch apart, the gap
between epochs apart.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from throughline.pipelines.input_pipeline import InputPipeline
from throughline.results.build import InputThroughput
from throughline.shared.errors import EmptyDataset


@dataclass(frozen=True, kw_only=True)
class PassTiming:
    """One pass over the data, or as much of it as the time allowed.

    `first_batch_s` runs from asking for the iterator, or the last batch before, to the first one
    here; `examples_per_s` is everything after it. `gap_s` is what lay between two epochs,
    where the pass begins one.
    """

    examples: int
    first_batch_s: float
    examples_per_s: float
    gap_s: float | None


def measure_input(pipeline: InputPipeline, *, passes: int, max_seconds: float) -> InputThroughput:
    """Drain `passes` epochs, each for at most `max_seconds`, and give the median of the warm ones.

    The first pass is cold for whatever the configuration keeps (a cache, the page cache); it counts
    only if it is alone. A cache is complete only after a whole epoch, so a configuration that has
    one gets its first pass in full.

    Raises:
      EmptyDataset: nothing came out.
    """
    timings = list(_time_passes(pipeline, passes, max_seconds))
    warm = [timing.examples_per_s for timing in timings[1:] or timings]
    gaps = [timing.gap_s for timing in timings if timing.gap_s is not None]
    return InputThroughput(
        input_examples_per_s=statistics.median(warm),
        input_examples_per_s_range=(min(warm), max(warm)),
        cold_examples_per_s=timings[0].examples_per_s,
        first_batch_s=timings[0].first_batch_s,
        epoch_gap_s=statistics.median(gaps) if gaps else None,
        passes=len(timings),
    )


def join_slices(slices: Sequence[InputThroughput]) -> InputThroughput:
    """What processes deliver together that train on slices of the same batches: as many times what
    the slowest of them does, since every step waits for it.
    """
    slowest, count = min(slices, key=lambda one: one.input_examples_per_s), len(slices)
    low, high = slowest.input_examples_per_s_range
    gaps = [one.epoch_gap_s for one in slices if one.epoch_gap_s is not None]
    return InputThroughput(
        input_examples_per_s=count * slowest.input_examples_per_s,
        input_examples_per_s_range=(count * low, count * high),
        cold_examples_per_s=count * min(one.cold_examples_per_s for one in slices),
        first_batch_s=max(one.first_batch_s for one in slices),
        epoch_gap_s=max(gaps, default=None),
        passes=slowest.passes,
    )


def _time_passes(pipeline: InputPipeline, passes: int, max_seconds: float) -> Iterator[PassTiming]:
    """Time pass after pass over one sequence of epochs; one that was cut short is followed by one
    from there on.
    """
    requested_at, previous_end = time.perf_counter(), None
    batches, steps_left = pipeline.batches(epochs=passes), pipeline.steps_per_epoch
    for number in range(passes):
        limit = math.inf if number == 0 and pipeline.plan.caches else max_seconds
        timing, steps, now = _time_pass(
            batches,
            pipeline,
            steps_left=steps_left,
            requested_at=requested_at,
            previous_end=previous_end,
            max_seconds=limit,
        )
        yield timing
        steps_left = steps_left - steps or pipeline.steps_per_epoch
        requested_at, previous_end = now, now if steps_left == pipeline.steps_per_epoch else None


def _time_pass(
    batches: Iterator,
    pipeline: InputPipeline,
    *,
    steps_left: int,
    requested_at: float,
    previous_end: float | None,
    max_seconds: float,
) -> tuple[PassTiming, int, float]:
    """A pass over the `steps_left` of an epoch; how many steps it took, and when it ended.

    `requested_at` is when its first batch was asked for, `previous_end` when the epoch before it
    ended, None where the pass begins none. Times are those of `time.perf_counter` [s].
    """
    first = next(batches, None)
    first_batch_at = now = time.perf_counter()
    if first is None:
        raise EmptyDataset(
            f"the {pipeline.split} split of this configuration delivers no batch; its plan is"
            f" {pipeline.plan}"
        )
    first_size, count, steps, last = _examples(first), 0, 1, first
    # A short rest of an epoch would make a pass too short to count.
    while steps < steps_left and (
        now - first_batch_at < max_seconds or steps_left - steps < steps / 2
    ):
        last = next(batches)
        count += _examples(last)
        steps += 1
        now = time.perf_counter()
    np.asarray(tf.nest.flatten(last)[0][:1])  # what a GPU gathers is returned before it is there
    now = time.perf_counter()
    timing = PassTiming(
        examples=first_size + count,
        first_batch_s=first_batch_at - requested_at,
        examples_per_s=(
            count / (now - first_batch_at)
            if count
            else first_size / max(first_batch_at - requested_at, 1e-9)
        ),
        gap_s=None if previous_end is None else first_batch_at - previous_end,
    )
    return timing, steps, now


def _examples(batch: tuple[tf.Tensor, ...] | dict[str, tf.Tensor]) -> int:
    if isinstance(batch, dict):
        return int(batch["label"].shape[0])
    _, label, *weight = batch  # packed rows bring weights
    return int(tf.math.count_nonzero(weight[0]) if weight else label.shape[0])
