"""What a measurement of the steady state consists of: rounds of timed blocks, and what they say of
a step.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from throughline.results.profiling import UNDECIDED_SIDE
from whowaits.timing.blocks import median_interval

# From which blocks the steady state is read; undecided where the two kinds disagree.
Side = Literal["both", "drained", "full", "undecided"]


@dataclass(frozen=True, kw_only=True)
class TimedBlock:
    """Some steps one after another: each one's time [ms], up to the moment its loss is known, and
    their work on all cores.
    """

    steps_ms: tuple[float, ...]
    core_ms: float = 0.0  # per step

    @property
    def mean_ms(self) -> float:
        """A step's time. The mean, since batches may come in bursts: a median would not see the
        waits between them.
        """
        return statistics.fmean(self.steps_ms)


@dataclass(frozen=True, kw_only=True)
class Round:
    """Blocks that follow each other, so that the machine's drift hits all alike.

    `reference` is the model alone on postprocessed batches, the same work whatever the
    configuration; `model` the layers that this configuration trains, alone on a batch that is
    ready; `full` and `drained` training that starts on full and on empty buffers.
    `batches_taken_by_full` counts the batches that the block `full` took, with those of its
    warm-up; `prepared_after_full` and `prepared_after_drained` those that lay prepared at the end
    of the two blocks.

    Where the input did not come to rest, `reference` and `model` were timed before it started, and
    `model_with_busy_input` is the model as it was timed while the input worked.
    """

    reference: TimedBlock
    model: TimedBlock
    full: TimedBlock
    drained: TimedBlock
    batches_taken_by_full: int
    prepared_after_full: int
    prepared_after_drained: int
    model_with_busy_input: TimedBlock | None = None

    def train_ms(self, side: Side) -> float:
        """A real step's time as seen from one side; from both, the mean of the two."""
        full, drained = self.full.mean_ms, self.drained.mean_ms
        return {"full": full, "drained": drained}.get(side, (full + drained) / 2)

    def stall_pct(self, side: Side) -> float:
        """The time of a real step beyond the model's own step in the same round [% of the real
        step].
        """
        return max(0.0, 100 * (1 - self.model.mean_ms / self.train_ms(side)))

    def stall_pct_lower_bound(self, side: Side) -> float:
        """The same, but for a model that was slowed by its input although it was timed alone."""
        alone = self.model_with_busy_input or self.model
        return max(0.0, 100 * (1 - max(alone.mean_ms, self.model.mean_ms) / self.train_ms(side)))


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """Rounds of blocks of one length, and from which side they are to be read.

    `prepared` is how many batches are ready when the buffers are full; `seconds` what all of it
    took; `suggested_seconds` how long it would have to take for a decision, or for more rounds,
    where the time was over before. `examples_ratio` are the examples of a step per example of a
    step of the reference; `held_ms` is how long the call of a step of the model alone holds the
    thread that trains, on a device at rest.
    """

    rounds: tuple[Round, ...]
    side: Side
    prepared: int
    seconds: float
    suggested_seconds: float | None = None
    examples_ratio: float = 1.0
    held_ms: float = math.inf

    @property
    def is_decided(self) -> bool:
        """Whether both sides agree, or the buffers' level shows which of them counts."""
        return self.side != UNDECIDED_SIDE

    @property
    def possible_sides(self) -> tuple[Side, ...]:
        """The side that counts; undecided: both."""
        return (self.side,) if self.is_decided else ("full", "drained")

    @property
    def model_step_ms(self) -> float:
        """A step of the model alone, with the layers that this configuration trains: median over
        the rounds [ms].
        """
        return statistics.median(each.model.mean_ms for each in self.rounds)

    @property
    def model_core_ms(self) -> float:
        """Work of such a step on all cores [ms]."""
        return statistics.median(each.model.core_ms for each in self.rounds)

    @property
    def reference_step_ms(self) -> float:
        """A step of the reference model alone: median over the rounds [ms]."""
        return statistics.median(each.reference.mean_ms for each in self.rounds)

    @property
    def train_step_ms(self) -> float:
        """A real step in the steady state: median over the rounds [ms]."""
        return statistics.median(each.train_ms(self.side) for each in self.rounds)

    @property
    def train_step_interval_ms(self) -> tuple[float, float]:
        """Where that median lies."""
        return median_interval([each.train_ms(self.side) for each in self.rounds])

    @property
    def stall_pct(self) -> float:
        """Median of the rounds' stalls."""
        return statistics.median(each.stall_pct(self.side) for each in self.rounds)

    @property
    def stall_interval_pct(self) -> tuple[float, float]:
        """Where the stall lies: the interval of the median; from the lower to the higher side where
        it is undecided.
        """
        sides = self.possible_sides
        lows = [
            median_interval([each.stall_pct_lower_bound(side) for each in self.rounds])[0]
            for side in sides
        ]
        highs = [
            median_interval([each.stall_pct(side) for each in self.rounds])[1] for side in sides
        ]
        return min(lows), max(highs)

    @property
    def relative_rates(self) -> tuple[float, ...]:
        """Training's speed [examples/s] in each round as a fraction of the reference model's in the
        same round; undecided: of both sides.
        """
        return tuple(
            self.examples_ratio * each.reference.mean_ms / each.train_ms(side)
            for each in self.rounds
            for side in self.possible_sides
        )

    @property
    def train_steps_ms(self) -> list[float]:
        """Every real step of the side that counts."""
        blocks = {"full": ["full"], "drained": ["drained"]}.get(self.side, ["full", "drained"])
        return [
            step
            for each in self.rounds
            for block in blocks
            for step in getattr(each, block).steps_ms
        ]
