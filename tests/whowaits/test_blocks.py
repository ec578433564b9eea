"""Whose time is measured when, with a clock and an input of our own: `whowaits.timing.blocks`."""

from __future__ import annotations

import pytest

from whowaits.report import make_report
from whowaits.timing.blocks import (
    WARM_UP_STEPS,
    Block,
    Round,
    Step,
    Timing,
    median_interval,
)
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

    def pass_time(self, seconds):
        self.time += seconds

    def take(self):
        gap_s = 0.0 if self.taken % self.epoch else self.gap_s
        self.taken += 1
        waited = gap_s + max(0.0, self.input_s - self.ready)
        self.ready = max(0.0, self.ready - self.input_s)
        self.pass_time(waited)
        return waited

    @property
    def ended(self):
        """Whether an epoch that is not a short one has."""
        return self.epoch > 8 and self.taken % self.epoch == 0

    def work(self, seconds):
        self.ready = min(2 * self.input_s, self.ready + seconds)  # two batches are prepared
        self.pass_time(seconds)

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


@pytest.mark.parametrize("epoch", [1000, 70])
@pytest.mark.parametrize(("input_s", "stall"), [(0.01, 0), (0.066, 50)])
def test_a_block_is_charged_with_the_work_that_was_asked_for_in_it(input_s, stall, epoch):
    timing = DeviceMachine(depth=30, input_s=input_s, model_s=0.033, epoch=epoch).run()
    assert [each.stall_pct for each in timing.rounds] == pytest.approx(
        [stall] * len(timing.rounds), abs=3
    )


@pytest.mark.parametrize(("synchronous", "model_ms"), [(True, 70), (False, 40)])
def test_what_lies_between_calls_is_not_added_to_the_work_of_a_device(synchronous, model_ms):
    training, alone = Block(), Block()
    training.add(Step(0.01, 0.01, between_s=0.04))
    alone.add(Step(0.0, 0.03))
    assert Round(training, alone, True, synchronous).model_ms == pytest.approx(model_ms)


def test_what_is_done_between_batches_from_memory_is_no_time_of_the_model():
    machine = DeviceMachine(depth=30, input_s=0.01, model_s=0.033)
    timing = machine.timing
    timing.collected(8)
    for number in range(40):
        if number % 8 == 0:
            timing.pause_alone()
            machine.pass_time(0.5)  # copies of the batches
        began = machine.time
        machine.work(0.033)
        timing.ran_alone(machine.time - began)
        if timing.task != "alone":
            break
    assert timing._alone.step_ms == pytest.approx(33, abs=0.5)


@pytest.mark.parametrize(("calls", "steps"), [(3, 1), (1, 8)])
def test_the_steps_that_compile_are_not_of_the_time_that_is_measured(calls, steps):
    now = [0.0]
    timing = Timing(10.0, now=lambda: now[0])
    for _ in range(calls):
        now[0] += 100
        timing.trained(Step(0.0, 100.0, steps=steps))
    assert timing.elapsed_s == 0 and not timing.over
    now[0] += 20
    assert timing.elapsed_s == 20 and timing.over


@pytest.mark.parametrize(
    ("input_s", "model_s", "stall"), [(0.04, 0.01, 75), (0.01, 0.04, 0), (0.05, 0.04, 20)]
)
def test_the_stall_is_what_a_step_takes_beyond_the_model(input_s, model_s, stall):
    timing = Machine(input_s=input_s, model_s=model_s).run()
    assert [each.stall_pct for each in timing.rounds[1:]] == pytest.approx(
        [stall] * (len(timing.rounds) - 1), abs=1
    )
    assert timing.elapsed_s < timing.seconds


def test_what_lies_prepared_when_a_training_block_begins_does_not_count():
    machine = Machine(input_s=0.04, model_s=0.01)
    timing = machine.run()
    for each in timing.rounds[1:]:
        assert each.training.waited_pct == pytest.approx(75, abs=1)


@pytest.mark.parametrize("model_s", [3.0, 0.8])
def test_slow_steps_end_in_time_with_what_is_known(model_s):
    timing = Machine(input_s=0.1, model_s=model_s).run()
    assert timing.elapsed_s < 40 + 10 * model_s
    assert timing.rounds and timing.rounds[-1].stall_pct == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("epoch", "gap_s"), [(500, 4.0), (200, 1.6), (25, 0.2), (3, 0.024), (1, 0.008)]
)
@pytest.mark.parametrize("model_s", [0.02, 1.2])
def test_the_gap_between_epochs_is_part_of_the_stall_however_long_they_are(epoch, gap_s, model_s):
    gap_s *= model_s / 0.02
    machine = Machine(
        input_s=model_s / 4, model_s=model_s, epoch=epoch, gap_s=gap_s, seconds=40 * model_s / 0.02
    )
    machine.timing.steps_per_epoch = epoch
    found = judge(machine.run(), Conditions())
    assert found.name == INPUT_BOUND and found.stall
    assert found.stall.pct == pytest.approx(100 * 4 / 14, abs=1.5)


def test_a_gap_is_not_shared_out_where_the_steps_of_an_epoch_are_not_known():
    timing = Machine(input_s=0.005, model_s=0.02, epoch=500, gap_s=4.0).run()
    verdict = judge(timing, Conditions())
    report = make_report(timing, Conditions(), verdict, script="a.py", training="a loop")
    assert any("how many steps an epoch has is not known" in line for line in report.lines)


def test_an_epoch_longer_than_the_measurement_is_said_and_decides_nothing_of_a_cache():
    timing = Machine(input_s=0.04, model_s=0.01, epoch=10_000).run()
    assert judge(timing, Conditions()).name == INPUT_BOUND
    report = make_report(
        timing, Conditions(), judge(timing, Conditions()), script="a.py", training="a loop"
    )
    assert any("only the first epoch was seen" in line for line in report.lines)
    fills = Conditions(fills_cache=True)
    assert judge(timing, fills).name == UNDECIDED
    assert "too little was seen but the epoch that fills the cache" in judge(timing, fills).reason
    computes = Machine(input_s=0.001, model_s=0.01, epoch=10_000).run()
    assert judge(computes, fills).name == COMPUTE_BOUND, "a later epoch waits no longer"
    later = Machine(input_s=0.04, model_s=0.01, epoch=100).run()
    assert judge(later, fills).name == INPUT_BOUND


@pytest.mark.parametrize("steps", range(300, 1000, 100))
def test_an_epoch_that_ends_while_it_is_timed_is_left_out_or_leaves_it_open(steps):
    timing = Machine(input_s=0.04, model_s=0.01, epoch=steps).run()
    verdict = judge(timing, Conditions(fills_cache=True))
    later = all(not each.training.first_epoch for each in timing.steady)
    assert verdict.name == (INPUT_BOUND if later else UNDECIDED)


def test_a_passive_timing_takes_no_batches_and_ends_with_the_time():
    machine = Machine(input_s=0.03, model_s=0.01, active=False, seconds=10)
    timing = machine.run()
    assert not timing.rounds
    assert timing.passive.waited_pct == pytest.approx(67, abs=1)
    assert timing.seen == machine.taken


def test_the_first_epoch_is_left_out_of_the_steady_state_and_its_gap_counted():
    timing = Machine(input_s=0.03, model_s=0.01, epoch=90).run()
    assert not timing.passive.first_epoch
    assert all(not each.training.first_epoch for each in timing.steady)
    assert timing.epochs[1].gaps == 1


def test_an_input_that_ends_while_batches_are_collected_goes_on_with_the_next_epoch():
    timing = Timing(40.0, task="collect")
    timing.collected(0)
    assert timing.task == "collect"
    timing.trained(Step(0.01, 0.01))
    assert timing.task == "collect" and timing.seen == 1


@pytest.mark.parametrize(("steps", "first"), [(3, True), (7, True), (8, False), (30, False)])
def test_a_first_epoch_is_kept_until_the_second_says_something(steps, first):
    machine = Machine(input_s=0.03, model_s=0.01, active=False, epoch=90)
    for _ in range(90 + steps):
        machine.step()
    passive = machine.timing.passive
    assert passive.first_epoch == first
    assert passive.steps == (90 - WARM_UP_STEPS if first else steps)
    assert ("only" in judge(machine.timing, Conditions()).reason) is False


def test_first_seconds_are_announced_once():
    machine, said = Machine(input_s=0.03, model_s=0.01, active=False, seconds=9), []
    machine.timing.on_first_seconds = lambda: said.append(machine.time)
    machine.run()
    assert len(said) == 1 and said[0] < 5


def test_a_block_shares_out_what_its_steps_took():
    block = Block()
    block.add(Step(0.03, 0.01, 0.0, opens_epoch=True))
    block.add(Step(0.01, 0.01, 0.02, epoch=1))
    assert block.step_ms == pytest.approx(40)
    assert block.waited_pct == pytest.approx(50)
    assert (block.gaps, block.gaps_s, block.first_epoch) == (1, 0.03, False)


@pytest.mark.parametrize(
    ("values", "interval"), [([1, 2, 3], (1, 3)), ([9, 1, 2, 3, 4, 5, 0], (1, 5))]
)
def test_an_interval_leaves_the_extremes_out_where_there_are_enough(values, interval):
    assert median_interval(values) == interval


def test_the_end_of_an_epoch_is_part_of_what_no_change_makes_less():
    training = Block(steps=10, wait_s=1.0, work_s=2.0, between_s=0.1)
    timing = Timing(40.0, steps_per_epoch=5, closings_s=[0.1, 0.5, 9.0])
    timing.rounds = [Round(training, Block(steps=1, work_s=0.1), rested=True)]
    assert timing.between_ms == pytest.approx(10 + 100)
    assert timing.step_ms == pytest.approx(310), "it is not known whose it is"
