"""Loops of a script's own making, timed by a clock of the test's own: `whowaits.hooks.loops`."""

from __future__ import annotations

import pytest

from whowaits.hooks.loops import LoopWatch, Source
from whowaits.session import Ended, Options, Session
from whowaits.timing.batches import count_examples, keep_batches


class Batches:
    """An iterator that can be left before its end, as those of DataLoader and tf.data can."""

    def __init__(self, count):
        self.left = count

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return [self.left]


class Script:
    """A script whose loops are watched; only its input and its training take time."""

    def __init__(self, **options):
        self.now = 100.0
        self.written = []
        self.session = Session(
            Options(script="train.py", **options), self.written.append, clock=lambda: self.now
        )
        self.watch = LoopWatch(self.session)

    def wait(self, seconds):
        self.now += seconds

    def loop(self, batches, key="train.py:7", opening_s=None, **source):
        """What `for batch in batches` does in a line of the script."""

        def take():
            batch = next(batches)
            self.wait(0.004)
            return batch

        made = Source(key=key, name=lambda: f"the loop at {key}", facts=dict, **source)
        while True:
            try:
                yield self.watch.pull(made, batches, take, opening_s=opening_s)
                opening_s = None
            except StopIteration:
                return

    def train(self, work_s=0.002):
        self.wait(work_s)
        self.watch.mark()

    @property
    def training(self):
        """The only training that was seen."""
        (training,) = self.session.trainings
        return training


@pytest.fixture(autouse=True)
def _input_rests(monkeypatch) -> None:
    monkeypatch.setattr("whowaits.timing.machine.wait_until_idle", lambda _: True)


def until_measured(script, epoch=10_000, **source):
    """Its batches, epoch after epoch, until the measurement ends the script."""
    with pytest.raises(Ended):
        while True:
            yield from script.loop(Batches(epoch), **source)


def test_a_loop_that_trains_is_measured_and_ended():
    script, given, sizes = Script(), 0, set()
    for batch in until_measured(script, epoch=300, copy=list):
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
    assert script.written[0].startswith("train.py: ")


def test_an_epoch_has_as_many_steps_as_the_script_counts():
    script, repeats, lengths = Script(), set(), set()
    with pytest.raises(Ended):
        while True:
            for _, _ in zip(range(20), script.loop(Batches(1000), copy=list), strict=False):
                repeats.add(script.watch.repeats)
                script.train()
                lengths |= {each.timing.steps_per_epoch for each in script.session.trainings}
    assert lengths == {None, 20}
    assert repeats == {True, False}, "some of them are on batches from memory"


def test_an_iterator_that_is_begun_again_opens_an_epoch():
    script, batches = Script(keep=True), Batches(1000)  # as of persistent workers
    for _ in range(4):
        for _, _ in zip(range(20), script.loop(batches, opening_s=0.3), strict=False):
            script.train()
    timing = script.training.timing
    assert [block.gaps for block in timing.epochs] == [0, 1, 1, 1]
    assert timing.gap_s == pytest.approx(0.304) and timing.steps_per_epoch == 20


def test_a_loop_that_does_not_train_or_compiles_with_one_batch_is_left_alone():
    script = Script()
    assert list(script.loop(Batches(50))) == [[number] for number in reversed(range(50))]
    for _ in script.loop(Batches(1), "train.py:3"):
        script.train()
    assert not script.session.trainings


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


def followed_by_one_without_gradients(script):
    for _ in script.loop(Batches(20)):
        script.train()
    for _ in script.loop(Batches(20)):
        script.wait(0.1)


def left_before_its_end(script):
    for number, _ in enumerate(script.loop(Batches(50))):
        script.train()
        if number == 20:
            break
    script.wait(10)


@pytest.mark.parametrize(
    "epoch", [validated, followed_by_one_without_gradients, left_before_its_end]
)
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
    """As by an iterator that distributes the batches of another one."""
    script = Script(keep=True)
    inner = script.loop(Batches(30), "train.py:9")
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
    """Some trainers take several batches, then train on all of them."""
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


def test_the_device_does_nothing_while_batches_are_copied():
    script, device, copied = Script(), {"trains": False, "copies": False}, []

    def copy(batch):
        copied.append(device["trains"])
        device["copies"] = True  # where a batch lies there
        return list(batch)

    def settle():
        device.update(trains=False, copies=False)

    for _ in until_measured(script, copy=copy, settle=settle):
        assert not device["copies"]
        device["trains"] = True
        script.train()
    assert len(copied) > 2 * 64, "more batches than were kept"
    assert not any(copied)


def test_a_model_whose_batches_are_not_seen_is_said():
    script = Script()
    for marks, said in ((1, "it ended without a training"), (19, "its batches come from")):
        for _ in range(marks):
            script.watch.mark()
        assert said in script.session.make_report().lines[1]


def test_batches_that_cannot_be_copied_leave_the_script_alone(capsys):
    def refuse(batch):
        raise TypeError("cannot pickle a lock")

    script, seen = Script(), []
    for (batch,) in script.loop(Batches(3000), copy=refuse):
        seen.append(batch)
        script.train()
    assert script.training.passive_because == "timing the model alone failed"
    assert "cannot pickle a lock" in capsys.readouterr().err
    assert len(seen) >= 2999 and seen == sorted(set(seen), reverse=True), "its own, in order"


def test_an_error_of_the_scripts_own_input_is_the_scripts():
    script = Script()

    def fail_when_batches_are_kept():
        if script.session.trainings and script.training.timing.task == "collect":
            raise OSError("a file is gone")
        return [1]

    with pytest.raises(OSError, match="a file is gone"):
        for _ in script.loop(iter(fail_when_batches_are_kept, None)):
            script.train()


class Sparse:
    """As PyTorch's sparse and nested tensors: exceptions say what they have not."""

    dtype = None

    def __init__(self, **known):
        vars(self).update(known)

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not defined for sparse tensors")


def test_batches_are_kept_up_to_a_number_and_a_time_whatever_they_say_of_their_size():
    now = [0.0]

    def take_slowly():
        now[0] += 0.5
        return ([1],)

    assert len(keep_batches(lambda: ([1],)).batches) == 64
    assert len(keep_batches(take_slowly, clock=lambda: now[0]).batches) == 5, "more than 2 s"
    assert not keep_batches(lambda: None).batches
    for batch, examples in (({"texts": Sparse()}, None), ([Sparse(), Sparse(shape=(8, 2))], 8)):
        assert count_examples(batch) == examples
        assert keep_batches(iter([(batch,), None]).__next__).batches == [batch]
