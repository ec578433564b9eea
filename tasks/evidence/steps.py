"""Timing a training from inside: when each step ended, epoch by epoch."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

SETTLING_STEPS = 5  # steps of the first epoch that still carry tracing and start-up


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of the warm epochs (of the first epoch, after it has settled, where it is the only one) [ms]."""

    ms_p50: float
    ms_p95: float
    ms_p99: float
    count: int


class StepTimer:
    """Notes the end of each step with a monotonic clock; costs about a microsecond a step.

    With several steps per execution there is one note per execution; a step's time is then its share of it.
    """

    def __init__(self, steps_per_execution: int) -> None:
        self._per_call = steps_per_execution
        self.epochs: list[np.ndarray] = []  # one array of times [s] per epoch, the start of the epoch first
        self._times: list[float] = []

    def begin(self) -> None:
        """Start an epoch's clock."""
        self._times = [time.perf_counter()]

    def tick(self) -> None:
        """Note the end of a step."""
        self._times.append(time.perf_counter())

    def end(self) -> None:
        """Close the epoch, unless it is closed already or has no step."""
        if len(self._times) > 1:
            self.epochs.append(np.asarray(self._times))
        self._times = []

    @property
    def rates(self) -> list[float]:
        """Steps per second of each epoch, validation excluded."""
        return [self._per_call * (len(times) - 1) / float(times[-1] - times[0]) for times in self.epochs]

    def step_times(self) -> StepTimes:
        """Percentiles over the steady steps."""
        steady = [np.diff(times)[SETTLING_STEPS:] for times in (self.epochs[1:] or self.epochs)]
        milliseconds = np.concatenate(steady) * 1e3 / self._per_call if steady else np.empty(0)
        if not milliseconds.size:
            milliseconds = np.diff(self.epochs[-1]) * 1e3 / self._per_call
        p50, p95, p99 = np.percentile(milliseconds, (50, 95, 99))
        return StepTimes(ms_p50=float(p50), ms_p95=float(p95), ms_p99=float(p99), count=int(milliseconds.size))
