"""Times a loop line by line, by looking at the main thread's stack now and then."""

import linecache
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from .callers import list_own_lines, name_from_here

LOOK_EVERY_S = 0.02
OF_ONE_LINE = 0.95  # a line with this share of the time is replaced by the lines that it calls
WORTH_SHOWING_PCT = 2.0

Line = tuple[str, int]
Stack = tuple[Line, ...]  # the outermost line first


@dataclass(frozen=True)
class LineTime:
    """FILE:LINE of the script, its code, and the share of time that it takes [%]."""

    where: str
    code: str
    pct: float

    def __str__(self) -> str:
        return f"{self.pct:3.0f} %  {self.where}  {self.code}"


class LineTimes:
    """The time that the main thread has spent at each stack of the script's own lines [s]."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._looked = clock, clock()
        self._stacks: dict[Stack, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        return sum(self._stacks.values())

    def look(self) -> None:
        """Assign the time since the last look to the lines where the main thread is now."""
        before, self._looked = self._looked, self._clock()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        self._stacks[list_own_lines(frame)] += self._looked - before

    def list_lines(self) -> list[LineTime]:
        """Return the loop's lines: those of the outermost function with time in several lines."""
        stacks, total = self._stacks, self.seconds
        while total:
            lines: dict[Line, float] = defaultdict(float)
            for stack, seconds in stacks.items():
                if stack:
                    lines[stack[0]] += seconds
            longest = max(lines, key=lambda line: lines[line], default=None)
            inner = {
                stack[1:]: seconds
                for stack, seconds in stacks.items()
                if len(stack) > 1 and stack[0] == longest
            }
            if sum(inner.values()) < OF_ONE_LINE * total:
                return [_describe(line, 100 * seconds / total) for line, seconds in lines.items()]
            stacks = inner
        return []


def _describe(line: Line, pct: float) -> LineTime:
    name, number = line
    code = linecache.getline(name, number).strip()
    return LineTime(f"{name_from_here(name)}:{number}", code, round(pct, 1))
