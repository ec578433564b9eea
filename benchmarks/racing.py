"""Races on prepared data, long runs to check them, and a program that disturbs them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from throughline.config.params import Params
from throughline.race.configurations import ConfigurationRace, Starter
from throughline.race.contestant import Contestant
from throughline.race.jobs import Entry
from throughline.race.judging import Subject, judge_race
from throughline.results.base import Usage
from throughline.results.race import RaceResult
from throughline.results.train import HeldOut, TrainResult

HELD_OUT = HeldOut(split="test", examples=0, constant_metric=0.0, constant_stderr=0.0)
UNTRAINED = TrainResult(
    metric="", held_out=HELD_OUT, last_epoch={}, throughput=None, step=None,
    cpu_seconds_per_1k_examples=None, usage=Usage(**dict.fromkeys(Usage.__annotations__, 0.0)),
)  # fmt: skip
LONG_TURN_S = 5.0
HALF_A_CORE = """
import os, time
parent = os.getppid()
while os.getppid() == parent:
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    time.sleep(0.05)
"""


def race(params: Params, root: Path) -> RaceResult:
    starters = {name: Starter(config=each, plan=name) for name, each in params.pipelines.items()}
    racing = ConfigurationRace(params, starters, root=root, folder=root)
    measured = racing.run()
    if lost := [name for name in starters if not measured.is_raced(name)]:
        raise RuntimeError(f"{', '.join(lost)} did not race: {measured.lost}")
    known: Any = {"findings": (), "trained": UNTRAINED, "settings": params.train}
    subjects = [Subject(name=name, examples=1, steps=1, **known) for name in starters]
    return judge_race(racing, subjects, machine={})


def long_rate(job: str, params: Params, root: Path, *, order: str = "train") -> float:
    """Return examples/s of the only configuration, in a long turn."""
    ((name, config),) = params.pipelines.items()
    entry = Entry(params=params, root=root, name=name, config=config)
    with Contestant(job, [(entry,)], log=root / "long.log") as one:
        one.wait_until_open()
        turn = one.take_turn(order, turn_s=LONG_TURN_S)
    return turn.examples / turn.seconds


@contextmanager
def half_a_core(taken: bool = True) -> Iterator[None]:
    """Keep one core busy half of the time during the block, if `taken`."""
    with subprocess.Popen([sys.executable, "-c", HALF_A_CORE if taken else ""]) as process:
        try:
            yield
        finally:
            process.kill()
