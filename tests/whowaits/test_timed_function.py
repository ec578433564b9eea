"""What is recorded of a `fit`, by a clock of the test's own, and what its trials are given:
`whowaits.hooks.timed_function`.
"""

import os
from unittest.mock import MagicMock, Mock

import pytest

from whowaits.changes import trials
from whowaits.hooks import timed_function
from whowaits.hooks.timed_function import TimedFunction
from whowaits.session import Ended, Options, Session
from whowaits.timing.rounds import Block, Round
from whowaits.timing.waits import Waits

pytestmark = pytest.mark.integration

EPOCHS, GAP_S = 4, 0.02


def watch(step_s, steps):
    """A training of whose steps a quarter is waiting, and as much between two of them."""
    waits, now = Mock(wraps=Waits()), [100.0]
    session = Session(Options(keep=True), print, clock=lambda: now[0])
    training = session.open("fit", backend="tensorflow")

    def train(iterator):
        waits.add(step_s / 4)
        now[0] += 3 * step_s / 4

    timed = TimedFunction(train, session, training, waits)
    for _ in range(EPOCHS):
        timed.open_epoch()
        now[0] += GAP_S  # in which its iterator is made
        for _ in range(steps):
            timed(iter(()))
            now[0] += step_s / 4
        timed.close_epoch()
        waits.add(5.0)  # of a validation, which is none of the training's
        now[0] += 9.0
    return training.timing, waits


@pytest.mark.parametrize(("step_s", "steps"), [(0.0001, 90), (0.003, 20), (0.012, 20)])
def test_of_steps_that_are_recorded_together_time_and_waits_are_known(step_s, steps):
    timing, waits = watch(step_s, steps)
    passive, epochs = timing.passive, EPOCHS - 1
    assert timing.steps_per_epoch == steps and timing.seen == EPOCHS * steps
    assert passive.steps == epochs * steps and not passive.first_epoch
    assert passive.wait_s == pytest.approx(epochs * (GAP_S + steps * step_s / 4))
    # Before an epoch's first step, and after its last, nothing lies between.
    between = passive.total_s - epochs * (GAP_S + 3 / 4 * steps * step_s)
    assert between == pytest.approx(epochs * (steps - 1) * step_s / 4)
    together = waits.take.call_count < EPOCHS * steps / 2
    assert together == (step_s < timed_function.TOGETHER_S / 2)


def try_changes(monkeypatch, *, first_epoch=False, **facts):
    """The paces that trials are given, and the notes."""
    monkeypatch.setattr(trials, "Trials", made := MagicMock())
    session = Session(Options(), print)
    training = session.open("fit", backend="tensorflow", **facts)
    training.dataset, training.timing.steps_per_epoch = object(), 30
    waits, works = Block(steps=20, wait_s=1.0, first_epoch=first_epoch), Block(steps=20, work_s=0.1)
    training.timing.rounds = [Round(waits, works, rested=True)] * 3
    TimedFunction(print, session, training, Waits())._try_changes((None,))
    return [call.args[2] for call in made.call_args_list], training.notes


@pytest.mark.parametrize(
    ("facts", "batches"), [({}, 30), ({"steps_per_execution": 10}, 300), ({"steps": 30}, None)]
)
def test_the_batches_of_an_input_are_known_where_its_end_was_seen(facts, batches, monkeypatch):
    ((pace,), _) = try_changes(monkeypatch, **facts)
    assert pace.batches == batches


@pytest.mark.parametrize(("first_epoch", "tried"), [(True, 0), (False, 1)])
def test_no_change_is_tried_while_a_cache_is_being_filled(monkeypatch, first_epoch, tried):
    paces, notes = try_changes(monkeypatch, first_epoch=first_epoch, fills_cache=True)
    assert len(paces) == tried
    assert ("the epoch that fills the cache" in "".join(notes)) == first_epoch


def test_a_copy_that_trains_on_request_saves_nothing():
    reads, asks = os.pipe()
    os.close(asks)  # no more requests
    session = Session(Options(keep=True, channel=(reads, os.open(os.devnull, os.O_WRONLY))), print)
    training = session.open("fit", backend="tensorflow", dataset=[1])
    timed = TimedFunction(print, session, training, Waits())
    timed(iter(()))
    assert not session.saves.are_left_out
    with pytest.raises(Ended):
        timed(iter(()))
    assert session.saves.are_left_out
