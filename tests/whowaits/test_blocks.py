"""Whose time is measured when, with a clock and an input of our own: `whowaits.timing.blocks`."""

from __future__ import annotations

import pytest

from whowaits.report import make_report
from whowaits.timing.blocks import WARM_UP_STEPS, Step, Timing, median_interval
from whowaits.timing.verdict import COMPUTE_BOUND, INPUT_BOUND, UNDECIDED, Conditions, judge


class Machine:
    """A clock, and a training on it whose input and model take known times."""

    def __init__(self, *, input_s, model_s, epoch=1000, gap_s=0.0, seconds=40.0, active=True):
        self.time, self.epoch, self.taken = 0.0, epoch, 0
        self.gap_s = gap_s  # that the first batch of an epoch is waited for besides
        self.input_s, self.model_s = input_s, model_s
        self.ready = 0.0  # seconds of the input's work that lie prepared
        self.timing = Timing(seconds, active=active, now=lambda: self.time)
        self.timing.settle = self.settle

    def take(self):
        gap_s = 0.0 if self.taken % self.epoch else self.gap_s
        self.taken += 1
        waited = gap_s + max(0.0, self.input_s - self.ready)
        self.ready = max(0.0, self.ready - self.input_s)
        self.time += waited
        return waited

    @property
    def ended(self):
        """Whether an epoch that is not a short one has."""
        return self.epoch > 8 and self.taken % self.epoch == 0

    def work(self, seconds):
        self.ready = min(2 * self.input_s, self.ready + seconds)  # two batches are prepared
        self.time += seconds

    def step(self):
        """One call of the training, as an adapter makes it."""
        timing = self.timing
        while timing.task not in ("train", "done"):
            if timing.task == "drain":
                while not self.ended and self.take() < self.input_s / 20:
                    pass
                timing.drained()
            elif timing.task == "collect":
                taken = 0
                while taken < 8 and not self.ended:
                    self.take()
                    taken += 1
                timing.collected(taken)
                if not taken:
                    break
            else:
                began = self.time
                self.work(self.model_s)
                timing.ran_alone(self.time - began)
        if timing.task == "done":
            return
        opens = self.taken % self.epoch == 0
        waited, began = self.take(), self.time
        self.work(self.model_s)
        epoch, worked = (self.taken - 1) // self.epoch, self.time - began
        timing.trained(Step(waited, worked, 0.0, epoch=epoch, opens_epoch=opens))

    def settle(self):
        """Wait for a device that works after its call has returned; this one does not."""

    def run(self, most=100_000):
        for _ in range(most):
            self.step()
            if self.timing.task == "done":
                return self.timing
        raise AssertionError("it does not end")


class DeviceMachine(Machine):
    """A machine whose model is a device with a queue: a call returns while no more than `depth`
    steps wait to be done.
    """

    def __init__(self, *, depth, **given):
        super().__init__(**given)
        self.depth, self.free_at = depth, 0.0
        self.timing.synchronous = False

    def work(self, seconds):
        self.free_at = max(self.time, self.free_at) + seconds
        super().work(max(0.001, self.free_at - self.depth * seconds - self.time))

    def settle(self):
        super().work(max(0.0, self.free_at - self.time))


@pytest.mark.parametrize(
    ("input_s", "stall", "epoch"), [(0.01, 0, 1000), (0.066, 50, 1000), (0.066, 50, 70)]
)
def test_a_block_is_charged_with_the_work_that_was_asked_for_in_it(input_s, stall, epoch):
    timing = DeviceMachine(depth=30, input_s=input_s, model_s=0.033, epoch=epoch).run()
    stalls = [each.stall_pct for each in timing.rounds]
    assert stalls == pytest.approx([stall] * len(stalls), abs=3)


@pytest.mark.parametrize(
    ("input_s", "model_s", "stall", "seconds"),
    [(0.04, 0.01, 75, 40), (0.01, 0.04, 0, 40), (0.05, 0.04, 20, 40), (1.5, 0.9, 40, 300)],
)
def test_the_stall_is_what_a_step_takes_beyond_the_model(input_s, model_s, stall, seconds):
    timing = Machine(input_s=input_s, model_s=model_s, seconds=seconds).run()
    assert len(timing.rounds) > 1 and timing.elapsed_s < timing.seconds
    for each in timing.rounds[1:]:
        assert each.stall_pct == pytest.approx(stall, abs=1)
        assert each.training.waited_pct == pytest.approx(stall, abs=1), "nothing lay prepared"


@pytest.mark.parametrize("model_s", [3.0, 0.8])
def test_slow_steps_end_in_time_with_what_is_known(model_s):
    timing = Machine(input_s=0.1, model_s=model_s).run()
    assert timing.elapsed_s < 40 + 10 * model_s
    assert timing.rounds and timing.rounds[-1].stall_pct == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("epoch", "gap_s", "model_s"),
    [(500, 4.0, 0.02), (25, 0.2, 0.02), (1, 0.008, 0.02), (25, 12, 1.2)],
)
def test_the_gap_between_epochs_is_part_of_the_stall_however_long_they_are(epoch, gap_s, model_s):
    seconds = 40 * model_s / 0.02
    machine = Machine(
        input_s=model_s / 4, model_s=model_s, epoch=epoch, gap_s=gap_s, seconds=seconds
    )
    machine.timing.steps_per_epoch = epoch
    found = judge(machine.run(), Conditions())
    assert found.name == INPUT_BOUND and found.stall
    assert found.stall.pct == pytest.approx(100 * 4 / 14, abs=1.5)


def test_an_epoch_longer_than_the_measurement_is_said_and_decides_nothing_of_a_cache():
    fills = Conditions(fills_cache=True)
    timing = Machine(input_s=0.04, model_s=0.01, epoch=10_000).run()
    found = judge(timing, Conditions())
    report = make_report(timing, Conditions(), found, script="a.py", training="a loop")
    assert found.name == INPUT_BOUND
    assert any("only the first epoch was seen" in line for line in report.lines)
    assert judge(timing, fills).name == UNDECIDED
    assert "too little was seen but the epoch that fills the cache" in judge(timing, fills).reason
    computes = Machine(input_s=0.001, model_s=0.01, epoch=10_000).run()
    assert judge(computes, fills).name == COMPUTE_BOUND, "a later epoch waits no longer"
    later = Machine(input_s=0.04, model_s=0.01, epoch=100).run()
    assert judge(later, fills).name == INPUT_BOUND


def test_the_first_epoch_is_left_out_of_the_steady_state_and_its_gap_counted():
    timing = Machine(input_s=0.03, model_s=0.01, epoch=90).run()
    assert not timing.passive.first_epoch
    assert all(not each.training.first_epoch for each in timing.steady)
    assert timing.epochs[1].gaps == 1


@pytest.mark.parametrize(("steps", "first"), [(7, True), (8, False)])
def test_a_first_epoch_is_kept_until_the_second_says_something(steps, first):
    machine = Machine(input_s=0.03, model_s=0.01, active=False, epoch=90)
    for _ in range(90 + steps):
        machine.step()
    passive = machine.timing.passive
    assert passive.first_epoch == first
    assert passive.steps == (90 - WARM_UP_STEPS if first else steps)
    assert "only" not in judge(machine.timing, Conditions()).reason


def test_an_interval_leaves_the_extremes_out_where_there_are_enough():
    assert median_interval([1, 2, 3]) == (1, 3)
    assert median_interval([9, 1, 2, 3, 4, 5, 0]) == (1, 5)
