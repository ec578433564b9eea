"""Loops of a script's own making under the clock: `whowaits.loops`."""

from __future__ import annotations

import time

import pytest

from whowaits.batches import keep_batches
from whowaits.loops import LoopWatch, Source
from whowaits.session import Ended, Options, Session


class Script:
    """A script whose loops are watched."""

    def __init__(self, **options):
        self.written = []
        self.session = Session(Options(script="train.py", **options), self.written.append)
        self.watch = LoopWatch(self.session)
        self.batches = 0

    def loop(self, key="train.py:7", *, count=10_000, input_s=0.004, copy=lambda batch: batch):
        """What `for batch in …` does: each `next` through the watch."""
        iterator = iter(range(count))

        def take():
            batch = next(iterator)
            time.sleep(input_s)
            self.batches += 1
            return [batch]

        source = Source(key=key, name=lambda: f"the loop at {key}", facts=dict, copy=copy)
        while True:
            try:
                yield self.watch.pull(source, iterator, take)
            except StopIteration:
                return

    def train(self, work_s=0.002):
        time.sleep(work_s)
        self.watch.mark()


@pytest.mark.slow
def test_a_loop_that_trains_is_measured_and_ended():
    script, batches = Script(seconds=6.0), []
    with pytest.raises(Ended):
        for batch in script.loop():
            batches.append(batch)
            script.train()
    (training,) = script.session.trainings
    assert training.name == "the loop at train.py:7" and len(training.timing.rounds) >= 1
    assert 40 <= training.timing.rounds[-1].stall_pct <= 85  # truly 67 %
    assert len(batches) > script.batches, "some came from memory"
    script.session.print_report()
    assert script.written[0].startswith("train.py: ")


def test_a_loop_that_does_not_train_is_left_alone():
    script = Script()
    assert [batch for batch, _ in zip(script.loop(input_s=0), range(50), strict=False)] == [
        [number] for number in range(50)
    ]
    assert not script.session.trainings


@pytest.mark.slow
def test_validation_between_and_within_steps_is_not_the_trainings_time():
    script = Script(keep=True, seconds=3.5)
    for _ in range(4):
        for number, _ in enumerate(script.loop("train.py:7", count=60)):
            script.train()
            if number % 20 == 19:
                for _ in script.loop("train.py:9", count=5, input_s=0.02):
                    time.sleep(0.01)
        for _ in script.loop("train.py:12", count=5, input_s=0.02):
            pass
    (training,) = script.session.trainings
    assert training.timing.passive.step_ms < 15
    assert len(training.timing.epochs) == 4


@pytest.mark.slow
def test_a_step_of_two_datasets_waits_for_both_and_is_not_repeated_from_memory():
    script = Script(seconds=4.5)
    with pytest.raises(Ended):
        for _ in zip(script.loop("a.py:1"), script.loop("a.py:2"), strict=True):
            script.train(0.004)
    training = script.session.trainings[0]
    assert training.passive_because == "a step takes batches of several datasets"
    assert training.timing.passive.waited_pct > 50


@pytest.mark.slow
def test_a_script_may_change_what_it_is_given():
    script, seen = Script(seconds=5.0), set()
    with pytest.raises(Ended):
        for batch in script.loop(copy=list):
            seen.add(len(batch))
            batch.append("changed")
            script.train()
    assert seen == {1}


@pytest.mark.slow
def test_what_ends_a_script_is_not_stopped_by_catching_exceptions():
    script = Script(seconds=4.0)
    with pytest.raises(Ended):
        while True:
            try:
                for _ in script.loop():
                    script.train()
            except Exception:  # noqa: BLE001
                pass


@pytest.mark.slow
def test_batches_are_kept_up_to_a_number():
    assert len(keep_batches(lambda: ([1],)).batches) == 64
    assert not keep_batches(lambda: None).batches
