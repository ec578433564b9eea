"""One run of a script: its trainings, its end, and the report, whatever happens.

A thread ends the script if a step or the report takes too long.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .callers import find_caller
from .changes.cache_files import delete_unfinished
from .fail_if import Condition
from .left_out import LeftOutSaves
from .lines import LOOK_EVERY_S, LineTimes
from .report import Report, undecided
from .timing import machine
from .timing.blocks import LEAST_STEPS, Timing
from .training import Training

FIRST_STEP_S, STEP_S = 300.0, 30.0  # limits for a step; the first one compiles
# Limits after the first steps: for the verdict (--seconds + SPARE_S if longer), and trials on top.
VERDICT_S, SPARE_S, TRIALS_S = 60.0, 20.0, 70.0
TRIED_S = 60.0  # after the verdict's limit; then no further trial begins
AFTER_END_S = 5.0  # for the script to clean up
STILL_S = 30.0  # time without a training before a message about it
UNSEEN_STEPS = 20  # with gradients, but without batches that are seen
UNSEEN_S = 5.0  # time of such steps before a message about them
EXIT_UNMEASURED = 2


class Ended(BaseException):
    """Ends the script once it has been measured; `except Exception` does not catch it."""


@dataclass(frozen=True)
class Options:
    """Options of a session: a script, or a module (`as_module`), of which one training is measured.

    `training` is its number, from 1. With `keep` the script is only watched, to its end. The file
    `source` runs in place of `script`. Through the pipes `channel`, another process asks for work.
    """

    script: str = ""
    as_module: bool = False
    seconds: float = 40.0
    keep: bool = False
    tries: bool = True  #: whether changes of the input are tried
    training: int = 1
    as_json: bool = False
    fail_if: tuple[Condition, ...] = ()
    source: str = ""
    channel: tuple[int, int] | None = None


class Session:
    def __init__(
        self,
        options: Options,
        write: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.options, self._write, self.clock = options, write, clock
        self.trainings: list[Training] = []
        self.ended: float | None = None
        self.trying = False  #: whether changes are being tried, after the verdict
        self.marks = 0  #: gradients taken, or steps of an optimizer, outside of `fit`
        self.line_times: LineTimes | None = None  #: times by line of a training with unseen batches
        self.short_fits = 0  #: calls of `fit` on arrays with too few steps for a training
        self.loops: dict[Hashable, Any] = {}  #: the script's own loops, managed by `loops.py`
        self.pid = os.getpid()
        self._heartbeat = self._started = clock()
        self._expects: float | None = None  # seconds within which the next step must end
        self._started_at = time.time()
        self._reporting = threading.Lock()  # only one thread reports; others wait for it
        self._exit_code: int | None = None  # set once the report is printed
        self._failures: set[str] = set()
        self.refusal = ""  #: why nothing is timed
        self.saves = LeftOutSaves(self.say)

    @property
    def here(self) -> bool:
        """Whether this is the main thread of the watched process, and nothing was refused."""
        main = threading.current_thread() is threading.main_thread()
        return main and os.getpid() == self.pid and not self.refusal

    @property
    def ends_the_first(self) -> bool:
        """Whether the script is ended after its first training, which then may get more epochs."""
        ends = self.options.channel is not None or not self.options.keep
        return ends and self.options.training == 1

    @property
    def in_child(self) -> bool:
        """Whether this is a process that the script has forked."""
        return os.getpid() != self.pid

    @property
    def verdict_s(self) -> float:
        """Time from the first steps until the verdict has to be known."""
        return max(VERDICT_S, self.options.seconds + SPARE_S)

    def close(self) -> None:
        """Stop watching."""
        self.pid = -1

    def open(self, name: str, **facts: Any) -> Training:
        """Begin a training; if it is the one asked for, time its model alone, too, if possible."""
        chosen = len(self.trainings) + 1 == self.options.training
        active = chosen and not self.options.keep
        timing = Timing(self.options.seconds, active=active, now=self.clock)
        timing.rest, timing.cores_s = machine.wait_until_idle, machine.own_cpu_s
        training = Training(name, timing, **facts)
        timing.synchronous = training.synchronous
        timing.on_first_seconds = lambda: self.say(
            f"{name}: after {timing.elapsed_s:.0f} s it has waited in `next` for"
            f" {timing.passive.waited_pct:.0f} % of its time"
            + ("" if self.options.keep else "; now the model alone is timed")
        )
        timing.on_took = self.saves.leave_out
        if training.passive_because:
            timing.active = False
        self.trainings.append(training)
        return training

    def heartbeat(self, *, expects: float | None = STEP_S) -> None:
        """Note progress; more is due in `expects` seconds, if any. After the end, raise Ended."""
        self._heartbeat, self._expects = self.clock(), expects
        if self.ended is not None:
            raise Ended

    def mark(self) -> None:
        """Note that gradients were taken; end a script with unseen batches when its time is up."""
        self.marks += 1
        times = self.line_times
        ends = self.ends_the_first and not self.trainings
        if ends and times is not None and times.seconds >= self.options.seconds:
            self.end()

    def end(self) -> None:
        """End the script: raise Ended, here and at each later `heartbeat`."""
        self.ended = self.clock()
        raise Ended

    def refuse(self, reason: str) -> None:
        """End the script before its first step; with `keep`, let it run untimed."""
        self.refusal = reason
        if not self.options.keep:
            self.end()

    @property
    def repeats(self) -> bool:
        """Whether a training gets other batches, or more epochs, than the script meant."""
        return any(
            each.timing.active and (each.timing.took or each.finished >= each.epochs)
            for each in self.trainings
        )

    def check(self, training: Training) -> None:
        """End the script if this training is the one asked for, and has been measured."""
        if training.timing.task == "done":
            if self.ends_with(training):
                self.end()
            training.timing.task = "train"

    def begin_trials(self, training: Training) -> bool:
        """Return whether to try changes of a measured training's input; announce it if so."""
        skips = training.passive_because or not self.options.tries
        if skips or not self.ends_with(training):
            return False
        self.trying = True
        self.heartbeat(expects=None)
        if not training.may_gain:
            return False
        if training.is_filling_a_cache:
            training.notes.append(
                "no change is tried: the epoch that fills the cache is not over, and later epochs"
                " read from it; a larger --seconds gives it more time"
            )
            return False
        self.say(training.report(self.options.script).lines[0] + "; trying changes")
        return True

    def trials_end(self, training: Training) -> float:
        """Return the `time.perf_counter` [s] at which trials must end; infinite with `channel`."""
        if self.options.channel:
            return math.inf
        left_s = self.verdict_s + TRIED_S - training.timing.elapsed_s
        return time.perf_counter() + left_s

    def ends_with(self, training: Training) -> bool:
        return training in self.measured and not self.options.keep

    def say(self, text: str) -> None:
        """Print a line about the progress, to standard error."""
        with contextlib.suppress(Exception):  # the script's own stream, whatever that is
            print(f"whowaits: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def fail(self, error: Exception) -> None:
        """Say once that something in whowaits failed; the script goes on."""
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" ({Path(where[0].filename).name}:{where[0].lineno})" if where else ""
        text = f"{type(error).__name__}: {error}{place}"
        if text not in self._failures:
            self._failures.add(text)
            self.say(f"something in whowaits failed, so the script is only watched: {text}")

    def make_report(self, reason: str = "") -> Report:
        """Report on the training asked for, by default the best; `reason` says why it ended."""
        script = self.options.script
        if not self.trainings:
            reason = self.refusal or reason or self._unseen or NOTHING_SEEN
            lines = self.line_times.list_lines() if self.line_times else ()
            return undecided(script, reason, line_times=tuple(lines))
        if not self.measured:
            fewer = f"--training {self.options.training}: fewer trainings that can be seen have"
            return undecided(script, f"{fewer} begun: {len(self.trainings)}")
        if self.options.training > 1:
            (best,) = self.measured
        else:
            best = max(self.trainings, key=lambda each: (len(each.timing.rounds), each.timing.seen))
        if reason:
            best.notes.append(reason)
        best.notes += self.saves.notes
        if len(self.trainings) > 1:
            best.notes.append(
                f"this is training {self.trainings.index(best) + 1} of {len(self.trainings)} that"
                " were seen; --training N measures another one"
            )
        return best.report(script)

    def print_report(self, reason: str = "") -> int:
        """Print the report once; return the exit code."""
        with self._reporting:
            if self._exit_code is None:
                self._exit_code = self._print_report(reason)
            return self._exit_code

    def _print_report(self, reason: str) -> int:
        report = self.make_report(reason)
        self._write(report.json + "\n" if self.options.as_json else "\n".join(report.lines) + "\n")
        codes = [condition.exit_code(report) for condition in self.options.fail_if]
        if codes:
            return max(codes, key=(0, 4, 3).index)
        return 0 if self.measured else EXIT_UNMEASURED

    def watch(self) -> None:
        """Start the thread that checks that steps come in time."""
        threading.Thread(target=self._watch, name="whowaits", daemon=True).start()

    def _watch(self) -> None:
        said = ""
        while True:
            time.sleep(LOOK_EVERY_S if self.line_times else 0.25)
            if self.pid < 0:  # closed
                return
            now = self.clock()
            if self.ended is not None:
                if now - self.ended > AFTER_END_S:
                    self.leave(self.print_report())
                continue
            if not self.trainings:
                said = self.watch_unseen(now - self._started, said)
            if self.options.keep:
                continue
            if self._expects is not None and now - self._heartbeat > self._expects:
                self.leave(self.print_report(f"no step ended in {self._expects:.0f} s{_place()}"))
            most = self.verdict_s + (TRIALS_S if self.trying else 0.0)
            if any(each.timing.elapsed_s > most for each in self.measured):
                self.leave(self.print_report(f"ended after {most:.0f} s, its time limit"))

    def watch_unseen(self, elapsed_s: float, said: str) -> str:
        """Time a script with unseen batches by line; print news; return the last news."""
        if self._unseen == UNSEEN:
            self.line_times = self.line_times or LineTimes(self.clock)
            self.line_times.look()
        text = said
        if self.line_times:
            text = UNSEEN if self.line_times.seconds > UNSEEN_S else said
        elif elapsed_s > STILL_S:
            why = f": {self._unseen}" if self._unseen else ""
            text = f"no training has begun in {STILL_S:.0f} s; waiting for one{why}"
        if text != said:
            self.say(text)
        return text

    @property
    def _unseen(self) -> str:
        """Why a running training cannot be measured, or "" if none is known to run."""
        if self.marks - self.short_fits >= UNSEEN_STEPS:
            return UNSEEN
        return SHORT_FITS if self.short_fits else ""

    def serves(self, training: Training) -> bool:
        """Return whether another process controls this training."""
        return self.options.channel is not None and training in self.measured

    def leave(self, code: int) -> NoReturn:
        """End this process and its `multiprocessing` children at once; delete unfinished caches."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        with contextlib.suppress(Exception):  # also if it was not imported
            for child in sys.modules["multiprocessing"].active_children():
                child.terminate()
        with contextlib.suppress(Exception):
            if not self.in_child:
                delete_unfinished(since=self._started_at)
        os._exit(code)

    @property
    def was_measured(self) -> bool:
        """Whether the measured training's model was timed alone."""
        return any(each.timing.rounds for each in self.measured)

    @property
    def measured(self) -> list[Training]:
        """The training that is to be measured, in a list that is empty before it begins."""
        return self.trainings[self.options.training - 1 : self.options.training]


NOTHING_SEEN = (
    "it ended without a training that can be seen. Seen are, in the main thread, `fit` of Keras, a"
    " loop over a tf.data dataset with a GradientTape, and one over a PyTorch DataLoader with an"
    " optimizer"
)

UNSEEN = (
    "a model is trained, but its batches come from something that is not seen: an array, a queue,"
    " another thread, or a dataset within a `tf.function` of the script's own. A CPU waits as long"
    " as the lines that make a batch take; a GPU, which works on meanwhile, at most as long"
)

SHORT_FITS = (
    f"each `fit` was given arrays for fewer than {LEAST_STEPS} steps in all, too few to measure;"
    " what the script does between the calls is not seen"
)


def _place() -> str:
    """Say at which line of the script the main thread is."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    where = find_caller(frame)
    return f"; the script stands at {where}" if where else ""
