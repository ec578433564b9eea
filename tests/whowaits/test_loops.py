"""Loops of a script's own making, timed by a clock of the test's own."""

import itertools
import math
from unittest.mock import Mock

import pytest

from whowaits.hooks.loop_state import Source
from whowaits.hooks.loops import LoopWatch
from whowaits.report import make_report
from whowaits.session import UNSEEN, Ended, Options, Session
from whowaits.timing.rounds import Block
from whowaits.timing.verdict import COMPUTE_BOUND, INPUT_BOUND, UNDECIDED, Conditions, judge

OutOfRangeError = type("OutOfRangeError", (Exception,), {})  # which ends `get_next` of tf.data


class Batches:
    """An iterator that can be left before its end, as those of DataLoader and tf.data can."""

    def __init__(self, count, end=StopIteration):
        self._numbers, self._end = iter(reversed(range(count))), end

    def __next__(self):
        for number in self._numbers:
            return [number]
        raise self._end


class Script:
    """Its loops are watched; only its input and its training take time."""

    def __init__(self, *, input_s=0.004, ahead=0, **options):
        self.now, self.input_s = 100.0, input_s
        self.ahead = ahead  # batches that the input makes while it is not waited for
        self.ready = 0.0  # seconds of the input's work that lie prepared
        self.session = Session(Options(script="train.py", **options), print, clock=lambda: self.now)
        self.watch = LoopWatch(self.session)

    def wait(self, seconds):
        self.now += seconds
        self.ready = min(self.ahead * self.input_s, self.ready + seconds)

    def loop(self, batches, key="train.py:7", opening_s=None, **source):
        """What `for batch in batches` does in a line of the script."""

        def take():
            batch = next(batches)
            self.now += max(0.0, self.input_s - self.ready)
            self.ready = max(0.0, self.ready - self.input_s)
            return batch

        made = Source(**{"key": key, "name": lambda: f"the loop at {key}", "facts": dict, **source})
        while True:
            try:
                yield self.watch.pull(made, batches, take, opening_s=opening_s)
                opening_s = None
            except (StopIteration, OutOfRangeError):
                return

    def train(self, work_s=0.002):
        self.wait(work_s)
        self.watch.mark()

    @property
    def training(self):
        (training,) = self.session.trainings
        return training


@pytest.fixture(autouse=True)
def _input_rests(monkeypatch) -> None:
    monkeypatch.setattr("whowaits.timing.machine.wait_until_idle", lambda _: True)
    monkeypatch.setattr("whowaits.timing.machine.own_cpu_s", lambda: math.nan)


def until_measured(script, epoch=10_000, *, end=StopIteration, find_gap_s=lambda: None, **source):
    with pytest.raises(Ended):
        while True:
            gap_s = find_gap_s()
            script.now += gap_s or 0.0
            yield from script.loop(Batches(epoch, end), opening_s=gap_s, **source)


def measure(model_s, epoch=1000, *, buffered=True, **given):
    """The timing of a script whose model takes so long, and whose input makes two batches ahead."""
    script = Script(ahead=2 * buffered, **given)
    for _ in until_measured(script, epoch, buffered=buffered):
        script.train(model_s)
    return script.training.timing


@pytest.mark.parametrize("end", [StopIteration, OutOfRangeError])
def test_a_loop_that_trains_is_measured_and_ended(capsys, end):
    script, given, sizes = Script(), 0, set()
    for batch in until_measured(script, epoch=300, end=end, copy=list):
        given += 1
        sizes.add(len(batch))
        batch.append("a script may change what it is given")
        script.train()
    timing = script.training.timing
    assert script.training.name == "the loop at train.py:7"
    assert [each.stall_pct for each in timing.rounds] == pytest.approx([67] * 3, abs=1)
    assert timing.steps_per_epoch == 300 and sizes == {1}
    assert timing.seen < given, "the model alone trains on some from memory"
    script.session.print_report()
    assert capsys.readouterr().out.startswith("train.py: ")


@pytest.mark.parametrize(
    ("fails", "options"), [(False, {}), (True, {}), (False, {"keep": True, "channel": (0, 1)})]
)
def test_a_loop_trains_on_the_batches_of_trials_and_says_how_long_it_worked_on_each(fails, options):
    script, worked, batches = Script(**options), [], []

    def tries(training):
        for number in range(8):
            script.now += 0.3
            worked.append((yield ["tried", number]))
        if fails:
            raise OSError("no process")

    for batch in until_measured(script, epoch=300, tries=tries):
        if batch[0] == "tried":
            batches.append(batch[1])
            assert script.session.saves.are_left_out and script.watch.repeats
            script.watch.pass_by(list, validates=batch[1] == 3)
        script.train(0.01)
    assert batches == [*range(8)]
    assert worked == pytest.approx([0.01, 0.01, 0.01, None, *[0.01] * 4])
    assert ("trying changes failed: OSError: no process" in script.training.notes) is fails


def test_where_nothing_is_prepared_a_round_has_several_parts():
    timing = measure(0.01, 10_000, buffered=False)
    assert [each.stall_pct for each in timing.rounds] == pytest.approx([28.6] * 3, abs=1)
    first, *later = timing.rounds
    assert first.training.total_s == pytest.approx(1 + 2 * 0.5, abs=0.1)
    assert {round(each.training.total_s, 1) for each in later} == {1.5}
    assert {round(each.alone.work_s, 1) for each in timing.rounds} == {0.8}


@pytest.mark.parametrize("count", [None, 1000, 40], ids=["persistent", "long", "used up"])
def test_an_epoch_that_is_left_early_has_as_many_steps_as_the_script_counts(count):
    script, repeats, lengths = Script(), set(), set()
    iterator = Batches(10**6)  # of persistent workers, which is begun again
    with pytest.raises(Ended):
        for _ in range(10_000):
            given = {"batches": Batches(count)} if count else {"opening_s": 0.3}
            for _ in itertools.islice(script.loop(**{"batches": iterator, **given}), 20):
                repeats.add(script.watch.repeats)
                script.train()
                lengths |= {each.timing.steps_per_epoch for each in script.session.trainings}
    assert script.training.timing.rounds and not script.training.passive_because
    assert lengths == {None, 20}
    assert repeats == {True, False}, "some of them are on batches from memory"


def validated(script):
    for number, _ in enumerate(script.loop(Batches(30))):
        script.train()
        if number % 20 == 19:
            for _ in script.loop(Batches(5), "train.py:9"):
                script.wait(0.01)
        elif number % 10 == 9:
            script.watch.pass_by(lambda: script.wait(0.1))
    for _ in script.loop(Batches(5), "train.py:12"):
        script.wait(0.01)


def left_early(script):
    for _ in itertools.islice(script.loop(Batches(50)), 21):
        script.train()
    script.wait(10)
    for _ in script.loop(Batches(20)):  # without gradients
        script.wait(0.1)


@pytest.mark.parametrize("epoch", [validated, left_early])
def test_what_is_no_step_of_a_training_is_not_its_time(epoch):
    script = Script(keep=True)
    for _ in range(4):
        epoch(script)
    assert script.training.timing.passive.step_ms == pytest.approx(6)
    assert len(script.training.timing.epochs) == 4
    assert not script.training.passive_because


@pytest.mark.parametrize("lines", [("a.py:1", "a.py:2"), ("a.py:1", "a.py:1")])
def test_a_step_of_two_datasets_waits_for_both_and_is_not_repeated_from_memory(lines):
    script = Script()
    with pytest.raises(Ended):
        for one, other in zip(*(script.loop(Batches(9999), line) for line in lines), strict=True):
            assert one == other
            script.train(0.004)
    training = script.session.trainings[0]
    assert training.passive_because == "a step takes batches of several datasets"
    assert training.timing.passive.waited_pct == pytest.approx(100 * 8 / 12)


def test_what_is_taken_within_a_batch_is_a_part_of_it():
    script = Script(keep=True)
    inner = script.loop(Batches(30), "train.py:9")  # whose batches the other one distributes
    for _ in script.loop(iter(lambda: next(inner), None)):
        script.train()
    assert script.training.name == "the loop at train.py:7" and not script.training.passive_because


def test_a_look_at_another_dataset_leaves_its_step_out_and_keeps_the_others():
    script = Script(keep=True)
    for _ in range(2):
        for number, _ in enumerate(script.loop(Batches(30))):
            script.train()
            if number % 10 == 0:  # in an epoch's first step, too
                next(script.loop(Batches(9), "train.py:9"))
    timing = script.training.timing
    assert not script.training.passive_because
    assert (timing.seen, timing.epochs[1].gaps) == (54, 0), "the gap was of a step left out"


@pytest.mark.parametrize("in_a_row", [False, True])
def test_batches_up_to_a_step_of_the_optimizer_are_timed_together(in_a_row):
    script = Script()
    for number, _ in enumerate(until_measured(script)):
        script.wait(0.0 if in_a_row else 0.001)
        if number % 4 == 3:
            script.train(0.004 if in_a_row else 0.0)
    training = script.training
    assert training.timing.rounds and not training.passive_because
    for each in training.timing.rounds:
        assert each.training.steps % 4 == each.alone.steps % 4 == 0
        assert each.alone.step_ms == pytest.approx(1.0)


def test_batches_that_cannot_be_copied_leave_the_script_alone(capsys):
    script, seen, refuse = Script(), [], Mock(side_effect=TypeError("cannot pickle a lock"))
    for (batch,) in script.loop(Batches(3000), copy=refuse):
        seen.append(batch)
        script.train()
    assert script.training.passive_because == "timing the model alone failed"
    assert "cannot pickle a lock" in capsys.readouterr().err
    assert len(seen) >= 2999 and seen == sorted(set(seen), reverse=True), "its own, in order"


def test_an_error_of_the_scripts_own_input_is_the_scripts():
    def batches():
        while not script.session.trainings or script.training.timing.task != "collect":
            yield [1]
        raise OSError("a file is gone")

    script = Script()
    with pytest.raises(OSError, match="a file is gone"):
        for _ in script.loop(batches()):
            script.train()


@pytest.mark.parametrize(
    ("input_s", "stall", "epoch"), [(0.01, 0, 1000), (0.066, 50, 1000), (0.066, 50, 70)]
)
def test_a_block_is_charged_with_the_work_that_was_asked_for_in_it(input_s, stall, epoch):
    """The model is a device: a call returns while no more than 30 steps wait to be done there."""
    script, model_s, free_at = Script(input_s=input_s, ahead=2), 0.033, 0.0

    def settle():
        script.wait(max(0.0, free_at - script.now))

    for _ in until_measured(script, epoch, settle=settle, facts=lambda: {"synchronous": False}):
        free_at = max(script.now, free_at) + model_s
        script.train(max(0.001, free_at - 30 * model_s - script.now))
    stalls = [each.stall_pct for each in script.training.timing.rounds]
    assert stalls == pytest.approx([stall] * len(stalls), abs=3)


@pytest.mark.parametrize(
    ("input_s", "model_s", "stall", "seconds"),
    [(0.04, 0.01, 75, 40), (0.01, 0.04, 0, 40), (0.05, 0.04, 20, 40), (1.5, 0.9, 40, 300)],
)
def test_the_stall_is_what_a_step_takes_beyond_the_model(input_s, model_s, stall, seconds):
    timing = measure(model_s, input_s=input_s, seconds=seconds)
    assert len(timing.rounds) > 1 and timing.elapsed_s < timing.seconds
    for each in timing.rounds[1:]:
        assert each.stall_pct == pytest.approx(stall, abs=1)
        assert each.training.waited_pct == pytest.approx(stall, abs=1), "nothing lay prepared"


def report_on(timing, **conditions):
    given = Conditions(**conditions)
    return make_report(timing, given, judge(timing, given), script="", training="")


@pytest.mark.parametrize(
    ("epoch", "model_s", "gaps_s", "pause_s", "verdict", "interval", "gaps", "said"),
    [
        (25, 0.02, [0.2], 0.0, INPUT_BOUND, (100 * 4 / 14, 100 * 4 / 14), 17, "waits 200 ms"),
        (25, 1.2, [12], 0.0, INPUT_BOUND, (100 * 4 / 14, 100 * 4 / 14), 2, "waits 12000 ms"),
        (25, 0.02, [0.0, 0.4], 0.0, UNDECIDED, (0, 100 * 8 / 18), 17, "waits 400 ms"),
        (500, 0.02, [4.0], 0.0, COMPUTE_BOUND, (0, 0), 1,
         "this was seen only once, so the stall does not include it"),
        (520, 0.02, [0.01], 5.0, COMPUTE_BOUND, (0, 0), 0,
         "no two epochs in a row ran undisturbed: the stall includes no gap between them"),
    ],
    ids=["short", "long", "unequal", "once", "after pauses"],
)  # fmt: skip
def test_the_gap_between_epochs_is_part_of_the_stall_if_it_was_seen_twice(
    epoch, model_s, gaps_s, pause_s, verdict, interval, gaps, said
):
    """Epochs begin with a wait of `gaps_s` in turn, or of `pause_s` after a disturbed one."""
    script = Script(input_s=model_s / 4, ahead=2, seconds=2000 * model_s)
    waits, rounds = itertools.cycle(gaps_s), [0]

    def find_gap_s():
        rounds.append(sum(len(each.timing.rounds) for each in script.session.trainings))
        return next(waits) if rounds[-1] == rounds[-2] else pause_s or next(waits)

    for _ in until_measured(script, epoch, find_gap_s=find_gap_s, steps=lambda: epoch):
        script.train(model_s)
    report = report_on(script.training.timing)
    assert (report.verdict, report.gaps) == (verdict, gaps)
    assert (report.stall_low_pct, report.stall_high_pct) == pytest.approx(interval, abs=1.5)
    assert said in "\n".join(report.lines)
    block = Block(steps=3, gaps=3, wait_s=0.1)
    assert block.with_gaps(gaps_s[0], 1) is block, "each step opens an epoch"


def test_an_epoch_longer_than_the_measurement_is_said_and_decides_nothing_of_a_cache():
    timing = measure(0.01, 10_000, input_s=0.04)
    report = report_on(timing)
    assert report.verdict == INPUT_BOUND
    assert any("only the first epoch was seen" in line for line in report.lines)
    report = report_on(timing, fills_cache=True)
    assert report.verdict == UNDECIDED
    assert "too little was seen after the epoch that fills the cache" in report.reason
    computes = report_on(measure(0.01, 10_000, input_s=0.001), fills_cache=True)
    assert computes.verdict == COMPUTE_BOUND, "a later epoch waits no longer"
    later = measure(0.01, 100, input_s=0.04)
    assert report_on(later, fills_cache=True).verdict == INPUT_BOUND and later.epochs[1].gaps == 1
    assert not any(each.training.first_epoch for each in later.steady)


def test_a_training_whose_batches_are_not_seen_is_timed_by_its_lines_and_ended():
    script, said = Script(seconds=400), [""]

    def spend(seconds):
        script.now += seconds
        said.append(script.session.watch_unseen(0.0, said[-1]))

    for marks, reason in ((1, "it ended without a training"), (19, UNSEEN)):
        for _ in range(marks):
            script.watch.mark()
        assert reason in script.session.make_report().reason
    with pytest.raises(Ended):
        while True:
            spend(3)
            script.watch.mark()
            spend(1)
    report = script.session.make_report()
    assert {*said} == {"", UNSEEN} and report.verdict == UNDECIDED and report.reason == UNSEEN
    assert [line.strip()[:4] for line in report.lines[-2:]] == ["75 %", "25 %"]
    assert "test_loops.py" in report.lines[-1] and report.lines[-1].endswith("  spend(1)")
