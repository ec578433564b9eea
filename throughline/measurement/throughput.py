"""Measuring how fast a dataset can be read: warm and cold apart, the first batch apart, the gap
between epochs apart.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
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


def measure_input(
    pipeline: InputPipeline,
    *,
    passes: int,
    max_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> InputThroughput:
    """Drain `passes` epochs, each for at most `max_seconds`, and give the median of the warm ones.

    The first pass is cold for whatever the configuration keeps (a cache, the page cache); it counts
    only if it is alone. A cache is complete only after a whole epoch, so a configuration that has
    one gets its first pass in full.

    Raises:
      EmptyDataset: nothing came out.
    """
    epochs = _Epochs(pipeline, passes, clock)
    first_limit = math.inf if pipeline.plan.caches else max_seconds
    timings = [epochs.time_pass(max_seconds if number else first_limit) for number in range(passes)]
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


class _Epochs:
    """One sequence of epochs, timed pass after pass; one that is cut short is followed by one from
    there on.
    """

    def __init__(self, pipeline: InputPipeline, count: int, clock: Callable[[], float]) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._requested_at = clock()
        self._epoch_ended_at: float | None = None
        self._batches, self._left = pipeline.batches(epochs=count), pipeline.steps_per_epoch

    def time_pass(self, max_seconds: float) -> PassTiming:
        """Read what is left of an epoch, for at most so long.

        Raises:
          EmptyDataset: nothing came out.
        """
        first = next(self._batches, None)
        first_batch_at = now = self._clock()
        if first is None:
            raise EmptyDataset(
                f"the {self._pipeline.split} split of this configuration delivers no batch; its"
                f" plan is {self._pipeline.plan}"
            )
        first_size, count, steps, last = _examples(first), 0, 1, first
        # A short rest of an epoch would make a pass too short to count.
        while steps < self._left and (
            now - first_batch_at < max_seconds or self._left - steps < steps / 2
        ):
            last = next(self._batches)
            count += _examples(last)
            steps += 1
            now = self._clock()
        np.asarray(
            tf.nest.flatten(last)[0][:1]
        )  # what a GPU gathers is returned before it is there
        now, waited_s = self._clock(), first_batch_at - self._requested_at
        timing = PassTiming(
            examples=first_size + count,
            first_batch_s=waited_s,
            examples_per_s=(
                count / (now - first_batch_at) if count else first_size / max(waited_s, 1e-9)
            ),
            gap_s=None if self._epoch_ended_at is None else first_batch_at - self._epoch_ended_at,
        )
        self._left = self._left - steps or self._pipeline.steps_per_epoch
        is_whole = self._left == self._pipeline.steps_per_epoch
        self._requested_at, self._epoch_ended_at = now, now if is_whole else None
        return timing


def _examples(batch: tuple[tf.Tensor, ...] | dict[str, tf.Tensor]) -> int:
    if isinstance(batch, dict):
        return int(batch["label"].shape[0])
    _, label, *weight = batch  # packed rows bring weights
    return int(tf.math.count_nonzero(weight[0]) if weight else label.shape[0])
