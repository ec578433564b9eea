"""Times of blocks of steps, and of rounds: the training, then the model alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

SLOW_S = 1.0  # a step of this length is a block of its own
TRIMMING_ROUNDS = 7  # enough that one disturbed round does not widen the interval


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval for the median: the values' range; of seven or more, without both ends.

    For any distribution, the interval of nine independent values covers the distribution's median
    with a probability of 96 %, that of five values with 94 %.
    """
    ascending = sorted(values)
    spare = 1 if len(ascending) >= TRIMMING_ROUNDS else 0
    return ascending[spare], ascending[-1 - spare]


@dataclass
class Block:
    """Steps in a row, and their times [s]: waiting, working, and between two calls.

    `gaps_s` is the part of the waits that was for an epoch's first batch, `cores_s` the CPU time of
    this process and its children meanwhile, NaN if unknown.
    """

    steps: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    between_s: float = 0.0
    gaps: int = 0
    gaps_s: float = 0.0
    cores_s: float = math.nan
    first_epoch: bool = True

    @property
    def total_s(self) -> float:
        return self.wait_s + self.work_s + self.between_s

    @property
    def step_ms(self) -> float:
        """Time of a step, with its share of the gaps between epochs."""
        return 1e3 * self.total_s / self.steps if self.steps else math.nan

    @property
    def waited_pct(self) -> float:
        """Share of the time that was spent waiting for batches."""
        return 100 * self.wait_s / self.total_s if self.total_s else 0.0

    def with_gaps(self, gap_s: float, steps_per_epoch: float) -> Block:
        """Return the block as if it had the expected number of gaps, each of `gap_s`."""
        regular = self.steps - self.gaps
        if regular <= 0:
            return self
        gaps = self.steps / steps_per_epoch
        each_s = (self.wait_s - self.gaps_s) / regular
        return replace(self, wait_s=each_s * (self.steps - gaps) + gaps * gap_s)

    def without_gaps(self) -> Block:
        """Return the block as if an epoch's first batch took no longer than the others."""
        return self.with_gaps(0.0, math.inf)

    def with_more(self, other: Block) -> Block:
        """Return the block with the steps of another one."""
        names = ("steps", "wait_s", "work_s", "between_s", "gaps", "gaps_s", "cores_s")
        sums: dict[str, Any] = {each: getattr(self, each) + getattr(other, each) for each in names}
        return replace(self, first_epoch=self.first_epoch and other.first_epoch, **sums)

    def add(self, step: Step) -> None:
        self.steps += step.steps
        self.wait_s += step.wait_s
        self.work_s += step.work_s
        self.between_s += step.between_s
        if step.opens_epoch:
            self.gaps += 1
            self.gaps_s += step.wait_s
        self.first_epoch = self.first_epoch and step.epoch == 0


@dataclass(frozen=True)
class Step:
    """A step's times [s] and epoch; if it is several `steps`, time between them counts as work."""

    wait_s: float
    work_s: float
    between_s: float = 0.0
    epoch: int = 0
    opens_epoch: bool = False
    steps: int = 1

    @property
    def total_s(self) -> float:
        return self.wait_s + self.work_s + self.between_s

    @property
    def is_slow(self) -> bool:
        """Whether a step, without waits for an epoch's first batch, is as long as a whole block."""
        return self.total_s - (self.wait_s if self.opens_epoch else 0.0) >= SLOW_S


@dataclass(frozen=True)
class Round:
    """Training, then the model alone on the batches that came next.

    `rested` says that the input did nothing while the model ran alone, and `synchronous` that calls
    return when the device is done.
    """

    training: Block
    alone: Block
    rested: bool
    synchronous: bool = True

    def with_more(self, other: Round) -> Round:
        """Return the round with the steps of another one."""
        training = self.training.with_more(other.training)
        alone = self.alone.with_more(other.alone)
        rested = self.rested and other.rested
        return replace(self, training=training, alone=alone, rested=rested)

    @property
    def model_ms(self) -> float:
        """Time of the model's step, and of the program's work between two steps."""
        between_ms = 1e3 * self.training.between_s / self.training.steps
        if self.synchronous:
            return self.alone.step_ms + between_ms
        # The device works on meanwhile, and a callback that reads the loss waits for it.
        return max(self.alone.step_ms, between_ms)

    @property
    def stall_pct(self) -> float:
        """Share of a step beyond the model's own time; negative if the model alone was slower."""
        return 100 * (1 - self.model_ms / self.training.step_ms)

    @property
    def unexplained_pct(self) -> float:
        """Share of a step [%] by which the stall exceeds waits and the input's CPU time, or NaN."""
        training, alone = self.training, self.alone
        input_s = training.cores_s / training.steps - alone.cores_s / alone.steps
        caused_ms = 1e3 * (training.wait_s / training.steps + max(input_s, 0.0))
        if math.isnan(input_s) or not self.rested:
            return math.nan
        return max(0.0, self.stall_pct - 100 * caused_ms / training.step_ms)
