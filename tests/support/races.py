"""Races of given rates, and other programs at work, for the tests of a search."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from throughline.tuning.race import Race, Round


def rounds(rates, others=0.0, busiest="make"):
    """Rounds of equally long lists of rates; None: not in that round."""
    length = max(map(len, rates.values()))
    return [
        Round(
            heat="final",
            rates={
                name: values[number]
                for name, values in rates.items()
                if number < len(values) and values[number] is not None
            },
            others_pct=others,
            busiest=busiest,
        )
        for number in range(length)
    ]


def race(rates, *, costs=None, epochs=10, **options):
    return Race(rounds=rounds(rates, **options), costs=costs or {}, examples=1000, epochs=epochs)


@contextmanager
def other_programs() -> Iterator[None]:
    """Keep all cores at work, by processes that are nobody's children."""
    cores = os.sched_getaffinity(0)
    spin = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!;"
    others = subprocess.check_output(["sh", "-c", spin * len(cores)], text=True).split()
    try:
        yield
    finally:
        for other in others:
            os.kill(int(other), signal.SIGKILL)
