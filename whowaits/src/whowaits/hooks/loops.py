"""Times loops of the script's own, `for batch in …`: a step lasts from one `next` to the next.

A loop is a training if gradients are taken, or its optimizer steps, in at least two steps. Not
timed are other loops (validation, a look at the data, a first call that compiles), epochs without
gradients, such as a validation in the same line, and steps that take a batch of another dataset,
unless most do. Batches up to a step of the optimizer are timed together, since some trainers take
them before they train. To time the model alone, `next` gives batches from memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

from whowaits.session import FIRST_STEP_S, STEP_S, Session
from whowaits.timing.batches import ENDS, drain, drained_s, keep_batches
from whowaits.timing.rounds import Step
from whowaits.training import Training

from .loop_state import Loop, Pulls, Source

FEWEST_TRAINED = 2  # steps with gradients that make a loop a training
MOST_SINGLE = 8  # successive iterators that give one batch each
SINGLE = (
    "each iterator gave one batch, so there are none to time the model alone on; a script with"
    " next(iter(…)) for each batch should keep one iterator"
)


class _ScriptError(Exception):
    """An error that the script's own input raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class LoopWatch:
    """Times every loop of a process; `mark` is called when gradients are taken."""

    session: Session
    taking: bool = False  #: whether a batch is being taken; batches taken within belong to it

    def mark(self, *_: Any) -> None:
        self.session.mark()

    @property
    def repeats(self) -> bool:
        """Whether the script is working on a batch from memory."""
        loops = self.session.loops.values()
        return any(loop.from_memory and loop.handed is not None for loop in loops)

    def pull(
        self,
        source: Source,
        iterator: Any,
        take: Callable[[], Any],
        *,
        opening_s: float | None = None,
    ) -> Any:
        """Return a loop's next batch, maybe from memory; making its iterator took `opening_s`."""
        if self.taking:
            return take()
        self.taking = True
        try:
            return self._pull(source, iterator, take, opening_s)
        finally:
            self.taking = False

    def _pull(
        self, source: Source, iterator: Any, take: Callable[[], Any], opening_s: float | None
    ) -> Any:
        entered = self.session.clock()
        loop = self._find(source, iterator)
        begins = opening_s is not None or loop.current is not iterator
        if begins and loop.batches + loop.repeated > 1:
            loop.handed = None  # left before its end, so the time since then is no step's work
        try:
            if loop.handed is not None:
                self._end_step(loop, entered)
            if begins:
                loop.begin_epoch(iterator)
            batch = self._at_work(loop, take)
        except _ScriptError as theirs:
            raise theirs.error from None
        except Exception as error:  # noqa: BLE001 - the script must not fail because of us
            self._give_up(loop, error)
            batch = None
        if batch is not None:
            return batch[0]
        if loop.exhausted:
            loop.iterator, loop.ended = None, True
            raise loop.exhausted
        return self._hand_out(loop, take, opening_s or 0.0)

    def pass_by(self, take: Callable[[], Any], *, validates: bool = True) -> Any:
        """Take a batch that is not trained on.

        If it `validates`, open steps do not count; otherwise it is a part of the step.
        """
        if self.taking:
            return take()
        self.session.heartbeat(expects=None)  # a validation takes as long as it takes
        began, self.taking = self.session.clock(), True
        try:
            return take()
        finally:
            self.taking = False
            if validates:
                self._count_for_others(None, self.session.clock() - began, validates=True)

    def _find(self, source: Source, iterator: Any) -> Loop:
        """Return the loop of this source, a new one at first.

        If several of its iterators are open at once, as in zip, each has a loop of its own.
        """
        loops = (
            self.session.loops.setdefault((source.key, number), Loop(source))
            for number in itertools.count()
        )
        found = next(loop for loop in loops if loop.current is None or loop.current is iterator)
        if found.training is None:  # a batch looked at elsewhere is no training
            found.source = source
        return found

    def _at_work(self, loop: Loop, take: Callable[[], Any]) -> tuple[Any] | None:
        """Return a batch from memory or a trial, as a tuple, or None for the next real one."""
        training = loop.training
        if training is None:
            self.session.heartbeat(expects=None)  # a validation takes as long as it takes
            return None
        if self._tries(loop, training):
            return self._try(loop, training)
        self.session.check(training)
        expects = STEP_S if training.timing.warm else FIRST_STEP_S
        # Only the measured training has to progress in time.
        self.session.heartbeat(expects=expects if training in self.session.measured else None)
        if loop.single >= MOST_SINGLE and training.timing.active:
            training.only_watch(SINGLE)
        if training.timing.task == "train" or not loop.confirmed:
            return None
        return self._between_steps(loop, training, take)

    def _tries(self, loop: Loop, training: Training) -> bool:
        """Return whether changes of the loop's input are being tried; start the trials if due."""
        if loop.trials is None and loop.source.tries is not None:
            done = training.timing.task == "done"
            if self.session.serves(training) or (done and self.session.begin_trials(training)):
                loop.forget()
                loop.trials, loop.tried_s = loop.source.tries(training), None
                self.session.saves.leave_out()
        return loop.trials is not None

    def _try(self, loop: Loop, training: Training) -> tuple[Any] | None:
        """Return the next batch on which changes are tried; after the last, end the script."""
        self.session.heartbeat(expects=None)  # workers may take long to start
        batch = None
        try:
            batch = (loop.trials.send(loop.tried_s),) if loop.trials else None
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - the verdict stands without it
            training.note_failed_trials(error)
        if batch is None:
            self.session.end()
        loop.repeated += 1
        self._hand_over(loop, from_memory=True)
        return batch

    def _give_up(self, loop: Loop, error: Exception) -> None:
        self.session.fail(error)
        loop.handed = None
        loop.forget()
        if loop.training is not None:
            loop.training.only_watch("timing the model alone failed")

    def _hand_out(self, loop: Loop, take: Callable[[], Any], opening_s: float) -> Any:
        began = self.session.clock() - opening_s
        try:
            batch = take()
        except Exception as error:
            if type(error).__name__ in ENDS:
                loop.iterator, loop.ended = None, True
                self.session.heartbeat(expects=None)
            raise
        finally:
            now = self.session.clock()
            self._count_for_others(loop, now - began)
        if loop.training is not None and not loop.training.timing.warm:
            loop.training.count_examples([batch])
        loop.batches += 1
        loop.wait_s = now - began
        self._hand_over(loop, from_memory=False)
        return batch

    def _hand_over(self, loop: Loop, *, from_memory: bool) -> None:
        loop.marks, loop.from_memory = self.session.marks, from_memory
        loop.others, loop.others_wait_s, loop.validates = 0, 0.0, False
        loop.handed = self.session.clock()

    def _count_for_others(
        self, loop: Loop | None, seconds: float, *, validates: bool = False
    ) -> None:
        for other in self.session.loops.values():
            if other is not loop and other.handed is not None:
                other.others += 1
                other.others_wait_s += seconds
                other.validates = other.validates or validates

    def _end_step(self, loop: Loop, now: float) -> None:
        """Record a step unless it took no gradients, validated, or read another dataset."""
        pulls = self._add_pull(loop, now)
        if loop.trials is not None:
            loop.tried_s = None if pulls.validates or pulls.others else pulls.work_s
            loop.pulls = Pulls()
            return
        if self.session.marks == loop.marks:
            return
        loop.pulls = Pulls()
        opens, loop.opens = loop.opens, False
        if pulls.validates:
            return
        loop.trained, loop.confirmed = loop.trained + 1, True
        loop.shared += pulls.others
        if pulls.others and not loop.shares:  # a look at another dataset
            return
        if loop.training is None:
            if loop.trained < FEWEST_TRAINED:
                return
            loop.training = opened = self.session.open(loop.source.name(), **loop.source.facts())
            opened.timing.settle, opened.timing.buffered = loop.source.settle, loop.source.buffered
            opened.timing.steps_per_epoch = loop.source.steps()
        timing = loop.training.timing
        if pulls.others and not loop.training.passive_because:
            loop.training.only_watch("a step takes batches of several datasets")
        if loop.from_memory:
            timing.ran_alone(pulls.work_s, steps=pulls.steps, warm_up=loop.warm_up > 0)
            loop.warm_up -= 1
            return
        timing.trained(
            Step(pulls.wait_s, pulls.work_s, 0.0, loop.epoch, opens_epoch=opens, steps=pulls.steps)
        )

    def _add_pull(self, loop: Loop, now: float) -> Pulls:
        work_s, loop.handed = now - (loop.handed or now), None
        pulls = loop.pulls
        pulls.steps += 1
        pulls.wait_s += loop.wait_s + loop.others_wait_s
        pulls.work_s += max(0.0, work_s - loop.others_wait_s)
        pulls.others = pulls.others or loop.others > 0
        pulls.validates = pulls.validates or loop.validates or loop.others > 1
        return pulls

    def _between_steps(
        self, loop: Loop, training: Training, take: Callable[[], Any]
    ) -> tuple[Any] | None:
        """Do the timing's next task; return a batch from memory, or None for the next real one."""
        timing = training.timing
        if timing.task != "alone":
            loop.forget()
        if timing.task == "drain":
            if not loop.exhausted:
                most_s = drained_s(timing.step_ms)
                drain(lambda: self._take(loop, take), most_s=most_s, clock=self.session.clock)
            timing.drained()
            return None
        if timing.task == "collect":
            if loop.exhausted:
                return None
            keep = loop.source.keep or loop.source.copy
            taken = keep_batches(lambda: self._take(loop, take), keep, self.session.clock)
            training.count_examples(taken.batches)
            taken.drop_remainder(training.examples)
            if not taken.batches:
                timing.collected(0)
                return None
            loop.memory, loop.warm_up = taken.batches, 2
            timing.collected(len(taken.batches))
        if not loop.copies and not training.synchronous:
            # Copy all at once, while the device rests: it would work on during single copies.
            timing.pause_alone()
            loop.copies.extend(map(loop.source.copy, loop.memory))
            timing.settle()
        elif not loop.copies:
            loop.copies.extend(loop.memory)
        batch = loop.copies.popleft()
        if training.synchronous:  # as the loader does: each step frees memory for the next batch
            before_s = process_time()
            batch = loop.source.copy(batch)
            timing.leave_out_cpu(process_time() - before_s)
        loop.repeated += 1
        self._hand_over(loop, from_memory=True)
        return (batch,)

    def _take(self, loop: Loop, take: Callable[[], Any]) -> tuple[Any] | None:
        try:
            taken = (take(),)
            loop.taken += 1
            return taken
        except Exception as error:
            if type(error).__name__ not in ENDS:
                raise _ScriptError(error) from error
            loop.exhausted = error.with_traceback(None)  # whose frames keep the iterator alive
            return None
