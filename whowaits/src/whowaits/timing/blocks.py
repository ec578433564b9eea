"""Decides the order in which blocks of a training, and of its model alone, are timed.

`timed_function.py` and `loops.py` report the steps. First the training runs as it is, then its
model alone. Each further round drains the input, so that no batches lie prepared, times the
training, keeps the next batches, and times the model alone on those: a machine that changes its
pace affects all of a round.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .rounds import SLOW_S, Block, Round, Step, median_interval

WARM_UP_STEPS = 3  # these trace and compile graphs
PASSIVE_S, PASSIVE_MAX_S = 3.0, 10.0  # at first, the training as it is
AFTER_PAUSE = 2  # times the compilation: batches prepared meanwhile may last that long
TRAINING_S, ALONE_S = 1.5, 0.8
DISCARDED_S = 1.0  # start of a training block, in which empty buffers fill
MIN_STEPS = 3
LEAST_STEPS = 8  # fewer steps of a training, without rounds, decide nothing
MIN_ROUNDS, MAX_ROUNDS = 3, 7
FINER = 3  # parts of a round's blocks, in alternation, where no buffers have to fill
PRECISE_PCT = 2.0  # half width of a stall's interval that more rounds hardly improve
REST_S = 1.0  # for the input to rest before the model is timed alone
LEAST_GAPS = 2  # with fewer, gaps between epochs are no part of the stall


@dataclass
class Timing:
    """A timed training: the observations, and the next task.

    `task` is "train" (as it is), "drain" or "collect" (take batches without training), "alone"
    (train on the collected ones) or "done"; unless `active`, only "train" or "done". `settle` waits
    until the device has finished its work: untimed before a block, timed after its last step.
    """

    seconds: float
    active: bool = True
    synchronous: bool = True
    buffered: bool = True  #: whether batches may be prepared ahead
    settle: Callable[[], object] = lambda: None
    rest: Callable[[float], bool] = lambda _: True
    now: Callable[[], float] = time.perf_counter
    cores_s: Callable[[], float] = lambda: math.nan  #: CPU time of all threads so far
    task: str = "train"
    rounds: list[Round] = field(default_factory=list)
    epochs: list[Block] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)  #: between epochs that ran undisturbed
    closings_s: list[float] = field(default_factory=list)  #: from an epoch's last step to its end
    passive: Block = field(default_factory=Block)
    started: float | None = None  #: when the steps that make graphs were over
    seen: int = 0
    steps_per_epoch: int | None = None  #: if known
    took: bool = False  #: whether batches were taken for another purpose than training
    on_first_seconds: Callable[[], object] = lambda: None
    on_took: Callable[[], object] = lambda: None
    _disturbed: int = -1  # the last epoch with other tasks than training
    _switched: bool = False  # whether the task has changed since the last step
    _later: Block | None = None  # after the first epoch; then becomes `passive`
    _pause_s: float = 0.0
    _announced: bool = False
    _block: Block = field(default_factory=Block)
    _block_began: float = 0.0
    _cores_before_s: float = math.nan  # before this block
    _counts: bool = False  # whether the next step counts
    _training: Block | None = None
    _rested: bool = True
    _alone: Block = field(default_factory=Block)
    _parts: int = 0  # of the last round, if it is to have more

    @property
    def elapsed_s(self) -> float:
        """Time since the steps that make graphs."""
        return 0.0 if self.started is None else self.now() - self.started

    @property
    def over(self) -> bool:
        return self.elapsed_s >= self.seconds

    @property
    def warm(self) -> bool:
        """Whether the steps that make graphs are over."""
        return self.seen > WARM_UP_STEPS

    def trained(self, step: Step) -> None:
        """Record a step of the training as it is."""
        self.seen += step.steps
        while len(self.epochs) <= step.epoch:
            self.epochs.append(Block())
        if not self.warm or self.started is None:
            self._pause_s = max(self._pause_s, step.total_s)
            self._settle_untimed()
            self._begin_block()
            self.started = self._block_began
            return
        self.epochs[step.epoch].add(step)
        if self._switched:
            self._disturbed, self._switched = step.epoch, False
        elif step.opens_epoch and step.epoch > self._disturbed + 1:
            self.gaps_s.append(step.wait_s)
        if self.task != "train":  # waits for an epoch with batches to collect
            return
        if self.rounds:
            self._time_round(step)
        else:
            self._time_passively(step)

    def _begin_block(self) -> None:
        self._block_began, self._cores_before_s = self.now(), self.cores_s()

    def _time_passively(self, step: Step) -> None:
        ends_first = step.epoch > 0 and self.passive.first_epoch and self.passive.steps
        if ends_first and self._later is None:
            # The first epoch's extra work (filling a cache, reading files for the first time) is
            # done once.
            self._later = Block(first_epoch=False)
            self._begin_block()
            if self.active and not self.synchronous:
                self.settle()
                self._begin_block()
                return
        block = self._later or self.passive
        block.add(step)
        enough_s = max(PASSIVE_S / self._finer, AFTER_PAUSE * self._pause_s)
        enough_s = min(enough_s, PASSIVE_MAX_S, self.seconds / 3)
        enough = self.now() - self._block_began >= enough_s and block.steps >= MIN_STEPS
        enough = enough and not self._sees_gaps_soon()
        if block.steps >= LEAST_STEPS or (enough and self.active):
            self.passive = block
        if enough:
            if not self._announced:
                self._announced = True
                self.on_first_seconds()
            if self.active:
                self._end_training(block)
        if self.over and self.task == "train":
            self.task = "done"

    def _time_round(self, step: Step) -> None:
        if not self._counts:
            discarded_s = DISCARDED_S if self.buffered else 0.0
            self._counts = step.is_slow or self.now() - self._block_began >= discarded_s
            if self._counts:
                self._settle_untimed()
                self._cores_before_s = self.cores_s()
            return
        block = self._block
        block.add(step)
        least = 1 if step.is_slow else MIN_STEPS
        enough = block.steps - block.gaps >= least or block.gaps >= MIN_STEPS
        if (block.total_s >= TRAINING_S / self._finer and enough) or self.over:
            self._end_training(block)

    def _end_training(self, block: Block) -> None:
        self._settle_within(block)
        block.cores_s = self.cores_s() - self._cores_before_s
        self._training = block
        self._next("collect")

    def _settle_within(self, block: Block) -> None:
        began = self.now()
        self.settle()
        block.work_s += self.now() - began

    def _settle_untimed(self) -> None:
        if self.active:  # else the training stays as it is
            self.settle()

    def drained(self) -> None:
        """Note that no prepared batches are left."""
        self._take_batches()
        self._next("train")

    def _take_batches(self) -> None:
        self.took = True
        self.on_took()

    def collected(self, batches: int) -> None:
        """Time the model alone on the collected batches; if there are none and time is up, end."""
        if not batches:
            if self.over:
                self.task = "done"
            return
        self._take_batches()
        self._rested = self.rest(min(REST_S, self.seconds / 10))
        self._alone = Block()
        self.settle()
        self._next("alone")

    def pause_alone(self) -> None:
        """Stop the model's time until its next batch."""
        self._settle_within(self._alone)
        self._cores_before_s = math.nan  # the work during the pause takes CPU time, too

    def leave_out_cpu(self, seconds: float) -> None:
        """Count CPU time of this process since the block began as no work of the model."""
        self._cores_before_s += seconds

    def ran_alone(self, seconds: float, *, steps: int = 1, warm_up: bool = False) -> None:
        """Record steps on batches from memory; warm-up steps restart the block."""
        if warm_up:
            self._alone = Block()
            self.settle()
            self._cores_before_s = self.cores_s()
            return
        self._alone.steps += steps
        self._alone.work_s += seconds
        least = 1 if seconds >= SLOW_S else MIN_STEPS
        if self._alone.work_s < ALONE_S / self._finer or self._alone.steps < least:
            return
        self._settle_within(self._alone)
        self._alone.cores_s = self.cores_s() - self._cores_before_s
        self._end_round()
        if self.over or (not self._parts and self._enough()):
            self.task = "done"
        else:
            self._next("drain")

    @property
    def _finer(self) -> int:
        return 1 if self.buffered else FINER

    def _end_round(self) -> None:
        """Add a round, or a part of one, of the last blocks of the training and of its model."""
        if self._training is None:
            return
        part = Round(self._training, self._alone, self._rested, self.synchronous)
        if self._parts:
            part = self.rounds.pop().with_more(part)
        self.rounds.append(part)
        self._training, self._parts = None, (self._parts + 1) % self._finer

    def _enough(self) -> bool:
        stalls = [each.stall_pct for each in self.rounds]
        later = sum(not each.training.first_epoch for each in self.rounds)
        if len(stalls) < MIN_ROUNDS or 0 < later < MIN_ROUNDS:
            return False
        low, high = median_interval(stalls)
        return len(stalls) >= MAX_ROUNDS or (high - low) / 2 <= PRECISE_PCT

    def _sees_gaps_soon(self) -> bool:
        """Whether more gaps are needed, and will come in the first half of the time."""
        lacking = LEAST_GAPS - len(self.gaps_s)
        if lacking <= 0 or not self.epochs:
            return False
        block = self._later or self.passive
        each = self.steps_per_epoch or (self.epochs[0].steps if len(self.epochs) > 1 else math.inf)
        left = lacking * each - self.epochs[-1].steps
        return left * block.step_ms / 1e3 < self.seconds / 2 - self.elapsed_s

    def _next(self, task: str) -> None:
        self.task, self._block, self._block_began = task, Block(), self.now()
        self._switched = True
        self._counts = False  # the threads' work before the next step belongs to no block

    @property
    def steady(self) -> list[Round]:
        """The rounds that count: those after the first epoch, or all if they are too few.

        Each has its average share of the gaps between epochs, or none if that is not known.
        """
        return self._with_gaps(self.gap_s)

    def _with_gaps(self, gap_s: float | None) -> list[Round]:
        later = [each for each in self.rounds if not each.training.first_epoch]
        rounds = later if len(later) >= min(MIN_ROUNDS, len(self.rounds)) else self.rounds
        steps = self.steps_per_epoch
        if gap_s is None or not steps:
            return [replace(each, training=each.training.without_gaps()) for each in rounds]
        return [replace(each, training=each.training.with_gaps(gap_s, steps)) for each in rounds]

    @property
    def extremes(self) -> tuple[list[Round], list[Round]]:
        """`steady` with the gaps between epochs as short, and as long, as they may be."""
        if self.gap_s is None:
            return self.steady, self.steady
        shortest, longest = median_interval(self.gaps_s)
        return self._with_gaps(shortest), self._with_gaps(longest)

    @property
    def gap_s(self) -> float | None:
        """Median wait for an epoch's first batch; None if fewer than `LEAST_GAPS` were seen."""
        return statistics.median(self.gaps_s) if len(self.gaps_s) >= LEAST_GAPS else None

    @property
    def in_first_epoch(self) -> bool:
        """Whether all measured steps were in the first epoch."""
        blocks = [each.training for each in self.rounds] or [self.passive]
        return all(block.first_epoch for block in blocks)

    @property
    def step_ms(self) -> float:
        """Time of a step in the steady state: the rounds' median; before them, as first seen."""
        if not self.rounds:
            return self.passive.step_ms
        return statistics.median(each.training.step_ms for each in self.steady)

    @property
    def between_ms(self) -> float:
        """Time between two steps, with a share of an epoch's end; no input change lowers it."""
        blocks = [each.training for each in self.steady] or [self.passive]
        closing_s = statistics.median(self.closings_s) if self.closings_s else 0.0
        of_an_epoch_ms = 1e3 * closing_s / self.steps_per_epoch if self.steps_per_epoch else 0.0
        between_ms = statistics.median(1e3 * each.between_s / each.steps for each in blocks)
        return between_ms + of_an_epoch_ms
