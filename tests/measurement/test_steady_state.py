"""The stall is that of the steady state, whatever is ready: against queues whose stall follows from
their construction.

The queues run in virtual time: a producer that takes `input_ms` per batch, a buffer of `capacity`,
a model that takes `model_ms` once it has its batch. On shared cores a producer at work slows the
model.
"""

from __future__ import annotations

import doctest
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from throughline.measurement import steady_state
from throughline.measurement.steady_state import StepClock, measure_steady_state

GRAIN_S = 1e-5  # what taking a prepared batch costs


@dataclass
class Queue:
    """A training and its input in virtual time [s]."""

    input_s: float
    model_s: float
    capacity: int
    slowdown: float = 0.0  # by which fraction a producer at work slows the model
    burst: int = 1  # batches that are delivered together, as parallel calls do
    spread: float = 0.0  # of the input's time, uniformly around its mean
    drift: float = 0.0  # of the machine's speed, as a standard deviation
    now_s: float = 0.0
    started: bool = False
    ready: int = 0
    next_s: float = 0.0
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self):
        self.next_s = self.period()

    def period(self) -> float:
        return self.burst * self.input_s * (1 + self.spread * (2 * self.draw.random() - 1))

    def deliver(self, until_s: float) -> None:
        """Let the producer work until then; it rests while the buffer is full."""
        if not self.started:
            return
        while self.next_s <= until_s and self.ready < max(1, self.capacity):
            self.ready += self.burst
            self.next_s += self.period()
        if self.ready >= max(1, self.capacity):
            self.next_s = max(self.next_s, until_s + self.period())

    def busy(self) -> bool:
        return self.started and self.ready < max(1, self.capacity)

    def pull(self) -> None:
        self.deliver(self.now_s)
        if not self.ready:
            self.now_s = self.next_s
            self.deliver(self.now_s)
        was_full = not self.busy()
        self.ready -= 1
        if was_full:
            self.next_s = self.now_s + self.period()
        self.now_s += GRAIN_S

    def compute(self) -> None:
        left, grain = self.model_s, self.model_s / 50
        if self.drift:  # the machine's speed changes every 0.1 s
            draw = np.random.default_rng(int(self.now_s / 0.1))
            left *= 1 + self.drift * draw.standard_normal()
        while left > 1e-12:
            self.deliver(self.now_s)
            left -= grain / (1 + self.slowdown * self.busy())
            self.now_s += grain

    def step(self) -> None:
        self.pull()
        self.compute()

    def start(self) -> None:
        self.started = True
        self.next_s = self.now_s + self.period()
        self.step()

    def wait_until_idle(self, patience_s: float) -> bool:
        """The producer's core rests as soon as the buffer is full."""
        deadline = self.now_s + patience_s
        while self.now_s < deadline and self.busy():
            self.now_s += 0.01
            self.deliver(self.now_s)
        return not self.busy()

    def measured(self, max_seconds: float = 60.0):
        now, model = lambda: self.now_s, self.compute
        clock = StepClock(wait_until_idle=self.wait_until_idle, now=now, cpu_s=now)
        limits = {"max_rounds": 9, "max_seconds": max_seconds}
        return measure_steady_state(self, model, model, clock, **limits)


def stall_of(input_ms: float, model_ms: float) -> float:
    return max(0.0, 100 * (1 - model_ms / input_ms))


SLOW_INPUTS = [(30, 0.5), (30, 20), (30, 27), (30, 29), (120, 60), (200, 100)]
CASES = [(times, capacity) for times in SLOW_INPUTS for capacity in (1, 8, 64)]
CASES += [(times, capacity) for times in [(20, 30), (5, 100)] for capacity in (2, 500)]


@pytest.mark.integration
@pytest.mark.parametrize(("times", "capacity"), CASES)
def test_an_accelerator_waits_for_what_its_input_cannot_deliver(times, capacity):
    input_ms, model_ms = times
    state = Queue(input_s=input_ms / 1e3, model_s=model_ms / 1e3, capacity=capacity).measured()
    low, high = state.stall_interval_pct
    assert low - 1 <= stall_of(input_ms, model_ms) <= high + 1
    assert state.stall_pct == pytest.approx(stall_of(input_ms, model_ms), abs=2.5)
    assert state.side != "undecided" or high < 5, "only where either side gives the same verdict"


@pytest.mark.parametrize(("capacity", "burst"), [(8, 4), (64, 2)])
def test_batches_that_come_in_bursts_are_counted_with_the_waits_between_them(capacity, burst):
    state = Queue(input_s=0.03, model_s=0.015, capacity=capacity, burst=burst).measured()
    assert state.stall_pct == pytest.approx(50, abs=4)


@pytest.mark.parametrize("capacity", [1, 8, 64])
def test_irregular_inputs_give_an_interval_that_holds_the_stall(capacity):
    state = Queue(input_s=0.03, model_s=0.015, capacity=capacity, spread=0.9).measured()
    assert state.stall_pct == pytest.approx(50, abs=6)


@pytest.mark.parametrize("capacity", [2, 64])
def test_refilling_on_shared_cores_is_no_stall_of_the_steady_state(capacity):
    """An input that needs a tenth of the model's time slows it for that tenth; drained buffers are
    refilled at once.
    """
    state = Queue(input_s=0.002, model_s=0.02, capacity=capacity, slowdown=0.5).measured()
    # For each batch the producer works 2 ms, in which the model does 1.33 ms of its work.
    assert state.stall_pct == pytest.approx(100 * (1 - 20 / 20.67), abs=2)


def test_what_no_time_is_left_for_is_undecided_and_says_how_long_it_would_take():
    state = Queue(input_s=0.1, model_s=0.095, capacity=64).measured(max_seconds=2)
    assert state.side == "undecided"
    assert state.suggested_seconds > 2
    low, high = state.stall_interval_pct
    assert low <= 5 <= high + 0.5, "the truth lies between the two sides"


def test_where_the_time_was_over_before_all_rounds_it_is_time_that_is_asked_for():
    state = Queue(input_s=0.001, model_s=0.3, capacity=8, spread=0.9).measured(max_seconds=2)
    assert state.is_decided and len(state.rounds) < 9
    assert state.suggested_seconds > 2


def test_the_noise_of_the_model_alone_counts_where_the_input_never_rests():
    state = Queue(input_s=0.03, model_s=0.02, capacity=100_000, drift=0.05).measured()
    assert all(each.model_with_busy_input for each in state.rounds)
    alone = [each.reference.mean_ms for each in state.rounds]
    assert np.std(alone) > 0.01 * np.mean(alone), "a block of each round"


def test_rates_are_of_examples_where_steps_take_more_of_them_than_the_reference():
    state = Queue(input_s=0.001, model_s=0.02, capacity=8).measured()
    packed = replace(state, examples_ratio=4.0)
    assert packed.relative_rates == pytest.approx([4 * rate for rate in state.relative_rates])


def test_the_worked_examples_are_true():
    assert doctest.testmod(steady_state).failed == 0
