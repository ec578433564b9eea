"""Times a model's train function, and does other work between its steps if the timing asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whowaits.session import FIRST_STEP_S, STEP_S, Session
from whowaits.timing.batches import drained_s
from whowaits.timing.feeds import FEEDS
from whowaits.timing.machine import OtherPrograms
from whowaits.timing.rounds import Step
from whowaits.timing.verdict import say_disturbed
from whowaits.timing.waits import Waits
from whowaits.training import Training

# Steps that are only watched are recorded together, within these limits.
TOGETHER_S, MOST_TOGETHER, LONGEST_TOGETHER_S = 0.01, 64, 1.0


class TimedFunction:
    """A timed train function, which between two steps does the work that the timing asks for."""

    def __init__(
        self, function: Callable[..., Any], session: Session, training: Training, waits: Waits
    ) -> None:
        self._function, self._session, self._waits = function, session, waits
        self._training, self._timing, self._clock = training, training.timing, session.clock
        self._feed = FEEDS[training.backend](function, waits)
        self._timing.settle = self._feed.settle
        self._epoch, self._opens, self.steps_in_epoch = -1, False, 0
        self._took = False  # whether batches of this epoch were taken for another purpose
        self._returned: float | None = None
        self._opened = self._clock()  # when this epoch began
        # Steps since the last record, when the last one ended, and how many to record next.
        self._unrecorded, self._skipped_until, self._together = 0, 0.0, 1

    @property
    def is_starved(self) -> bool:
        """Whether this epoch had no batch, although none was taken for another purpose."""
        return not self.steps_in_epoch and not self._took

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def open_epoch(self, steps: int | None = None) -> None:
        """Start an epoch; `steps` is its number of steps, if known."""
        if self._epoch >= 0 and not self._took:
            steps = self.steps_in_epoch
        self._timing.steps_per_epoch = steps or self._timing.steps_per_epoch
        if not self._timing.active:
            self._waits.take()  # drops waits of a validation
        self._together = 1
        self._epoch, self._opens, self.steps_in_epoch = self._epoch + 1, True, 0
        self._took = False
        self._returned, self._opened = None, self._clock()

    def close_epoch(self) -> None:
        """Record remaining steps, or the time after the last one, before the training pauses."""
        if self._unrecorded and self._returned is not None:
            self._record_together(self._skipped_until - self._returned, steps=self._unrecorded)
        elif self._returned is not None and self._epoch > 0 and not self._took:
            self._timing.closings_s.append(self._clock() - self._returned)
        self._returned = None

    def _skip(self, arguments: tuple[Any, ...]) -> Any:
        """Train on a batch that is recorded together with later ones."""
        result = self._function(*arguments)
        self._unrecorded += 1
        self.steps_in_epoch += 1
        self._skipped_until = self._clock()
        if self._skipped_until - (self._returned or 0.0) > LONGEST_TOGETHER_S:
            self._together = 1
        return result

    def _record_together(self, took_s: float, *, steps: int) -> None:
        """Record steps that together took `took_s`, without interruption."""
        wait_s = min(took_s, self._waits.take())
        epoch = max(0, self._epoch)
        self._record(Step(wait_s=wait_s, work_s=took_s - wait_s, epoch=epoch, steps=steps))

    def _record(self, step: Step) -> None:
        self._timing.trained(step)
        self._together, self._unrecorded = self._count_together(step), 0
        self._returned = self._clock()

    def __call__(self, *arguments: Any) -> Any:
        if self._unrecorded + 1 < self._together:
            return self._skip(arguments)
        entered = self._clock()
        if self._timing.seen and self._session.serves(self._training):
            self._serve(arguments)
        arguments = self._feed.prepare(arguments)
        try:
            self._between_steps(arguments)
            if self._timing.active:
                self._feed.keep(arguments)
        except Exception as error:  # noqa: BLE001 - the training goes on as it is
            self._session.fail(error)
            self._training.only_watch("timing the model alone failed")
        if self._timing.task == "done":
            self._try_changes(arguments)
        self._session.check(self._training)
        between = entered - self._returned if self._returned is not None else 0.0
        before = self._waits.take() if self._feed.waits_between_calls else 0.0
        if self._timing.active and not self._feed.waits_between_calls:
            self._waits.take()  # drops waits for other work than this step
        opens = self._opens and self._timing.warm  # filling a buffer may take long
        expects = None if opens else STEP_S if self._timing.warm else FIRST_STEP_S
        self._session.heartbeat(expects=expects)
        began = self._clock()
        result = self._feed.train(arguments)
        took = self._clock() - began
        self.steps_in_epoch += 1
        if self._unrecorded and self._returned is not None:
            self._record_together(self._clock() - self._returned, steps=self._unrecorded + 1)
            return result
        within = 0.0 if self._feed.waits_between_calls else min(took, self._waits.take())
        # Making an epoch's iterator before its first step is the input's work, too.
        opening = max(0.0, entered - self._opened) if self._opens else 0.0
        step = Step(
            wait_s=within + max(before, opening),
            work_s=took - within,
            between_s=max(0.0, between - before),
            epoch=max(0, self._epoch),
            opens_epoch=self._opens and not self._took,
        )
        self._opens = False
        self._record(step)
        return result

    def _count_together(self, step: Step) -> int:
        """Return how many of the next steps to record together.

        A record takes some 60 µs, so a training that is only watched gets one every 10 ms.
        """
        if self._timing.active or not self._feed.waits_in_graph or not self._timing.warm:
            return 1
        return max(1, min(MOST_TOGETHER, int(TOGETHER_S * step.steps / max(step.total_s, 1e-9))))

    def _between_steps(self, arguments: tuple[Any, ...]) -> None:
        """Do the timing's tasks until it asks for a step of the training."""
        timing = self._timing
        memory: Any = None
        warm_up = 0
        while timing.task not in ("train", "done"):
            self._session.heartbeat()
            self._took = True
            if timing.task == "drain":
                self._feed.drain(arguments, most_s=drained_s(timing.step_ms))
                timing.drained()
            elif timing.task == "collect":
                taken = self._feed.collect(arguments)
                self._training.count_examples(taken.batches)
                taken.drop_remainder(self._training.examples)
                if not taken.batches:
                    timing.collected(0)
                    break
                memory, warm_up = self._feed.memory(taken), 2
                timing.collected(len(taken.batches))
            elif timing.task == "alone":
                began = self._clock()
                self._feed.train_alone(arguments, memory)
                timing.ran_alone(self._clock() - began, warm_up=warm_up > 0)
                warm_up -= 1

    def _serve(self, arguments: tuple[Any, ...]) -> None:
        from whowaits.changes.serve import Served  # imports TensorFlow, as the script has

        self._session.saves.leave_out()
        reads, writes = self._session.options.channel or (0, 1)
        step = self._feed.make_step(arguments)
        Served(step, self._training, self._session).serve(reads, writes)

    def _try_changes(self, arguments: tuple[Any, ...]) -> None:
        """Try changes of the dataset, if another input could make the training faster."""
        training = self._training
        if training.dataset is None or not self._session.begin_trials(training):
            return
        try:
            self._run_trials(self._feed.make_step(arguments))
        except Exception as error:  # noqa: BLE001 - the verdict stands without it
            training.note_failed_trials(error)

    def _run_trials(self, step: Callable[[Any], Any]) -> None:
        from whowaits.changes.trials import Pace, Trials  # imports TensorFlow, as the script has

        training, timing = self._training, self._timing
        steps = None if training.steps else timing.steps_per_epoch  # the script cuts its epochs
        pace = Pace(
            step_ms=timing.step_ms,
            between_ms=timing.between_ms if training.synchronous else 0.0,
            batches=steps and steps * training.steps_per_execution,
        )
        trials = Trials(
            step,
            training.dataset,
            pace,
            deadline=self._session.trials_end(training),
            # filling a buffer may take long, which is no fault of the script
            heartbeat=lambda: self._session.heartbeat(expects=None),
        )
        others = OtherPrograms()
        for known in trials.run(examples=training.examples or 1):
            training.changes[:] = known
        training.notes += say_disturbed(others)
