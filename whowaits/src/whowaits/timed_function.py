"""A model's train function under the clock: it calls the model's own, as compiled, and between two
steps of the training it does what the timing asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from .batches import count_examples, drained_s
from .blocks import Step
from .feeds import FEEDS
from .session import FIRST_STEP_S, STEP_S, Session, Training
from .waits import Waits

TRIED_UNTIL_S = 105.0  # from the first step of the training
SHORT_S, READ_EACH = 0.01, 8  # a step; steps whose waits are read at once


class TimedFunction:
    """Calls a model's train function and times it; between two steps of the training it does what
    the timing asks for.
    """

    def __init__(
        self, function: Callable[..., Any], session: Session, training: Training, waits: Waits
    ) -> None:
        self._function, self._session, self._waits = function, session, waits
        self._training, self._timing = training, training.timing
        self._feed = FEEDS[training.backend](function, waits)
        self._timing.settle = self._feed.settle
        self._epoch, self._opens, self.steps_in_epoch = -1, False, 0
        self._took = False  # batches for another purpose in this epoch
        self._returned: float | None = None
        self._opened = perf_counter()  # when this epoch began
        self._memory: Any = None
        self._warm_up = 0

    @property
    def is_starved(self) -> bool:
        """Whether this epoch had no batch, although none was taken from it but for training."""
        return not self.steps_in_epoch and not self._took

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def open_epoch(self) -> None:
        """The next step is the first of an epoch."""
        if self._epoch >= 0 and not self._took:
            self._training.steps_per_epoch = self.steps_in_epoch
        if self._epoch >= 0 and not self._timing.active:
            self._timing.waited(self._waits.take())
        self._epoch, self._opens, self.steps_in_epoch = self._epoch + 1, True, 0
        self._took = False
        self._returned, self._opened = None, perf_counter()

    def __call__(self, *arguments: Any) -> Any:
        """Train on a batch."""
        entered = perf_counter()
        if self._timing.seen and self._session.serves(self._training):
            self._serve()
        self._timing.begin()
        arguments = self._feed.prepare(arguments)
        try:
            self._between_steps(arguments)
        except Exception as error:  # noqa: BLE001 - the training goes on as it is
            self._session.fail(error)
            self._timing.active, self._timing.task = False, "train"
            self._training.passive_because = "timing the model alone failed"
        if self._timing.task == "done" and not self._session.options.keep:
            self._try_changes()
        self._session.check(self._training)
        between = entered - self._returned if self._returned is not None else 0.0
        before = self._waits.take() if self._feed.waits_between_calls else 0.0
        if self._timing.active and not self._feed.waits_between_calls:
            self._waits.take()  # what was waited for by other work than this step's
        self._session.beat(expects=STEP_S if self._timing.seen else FIRST_STEP_S)
        began = perf_counter()
        result = self._feed.train(arguments)
        took = perf_counter() - began
        within = 0.0
        if not self._feed.waits_between_calls and (self._timing.active or self._reads_now(took)):
            within = self._waits.take()
            within = min(took, within) if self._timing.active else within
        # Before an epoch's first step its iterator is made, which is the input's work, too.
        opening = max(0.0, entered - self._opened) if self._opens else 0.0
        step = Step(
            wait_s=within + max(before, opening),
            work_s=took - within,
            between_s=max(0.0, between - before),
            epoch=max(0, self._epoch),
            opens_epoch=self._opens,
        )
        self._opens = False
        self.steps_in_epoch += 1
        self._training.examples = self._training.examples or self._feed.examples(arguments)
        self._timing.trained(step)
        self._returned = perf_counter()
        return result

    def _reads_now(self, took_s: float) -> bool:
        """Whether the waits until now are read after this step of a training that is watched as it
        is: reading takes time, so it is done after every eighth short step.
        """
        return took_s >= SHORT_S or self._opens or self._timing.seen % READ_EACH == 0

    def _between_steps(self, arguments: tuple[Any, ...]) -> None:
        """Do what the timing asks for, until it asks for a step of the training."""
        timing = self._timing
        while timing.task not in ("train", "done"):
            self._session.beat()
            self._took = True
            if timing.task == "drain":
                self._feed.drain(arguments, most_s=drained_s(timing.step_ms))
                timing.drained()
            elif timing.task == "collect":
                taken = self._feed.collect(arguments)
                if taken is None or not taken.batches:
                    timing.collected(0)
                    break
                self._training.examples = count_examples(taken.batches[0])
                self._memory, self._warm_up = self._feed.memory(taken), 2
                timing.collected(len(taken.batches))
            elif timing.task == "alone":
                began = perf_counter()
                self._feed.train_alone(arguments, self._memory)
                timing.ran_alone(perf_counter() - began, warm_up=self._warm_up > 0)
                self._warm_up -= 1

    def _serve(self) -> None:
        from .serve import Served  # imports TensorFlow, as the script has

        reads, writes = self._session.options.channel or (0, 1)
        Served(self._function, self._training, self._session).serve(reads, writes)

    def _try_changes(self) -> None:
        """Try what the dataset leaves open, if another input could make the training faster."""
        training, session = self._training, self._session
        if training.dataset is None or training.passive_because or not session.options.tries:
            return
        session.trying = True
        try:
            if training.may_gain:
                session.say(training.report(session.options.script).lines[0] + "; trying changes")
                self._run_trials()
        except Exception as error:  # noqa: BLE001 - the verdict stands without
            training.notes.append(f"no change could be tried: {type(error).__name__}: {error}")

    def _run_trials(self) -> None:
        from .trials import Trials  # imports TensorFlow, as the script has

        training, timing = self._training, self._timing
        trials = Trials(
            self._function,
            training.dataset,
            step_ms=timing.step_ms,
            deadline=perf_counter() + TRIED_UNTIL_S - timing.elapsed_s,
            beat=self._session.beat,
        )
        for known in trials.run(examples=training.examples or 1):
            training.changes[:] = known
