"""Loops of a script's own making under the clock: `whowaits.hooks.loops`."""

from __future__ import annotations

import time
from statistics import median
from types import SimpleNamespace

import pytest

from whowaits.hooks.loops import LoopWatch, Source
from whowaits.session import Ended, Options, Session
from whowaits.timing.batches import count_examples, keep_batches


@pytest.fixture(autouse=True)
def _measured_in_little_time(monkeypatch) -> None:
    for name in ("PASSIVE_S", "DISCARDED_S", "TRAINING_S"):
        monkeypatch.setattr(f"whowaits.timing.blocks.{name}", 0.05)
    monkeypatch.setattr("whowaits.timing.blocks.ALONE_S", 0.15)


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


def test_a_loop_that_trains_is_measured_and_ended():
    script, batches = Script(seconds=2.0), []
    with pytest.raises(Ended):
        for batch in script.loop():
            batches.append(batch)
            script.train()
    (training,) = script.session.trainings
    assert training.name == "the loop at train.py:7"
    assert 40 <= median(each.stall_pct for each in training.timing.rounds) <= 85  # truly 67 %
    assert len(batches) > script.batches, "some came from memory"
    script.session.print_report()
    assert script.written[0].startswith("train.py: ")


def test_a_loop_that_does_not_train_is_left_alone():
    script = Script()
    assert [batch for batch, _ in zip(script.loop(input_s=0), range(50), strict=False)] == [
        [number] for number in range(50)
    ]
    assert not script.session.trainings


def test_validation_between_and_within_steps_is_not_the_trainings_time():
    script = Script(keep=True, seconds=3.5)
    for _ in range(4):
        for number, _ in enumerate(script.loop("train.py:7", count=30)):
            script.train()
            if number % 20 == 19:
                for _ in script.loop("train.py:9", count=5, input_s=0.02):
                    time.sleep(0.01)
        for _ in script.loop("train.py:12", count=5, input_s=0.02):
            pass
    (training,) = script.session.trainings
    assert training.timing.passive.step_ms < 15
    assert len(training.timing.epochs) == 4


def test_a_step_of_two_datasets_waits_for_both_and_is_not_repeated_from_memory():
    script = Script(seconds=0.6)
    with pytest.raises(Ended):
        for _ in zip(script.loop("a.py:1"), script.loop("a.py:2"), strict=True):
            script.train(0.004)
    training = script.session.trainings[0]
    assert training.passive_because == "a step takes batches of several datasets"
    assert training.timing.passive.waited_pct > 50


def test_a_script_may_change_what_it_is_given():
    script, seen = Script(seconds=1.0), set()
    with pytest.raises(Ended):
        for batch in script.loop(copy=list):
            seen.add(len(batch))
            batch.append("changed")
            script.train()
    assert seen == {1}


def test_what_ends_a_script_is_not_stopped_by_catching_exceptions():
    script = Script(seconds=0.6)
    with pytest.raises(Ended):
        while True:
            try:
                for _ in script.loop():
                    script.train()
            except Exception:  # noqa: BLE001
                pass


def test_batches_are_kept_up_to_a_number():
    assert len(keep_batches(lambda: ([1],)).batches) == 64
    assert not keep_batches(lambda: None).batches


class Batches:
    """An iterator that can be left before its end, as DataLoader's and tf.data's can."""

    def __init__(self, count):
        self.left = count

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return [self.left]


def hand_out(script, iterator, key="train.py:7", take=None, copy=lambda batch: batch):
    """What `for batch in iterator` does, in a line of the script."""
    source = Source(key=key, name=lambda: f"the loop at {key}", facts=dict, copy=copy)
    while True:
        try:
            yield script.watch.pull(source, iterator, take or iterator.__next__)
        except StopIteration:
            return


def test_two_iterators_that_one_line_takes_from_are_two_datasets():
    script = Script(keep=True)
    for _ in range(3):
        pairs = zip(hand_out(script, Batches(9)), hand_out(script, Batches(9)), strict=True)
        for (one,), (other,) in pairs:
            assert one == other
            script.train(0)
    for training in script.session.trainings:
        assert training.passive_because == "a step takes batches of several datasets"
        assert len(training.timing.epochs) == 3


def test_epochs_of_a_line_in_which_nothing_is_learned_are_no_epochs():
    script = Script(keep=True)
    for _ in range(4):
        for phase in ("train", "validation"):
            for _ in hand_out(script, Batches(20)):
                time.sleep(0.0005 if phase == "train" else 0.005)
                if phase == "train":
                    script.watch.mark()
    (training,) = script.session.trainings
    assert [block.steps for block in training.timing.epochs][1:] == [20, 20, 20]
    assert training.timing.passive.step_ms < 3


def test_the_steps_of_an_epoch_are_all_the_batches_that_it_gave():
    script = Script(seconds=1.0)
    with pytest.raises(Ended):
        while True:
            for _ in hand_out(script, Batches(300)):
                script.train(0.001)
    (training,) = script.session.trainings
    assert training.timing.rounds and training.timing.steps_per_epoch == 300


def test_a_script_that_counts_its_batches_is_not_said_to_have_failed(monkeypatch):
    monkeypatch.setattr("whowaits.timing.blocks.ALONE_S", 0.5)  # longer than an epoch
    script, losses = Script(seconds=5.0), [0.0] * 60
    assert not script.session.repeats
    with pytest.raises(IndexError):
        while True:
            for number, _ in enumerate(hand_out(script, Batches(len(losses)))):
                losses[number] = 1.0
                script.train(0.001)
    assert script.session.repeats and not script.session.trainings[0].timing.rounds


def test_one_step_that_compiles_is_no_training():
    script = Script(keep=True)
    for _ in hand_out(script, Batches(1), "train.py:3"):
        script.train(0)
    for _ in hand_out(script, Batches(20), "train.py:5"):
        script.train(0)
    assert [each.name for each in script.session.trainings] == ["the loop at train.py:5"]


def test_the_training_that_is_asked_for_is_reported_whatever_is_known_of_it():
    script = Script(keep=True, training=2)
    for line, count in (("train.py:3", 40), ("train.py:5", 20)):
        for _ in hand_out(script, Batches(count), line):
            script.train(0)
    assert script.session.make_report().training == "the loop at train.py:5"


def test_a_loop_that_is_watched_for_another_session_is_a_training_of_that():
    script = Script(keep=True)
    for _ in range(3):
        script.watch.session = Session(Options(keep=True), script.written.append)
        for _ in hand_out(script, Batches(20)):
            script.train(0)
        (training,) = script.watch.session.trainings
        assert training.timing.seen == 19, "the first may compile"


def test_what_comes_after_a_loop_that_is_left_is_no_step():
    script = Script(keep=True)
    for _ in range(4):
        iterator = Batches(50)
        for number, _ in enumerate(hand_out(script, iterator)):
            script.train(0.0005)
            if number == 20:
                break
        time.sleep(0.1)
    (training,) = script.session.trainings
    assert training.timing.passive.step_ms < 3
    assert len(training.timing.epochs) == 4


def test_a_batch_of_a_validation_within_a_step_makes_it_none():
    script = Script(keep=True)
    for number, _ in enumerate(hand_out(script, Batches(60))):
        script.train(0.0005)
        if number % 10 == 9:
            script.watch.pass_by(lambda: time.sleep(0.1))
    (training,) = script.session.trainings
    assert training.timing.passive.step_ms < 3 and not training.passive_because


def test_a_look_at_another_dataset_now_and_then_makes_a_step_none_and_the_others_stay():
    script = Script(keep=True)
    for _ in range(2):
        for number, _ in enumerate(hand_out(script, Batches(30))):
            script.train(0)
            if number % 10 == 0:  # in an epoch's first step, too
                next(hand_out(script, Batches(9), "train.py:9"))
    (training,) = script.session.trainings
    assert not training.passive_because and training.timing.seen == 54
    assert training.timing.epochs[1].gaps == 0, "its first batch was that of a step that is none"


def test_an_iterator_for_each_batch_leaves_nothing_to_time_the_model_on():
    script = Script(seconds=0.6)
    with pytest.raises(Ended):
        for _ in range(2000):
            next(hand_out(script, Batches(9)))  # what next(iter(loader)) does
            script.train(0.001)
    (training,) = script.session.trainings
    assert training.passive_because.startswith("each iterator gave one batch")
    assert not training.timing.rounds


@pytest.mark.parametrize("in_a_row", [False, True])
def test_batches_up_to_a_step_of_the_optimizer_are_timed_together(in_a_row):
    """Some trainers take several batches, then train on all of them."""
    script, batches, seen = Script(seconds=0.6), Batches(10_000), []
    with pytest.raises(Ended):
        for number, (batch,) in enumerate(hand_out(script, batches)):
            seen.append(batch)
            if not in_a_row:
                time.sleep(0.001)
            if number % 4 == 3:
                time.sleep(0.004 if in_a_row else 0.0)
                script.watch.mark()
    (training,) = script.session.trainings
    assert training.timing.rounds and not training.passive_because
    for each in training.timing.rounds:
        assert each.training.steps % 4 == each.alone.steps % 4 == 0
        assert each.alone.step_ms >= 1.0


def test_the_device_does_nothing_while_batches_are_copied():
    script, device, copied = Script(seconds=0.6), {"trains": False, "copies": False}, []

    def copy(batch):
        copied.append(device["trains"])
        device["copies"] = True  # where a batch lies there
        return list(batch)

    def settle():
        device.update(trains=False, copies=False)

    source = Source(key="a.py:1", name=lambda: "a loop", facts=dict, copy=copy, settle=settle)
    batches = Batches(10_000)
    with pytest.raises(Ended):
        while True:
            script.watch.pull(source, batches, batches.__next__)
            assert not device["copies"]
            device["trains"] = True
            script.train(0.001)
    assert len(copied) > 2 * 64, "more batches than were kept"
    assert not any(copied)


def test_a_batch_is_given_back_when_its_copy_is_kept():
    originals = []

    def take():
        originals.append({1, 2})
        return (originals[-1],)

    taken = keep_batches(take, copy=lambda batch: batch - {1})
    assert all(batch == {2} for batch in taken.batches) and len(taken.batches) == len(originals)


@pytest.mark.parametrize(("seconds", "limit"), [(6, 60), (40, 60), (90, 110)])
def test_a_measurement_has_the_time_that_was_asked_for(seconds, limit):
    assert Script(seconds=seconds).session.verdict_s == limit


def test_nothing_is_waited_for_after_a_loop_that_is_not_the_one_to_measure():
    for number, expects in ((1, 300.0), (2, None)):
        script = Script(training=number)
        for step, _ in enumerate(hand_out(script, Batches(50))):
            script.train(0)
            if step == 3:
                break  # and the script saves its model
        assert script.session._expects == expects


def test_a_full_batch_is_the_largest_one():
    script, sizes = Script(keep=True), iter([8, 8, 8, 3])
    source = Source(key="a.py:1", name=lambda: "a loop", facts=dict)
    iterator = Batches(4)

    def take():
        next(iterator)
        return [SimpleNamespace(shape=(next(sizes), 2))]

    with pytest.raises(StopIteration):
        while True:
            script.watch.pull(source, iterator, take)
            script.train(0)
    assert script.session.trainings[0].examples == 8


def test_a_validation_takes_as_long_as_it_takes():
    script = Script()
    script.session.beat(expects=1.0)
    script.watch.pass_by(lambda: None)
    assert script.session._expects is None
    script.session.beat(expects=1.0)
    next(script.loop("validation.py:3", input_s=0))
    assert script.session._expects is None, "also by a loop of the script's own"


def test_a_model_whose_batches_are_not_seen_is_said():
    script = Script()
    for number in range(20):
        script.watch.mark()
        if number == 0:
            assert "it ended without a training" in script.session.make_report().lines[1]
    lines = script.session.make_report().lines
    assert any("a model is trained, but its batches come from" in line for line in lines)


def test_batches_that_cannot_be_copied_leave_the_script_alone(capsys):
    def refuse(batch):
        raise TypeError("cannot pickle a lock")

    script, batches = Script(seconds=4.0), Batches(3000)
    seen = []
    for (batch,) in hand_out(script, batches, copy=refuse):
        seen.append(batch)
        script.train()
        if script.session.trainings and script.session.trainings[0].passive_because:
            break
    assert script.session.trainings[0].passive_because == "timing the model alone failed"
    assert "cannot pickle a lock" in capsys.readouterr().err
    assert seen == sorted(seen, reverse=True) and len(seen) == len(set(seen)), "its own, in order"


def test_an_error_of_the_scripts_own_input_is_the_scripts():
    script, left = Script(seconds=4.0), [4000]

    def take():
        left[0] -= 1
        if script.session.trainings and script.session.trainings[0].timing.task == "collect":
            raise OSError("a file is gone")
        return [left[0]]

    with pytest.raises(OSError, match="a file is gone"):
        for _ in hand_out(script, Batches(1), take=take):
            script.train()


class Sparse:
    """As PyTorch's sparse tensors: no size in bytes, and no exception that says so."""

    shape, dtype = (8, 2), None

    @property
    def nbytes(self):
        raise RuntimeError("nbytes is not defined for sparse tensors")


class Nested:
    """As PyTorch's nested tensors: no shape, and an exception that says so."""

    @property
    def shape(self):
        raise RuntimeError("NestedTensorImpl doesn't support sizes")


def test_a_batch_that_does_not_say_its_shape_does_no_harm():
    assert count_examples({"texts": Nested()}) is None
    assert count_examples([Nested(), Sparse()]) == 8
    assert keep_batches(iter([([Nested()],), None]).__next__).batches


def test_arrays_in_objects_count_and_those_without_a_size_do_no_harm():
    class Record:
        def __init__(self, x):
            self.x, self.itself = x, self

    assert keep_batches(iter([(Record(Sparse()),), None]).__next__).batches
    assert count_examples(Record(Sparse())) == 8
