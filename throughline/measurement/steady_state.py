"""How long a train step takes in the steady state, measured from both sides, interleaved with the
model alone.

Batches prepared ahead hide that a pipeline cannot keep up: steps that start on full buffers run at
the model's pace until the buffers are empty. And steps that start on empty buffers, where input and
model share the cores, are slowed by the refilling. So every round times the model alone, then
training from *full* buffers, then training from *drained* ones. The truth lies between the two.
Where they agree, that is the steady state. Where they do not, the buffers' level shows which side
it tends to: a level that falls from full and stays at empty belongs to a pipeline that cannot keep
up, one that rises from empty and stays at full to one that can. Else the blocks are made longer; at
the end of the time allowed the result is undecided.

Pure arithmetic and a clock: what a step and a batch are is given. The parts that know TensorFlow
are in `train_steps.py`.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from throughline.measurement.rounds import Round, Side, SteadyState, TimedBlock
from throughline.results.profiling import UNDECIDED_SIDE
from whowaits.timing.blocks import median_interval

WARM_UP_STEPS = 3  # before a block, or a trace, that are not timed
MIN_STEPS, MAX_STEPS = 8, 2048  # of a block
# The least duration of a block, so that the clock's and the scheduler's grain do not matter.
BLOCK_S = 0.15
# Standard error of a block's mean to aim at, where batches come irregularly or in bursts.
BLOCK_ERROR = 0.05
BLOCKS = 30  # of this length should fit into the time allowed: ten rounds of three
MIN_ROUNDS, MIN_ROUNDS_AT_TIMEOUT = 5, 3  # for an interval; where the time allowed is over
SAME_PCT = 2.0  # points of stall within which the two sides agree whatever the noise
# Half an interval [points of stall] beyond which more rounds are not worth their time.
PRECISE_PCT = 1.0
# Taking a batch that is ready takes less; of a model's step.
WAITED_MS, WAITED_FRACTION = 0.25, 0.05
# Batches to take in search of one that has to be waited for; after a search that found none.
MAX_DRAIN, SHORT_DRAIN = 1024, 16
IDLE_WAIT_FRACTION = 0.25  # part of the time allowed that the input may take to fill its buffers
# The same for the model alone before the input starts, and the fewest steps of a block of that.
ALONE_FRACTION, ALONE_STEPS = 0.1, 3
# Full buffers last for 1 / stall steps per batch that is ready.
MIN_STALL, MAX_WARM_UP_STEPS = 0.05, 40
CLEAR_DROP = 3  # batches by which a level must change to be more than what is in flight

# One train step; returns when it has ended or, where the host is one step ahead, the one before.
StepFunction = Callable[[], object]


class Training(Protocol):
    """A training under the clock: `step` takes a batch and trains on it, `pull` takes a batch and
    does nothing with it.

    Its input does not work before `start`, which comes first and lets it find its pace.
    """

    def start(self) -> object: ...
    def step(self) -> object: ...
    def pull(self) -> object: ...


@dataclass
class StepClock:
    """Times steps, and waits for buffers to fill: `wait_until_idle` returns whether the input came
    to rest within a number of seconds.
    """

    wait_until_idle: Callable[[float], bool]
    cpu_s: Callable[[], float] = time.process_time
    now: Callable[[], float] = time.perf_counter
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    @property
    def elapsed_s(self) -> float:
        """Since this clock was made."""
        return self.now() - self.started

    def block(self, step: StepFunction, steps: int, *, warm_up: int = 1) -> TimedBlock:
        """Take `warm_up` steps that do not count, then time `steps`."""
        for _ in range(warm_up):
            step()
        times: list[float] = []
        cpu = self.cpu_s()
        for _ in range(steps):
            start = self.now()
            step()
            times.append((self.now() - start) * 1e3)
        return TimedBlock(steps_ms=tuple(times), core_ms=(self.cpu_s() - cpu) * 1e3 / steps)

    def drain(self, pull: StepFunction, *, waited_ms: float, limit: int) -> int:
        """Take batches until one has to be waited for; returns how many lay prepared, `limit` where
        none was waited for.
        """
        for prepared in range(limit):
            start = self.now()
            pull()
            if (self.now() - start) * 1e3 > waited_ms:
                return prepared
        return limit


def measure_steady_state(
    training: Training,
    model: StepFunction,
    reference: StepFunction,
    clock: StepClock,
    *,
    max_rounds: int,
    max_seconds: float,
) -> SteadyState:
    """Time rounds until both sides agree and the interval is precise, or the time is over.

    Ends with fewer than `max_rounds` as soon as more would not be worth their time. `max_seconds`
    bounds all of it, but for the first three rounds and the one that has started when it is over.
    """
    return _Measurement(training, model, reference, clock, max_rounds, max_seconds).run()


class _Measurement:
    """The state while rounds are timed: how long a block is, and how many batches are ready."""

    def __init__(
        self,
        training: Training,
        model: StepFunction,
        reference: StepFunction,
        clock: StepClock,
        max_rounds: int,
        max_seconds: float,
    ) -> None:
        self.max_rounds = max_rounds
        self.max_seconds, self.idle_wait_s = max_seconds, IDLE_WAIT_FRACTION * max_seconds
        self.training, self.model, self.reference, self.clock = training, model, reference, clock
        for _ in range(WARM_UP_STEPS):
            model()
            reference()
        model_ms = clock.block(model, WARM_UP_STEPS).mean_ms
        self.before_input = self.time_before_input(model_ms)
        training.start()
        self.waited_ms = max(WAITED_MS, WAITED_FRACTION * model_ms)
        self.limit = MAX_DRAIN
        if self.drain() == MAX_DRAIN:
            self.limit = SHORT_DRAIN
        first = clock.block(training.step, MIN_STEPS, warm_up=WARM_UP_STEPS)
        self.stall = max(0.0, 1 - model_ms / first.mean_ms)
        variation = statistics.pstdev(first.steps_ms) / first.mean_ms
        regular = min((variation / BLOCK_ERROR) ** 2, max_seconds * 1e3 / BLOCKS / first.mean_ms)
        self.set_length(math.ceil(max(BLOCK_S * 1e3 / first.mean_ms, regular)))

    def set_length(self, steps: int) -> None:
        """Choose the length of blocks, and see how many batches are ready after the model has run
        for so long.
        """
        self.steps = min(MAX_STEPS, max(MIN_STEPS, steps))
        self.drain()
        self.time_models()
        self.prepared = self.drain()

    def drain(self) -> int:
        return self.clock.drain(self.training.pull, waited_ms=self.waited_ms, limit=self.limit)

    def time_before_input(self, model_ms: float) -> Iterator[tuple[TimedBlock, TimedBlock]]:
        """The models alone before the input starts, which count if it never rests: a pair for each
        round, as far as time allows, since a block that all rounds shared would hide its noise.
        """
        steps = max(ALONE_STEPS, math.ceil(BLOCK_S * 1e3 / model_ms))
        fit = int(ALONE_FRACTION * self.max_seconds * 1e3 / (2 * steps * model_ms))
        count = min(self.max_rounds, max(MIN_ROUNDS_AT_TIMEOUT, fit))
        return itertools.cycle([self.time_alone(steps) for _ in range(count)])

    def run(self) -> SteadyState:
        rounds, max_rounds = list[Round](), self.max_rounds
        while True:
            rounds.append(self.time_round())
            side = choose_side(rounds, self.prepared)
            over = self.clock.elapsed_s >= self.max_seconds and len(rounds) >= min(
                MIN_ROUNDS_AT_TIMEOUT, max_rounds
            )
            if over or (side != UNDECIDED_SIDE and self.has_enough_rounds(rounds, side)):
                break
            if (
                side == UNDECIDED_SIDE
                and len(rounds) > 1
                and self.clock.elapsed_s < self.max_seconds / 2
            ):
                self.set_length(2 * self.steps)
                rounds = []
        longer = None
        if side == UNDECIDED_SIDE:  # blocks of twice the length, in as many rounds as it takes
            longer = 2 * self.clock.elapsed_s * max(1.0, MIN_ROUNDS / len(rounds))
        elif len(rounds) < max_rounds:
            longer = self.clock.elapsed_s * max_rounds / len(rounds)
        return SteadyState(
            rounds=tuple(rounds),
            side=side,
            prepared=self.prepared,
            seconds=self.clock.elapsed_s,
            suggested_seconds=longer,
        )

    def has_enough_rounds(self, rounds: Sequence[Round], side: Side) -> bool:
        low, high = median_interval([each.stall_pct(side) for each in rounds])
        precise = len(rounds) >= MIN_ROUNDS and (high - low) / 2 <= PRECISE_PCT
        return precise or len(rounds) >= self.max_rounds

    def time_alone(self, steps: int) -> tuple[TimedBlock, TimedBlock]:
        """The layers that are trained, and the reference model."""
        # The first one starts on a device at rest: timing begins when it has ended, and another one
        # is queued.
        model = self.clock.block(self.model, steps, warm_up=2)
        return model, (
            model if self.reference is self.model else self.clock.block(self.reference, steps)
        )

    def time_models(self) -> tuple[TimedBlock, TimedBlock, bool]:
        """The same while the buffers are full; and whether the input rested meanwhile."""
        rested = self.clock.wait_until_idle(self.idle_wait_s)
        if not rested:
            self.idle_wait_s /= 2
        return *self.time_alone(self.steps), rested

    def time_round(self) -> Round:
        """The model alone while the buffers are full, training from there, then training from empty
        buffers.
        """
        clock, steps = self.clock, self.steps
        model, reference, rested = self.time_models()
        drain_steps = (
            math.ceil(self.prepared / max(self.stall, MIN_STALL))
            if 100 * self.stall > SAME_PCT
            else 0
        )
        warm_up = 1 + min(drain_steps, max(steps, MAX_WARM_UP_STEPS))
        full = clock.block(self.training.step, steps, warm_up=warm_up)
        prepared_after_full = self.drain()
        drained = clock.block(self.training.step, steps, warm_up=WARM_UP_STEPS)
        prepared_after_drained = self.drain()
        self.stall = max(0.0, 1 - model.mean_ms / drained.mean_ms)
        alone = (model, reference) if rested else next(self.before_input)
        return Round(
            reference=alone[1],
            model=alone[0],
            model_with_busy_input=None if rested else model,
            full=full,
            drained=drained,
            batches_taken_by_full=warm_up + steps,
            prepared_after_full=prepared_after_full,
            prepared_after_drained=prepared_after_drained,
        )


def choose_side(rounds: Sequence[Round], prepared: int) -> Side:
    """From which side the rounds are to be read: where both agree, both; else the one that the
    buffers' level tends to.

    If the drained blocks show the pace of an input that cannot keep up, the full ones must have
    used up, of what lay `prepared`, as much as they took more than that pace delivers. If the full
    ones show the steady state, what lies prepared stays there, and grows in the drained ones.

    >>> fast, slow = TimedBlock(steps_ms=(10.0,)), TimedBlock(steps_ms=(30.0,))
    >>> falls = Round(
    ...     reference=fast, model=fast, full=fast, drained=slow,
    ...     batches_taken_by_full=30, prepared_after_full=44, prepared_after_drained=0,
    ... )
    >>> choose_side([falls], prepared=64), choose_side([falls], prepared=44)
    ('drained', 'undecided')
    """
    stalls = {side: [each.stall_pct(side) for each in rounds] for side in ("full", "drained")}
    medians = {side: statistics.median(values) for side, values in stalls.items()}
    noise = (
        sum((high - low) / 2 for low, high in map(median_interval, stalls.values()))
        if len(rounds) >= MIN_ROUNDS
        else 0.0
    )
    if abs(medians["full"] - medians["drained"]) <= max(SAME_PCT, min(noise, 2 * SAME_PCT)):
        return "both"
    used_up = statistics.median(prepared - each.prepared_after_full for each in rounds)
    gained = statistics.median(each.prepared_after_drained for each in rounds)
    deficit = statistics.median(
        each.batches_taken_by_full * (1 - each.full.mean_ms / each.drained.mean_ms)
        for each in rounds
    )
    if (
        min(deficit, used_up) >= CLEAR_DROP
        and used_up >= deficit / 2
        and gained <= max(1, prepared / 10)
    ):
        return "drained"
    if used_up <= max(1, prepared / 10) and gained >= CLEAR_DROP:
        return "full"
    return UNDECIDED_SIDE
