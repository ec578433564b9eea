"""A watched training of a script: what it is, its timing, and its report."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .report import Report, make_report
from .timing import machine
from .timing.batches import count_examples
from .timing.blocks import Timing
from .timing.verdict import COMPUTE_BOUND, INPUT_BOUND, SLIGHTLY_BOUND, Conditions, judge


@dataclass
class Training:
    """A training that was seen: what it is, its timing, and the conditions of the timing."""

    name: str
    timing: Timing
    backend: str = ""
    on_accelerator: bool = False
    synchronous: bool = True
    passive_because: str = ""
    fills_cache: bool = False
    untried: str = ""  #: why no change is tried, and what would help
    examples: int | None = None  #: in a full batch
    epochs: float = math.inf  #: number of epochs that the script asks for
    finished: int = 0  #: number of completed epochs
    steps: int | None = None  #: steps per epoch, if the script sets them
    steps_per_execution: int = 1  #: steps of the script that are one step here
    notes: list[str] = field(default_factory=list)
    dataset: Any = None  #: the input of `fit`, if changes of it can be tried
    changes: list[Any] = field(default_factory=list)  # advice.Tried
    conditions: Conditions | None = None
    others: machine.OtherPrograms = field(default_factory=machine.OtherPrograms)

    def freeze_conditions(self) -> Conditions:
        """Return the conditions of the timing, fixed at the first call."""
        if self.conditions is None:
            others_pct, others = self.others.read()
            self.conditions = Conditions(
                on_accelerator=self.on_accelerator,
                synchronous=self.synchronous,
                others_pct=others_pct,
                others=others,
                passive_because=self.passive_because,
                fills_cache=self.fills_cache,
            )
        return self.conditions

    def count_examples(self, batches: Iterable[Any]) -> None:
        """Update the size of a full batch, the largest one that was seen."""
        counts = [self.examples, *map(count_examples, batches)]
        self.examples = max((count for count in counts if count), default=None)

    def close(self) -> None:
        """Fix the conditions, and release the data."""
        self.freeze_conditions()
        self.dataset, self.timing.settle = None, lambda: None

    def only_watch(self, because: str) -> None:
        """From now on, time the training only as it is; `because` says why."""
        self.timing.active, self.timing.task = False, "train"
        self.passive_because = because

    def note_failed_trials(self, error: Exception) -> None:
        self.notes.append(f"trying changes failed: {type(error).__name__}: {error}")

    @property
    def may_gain(self) -> bool:
        """Whether another input could make the training faster, as far as is known."""
        verdict = judge(self.timing, self.freeze_conditions())
        return verdict.stall is not None and verdict.name != COMPUTE_BOUND

    @property
    def is_filling_a_cache(self) -> bool:
        """Whether only the epoch that fills a cache has been measured."""
        return self.fills_cache and self.timing.in_first_epoch

    def report(self, script: str) -> Report:
        conditions = self.freeze_conditions()
        verdict = judge(self.timing, conditions)
        waits = verdict.name in (INPUT_BOUND, SLIGHTLY_BOUND) and not self.changes
        untried = [self.untried] if self.untried and waits else []
        return make_report(
            self.timing,
            conditions,
            verdict,
            script=script,
            training=self.name,
            backend=self.backend,
            examples=self.examples,
            steps_per_epoch=self.timing.steps_per_epoch,
            notes=(*self.notes, *untried),
            changes=tuple(self.changes),
        )
