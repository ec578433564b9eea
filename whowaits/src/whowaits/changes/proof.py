"""Proves a patch: trains a script and a changed copy in alternation, and compares their batches."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from whowaits.timing.machine import wait_until_idle
from whowaits.timing.rounds import median_interval

from .advice import DRAWS, LOADER, ORDER, THREADS, WORTH, Tried
from .passes import compare

PAIRS, LEAST_PAIRS, PAIRS_S = 9, 5, 90.0
ANSWER_S = 120.0  # for one request; the first also waits for the script's first steps
END_S = 5.0  # for a copy to end
REST_S = 2.0  # for a copy's threads, before the other one's turn
SEEDS = {"PYTHONHASHSEED": "0"}
SHARED = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # two processes on one device


class NoPatch(Exception):
    """No patch can be proven; the message says why."""


class Asked(Protocol):
    """A training that answers requests; `serve.Served` lists them."""

    def ask(self, *what: Any) -> Any:
        """Send a request; return the answer."""


@dataclass(frozen=True)
class Proof:
    """The speedup of a changed copy; `data` says in which respect its data is the same."""

    gain: float
    low: float
    high: float
    pairs: int
    data: str


def prove(
    command: Sequence[str], asked: dict[str, Any], *, copy: bytes, change: Tried, step_s: float
) -> Proof:
    """Compare and time a script and a changed copy of it, which train in turn.

    `command` starts a script, given its options as JSON after the first two words.

    Raises:
      NoPatch: one fails or takes too long, or the copy gains too little or trains on other data.
    """
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed.py"
        changed.write_bytes(copy)
        with _Copy(command, asked) as script, _Copy(command, asked, str(changed)) as other:
            return prove_side_by_side(script, other, change=change, step_s=step_s)


def prove_side_by_side(script: Asked, other: Asked, *, change: Tried, step_s: float) -> Proof:
    """Compare and time a script and its changed copy, which already run; or raise NoPatch."""
    data = _compare(script, other, change)
    _fill(script, other, change)
    ratios = _time(script, other, step_s)
    low, high = median_interval(ratios)
    gain = statistics.median(ratios)
    if low < WORTH:
        raise NoPatch(
            f"in {len(ratios)} pairs the copy trained {gain:.2f} × as fast"
            f" ({int(100 * low) / 100:.2f} to {high:.2f}); the lower end must be at least {WORTH}"
        )
    return Proof(gain, low, high, len(ratios), data)


def _time(script: Asked, other: Asked, step_s: float) -> list[float]:
    """Return the copy's rate divided by the script's for each pair of blocks."""
    ratios: list[float] = []
    began = time.perf_counter()
    while len(ratios) < PAIRS and (
        len(ratios) < LEAST_PAIRS or time.perf_counter() - began < PAIRS_S
    ):
        pair = (script, other) if len(ratios) % 2 else (other, script)
        rates = {each: each.ask("rate", step_s) for each in pair}
        ratios.append(rates[other] / rates[script])
    return ratios


def _fill(script: Asked, other: Asked, change: Tried) -> None:
    for each in (script, other):
        if not each.ask("fill") and change.keeps:
            raise NoPatch("the first epoch, which fills the cache, takes too long to wait for")


def _compare(script: Asked, other: Asked, change: Tried) -> str:
    batches = script.ask("batches"), other.ask("batches")
    _, same = compare(*batches, "batches")
    if same and change.kind != LOADER:
        return same
    added = next((each.adds for each in change.edits if change.kind), "")
    if added and not other.ask("changed", change.kind, change.number, added):
        raise NoPatch("the edited call does not make the transformation that was tried")
    if not same and change.meaning == DRAWS:
        _, same = compare(script.ask("drawn"), other.ask("drawn"), "batches")
        same = same and f"{same}, except for random draws"
    if same:
        return same
    if change.meaning in (ORDER, THREADS) and change.kind not in ("", LOADER):
        one, two = (each.ask("elements", change.kind, change.number) for each in (script, other))
        _, same = compare(one, two, f"elements after {change.text.partition(':')[0]}")
        if same:
            return f"{same}; random draws after that fall on other examples"
    raise _refuse(*batches)


def _refuse(one: dict[str, Any], other: dict[str, Any]) -> NoPatch:
    if not (one["whole"] and other["whole"]):
        return NoPatch("an epoch is too long to compare; its first batches differ or are too few")
    return NoPatch(
        "the copy's batches differ from the script's, and not only in order; random draws that the"
        " script does not seed, or makes in several threads, may be the cause"
    )


class _Copy:
    """A process that trains on request; if `source` is given, that file replaces the script."""

    def __init__(self, command: Sequence[str], asked: dict[str, Any], source: str = "") -> None:
        self.name = "the patched copy" if source else "the unchanged script"
        reads, self._asks = os.pipe()
        self._answers, writes = os.pipe()
        asked = {**asked, "source": source, "channel": [reads, writes], "keep": True}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the exit
        self._process = subprocess.Popen(
            [*command[:2], json.dumps(asked), *command[2:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=(reads, writes),
            env={**SHARED, **os.environ, **SEEDS},
        )
        os.close(reads)
        os.close(writes)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # deletes unfinished caches in files
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._asks, self._answers):
            os.close(end)
        self._errors.close()

    def ask(self, *what: Any) -> Any:
        """Send a request; return the answer.

        Raises:
          NoPatch: the process failed, ended, or took too long.
        """
        try:
            os.write(self._asks, (json.dumps(what) + "\n").encode())
        except BrokenPipeError:
            raise NoPatch(f"{self.name} ended: {self._last_words()}") from None
        answer, deadline = b"", time.perf_counter() + ANSWER_S
        while not answer.endswith(b"\n"):
            left = max(0.0, deadline - time.perf_counter())
            if not select.select([self._answers], [], [], left)[0]:
                raise NoPatch(f"{self.name} did not answer within {ANSWER_S:.0f} s")
            part = os.read(self._answers, 1 << 16)
            if not part:
                self._process.wait()
                raise NoPatch(f"{self.name} ended: {self._last_words()}")
            answer += part
        found = json.loads(answer)
        if "failed" in found:
            raise NoPatch(f"{self.name} failed: {found['failed']}")
        return found["is"]

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a message"


def answer(served: Any, reads: int, writes: int) -> Generator[Any, Any, None]:
    """Answer the requests of `_Copy.ask` by `ask_` methods of `served`; yield their values."""
    with os.fdopen(reads) as asked, os.fdopen(writes, "w") as answers:
        for line in asked:
            name, *arguments = json.loads(line)
            try:
                found = getattr(served, f"ask_{name}")(*arguments)
                if isinstance(found, Generator):
                    found = yield from found
                said = found if isinstance(found, dict) and "failed" in found else {"is": found}
            except Exception as error:  # noqa: BLE001 - goes to the one who asked
                said = {"failed": f"{type(error).__name__}: {error}"}
            wait_until_idle(REST_S)
            print(json.dumps(said), file=answers, flush=True)
