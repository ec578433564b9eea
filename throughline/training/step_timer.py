"""Timing a training from inside: when each step ended, epoch by epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from throughline.results.train import StepTimes

EPOCH_WARM_UP_STEPS = 5  # excluded at the start of each epoch: they include tracing and start-up


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """The times of an epoch.

    `moments` are its start and the end of each execution [s], (executions + 1,); `steps` is how
    many steps each execution had, (executions,).
    """

    moments: np.ndarray
    steps: np.ndarray

    @property
    def rate(self) -> float:
        return float(self.steps.sum() / (self.moments[-1] - self.moments[0]))

    @property
    def step_ms(self) -> np.ndarray:
        """The time per step in each execution [ms], (executions,)."""
        return np.diff(self.moments) * 1e3 / self.steps


class StepTimer:
    """Notes when each execution ended and how many steps it had; costs about a microsecond."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.epochs: list[EpochTimes] = []
        self._moments: list[float] = []
        self._steps: list[int] = []

    def begin(self) -> None:
        self._moments, self._steps = [self._clock()], []

    def tick(self, steps: int) -> None:
        self._moments.append(self._clock())
        self._steps.append(steps)

    def end(self) -> None:
        """Close the epoch, unless it is closed already or has no step."""
        if self._steps:
            self.epochs.append(
                EpochTimes(moments=np.asarray(self._moments), steps=np.asarray(self._steps))
            )
        self._moments, self._steps = [], []

    @property
    def rates(self) -> list[float]:
        return [epoch.rate for epoch in self.epochs]

    def step_times(self) -> StepTimes:
        """Return percentiles over the steady steps; an execution counts once per step."""
        warm = self.epochs[1:] or self.epochs
        milliseconds = np.concatenate(
            [_of_each_step(epoch)[EPOCH_WARM_UP_STEPS:] for epoch in warm]
        )
        if not milliseconds.size:
            milliseconds = _of_each_step(self.epochs[-1])
        p50, p95, p99 = np.percentile(milliseconds, (50, 95, 99))
        return StepTimes(
            ms_p50=float(p50), ms_p95=float(p95), ms_p99=float(p99), count=int(milliseconds.size)
        )


def _of_each_step(epoch: EpochTimes) -> np.ndarray:
    return np.repeat(epoch.step_ms, epoch.steps)
