"""Reading a profiler trace: how long each step waited for input, and where each tf.data iterator spent its time.

TensorFlow writes an XSpace protocol buffer. Iterator events are named by their full path
(`Iterator::Root::Prefetch::BatchV2::Map`) and carry the `name=` that the plan gave the step, so a row of this tree, a
step of the plan and a key of params.yaml are one thing. Works on CPU-only traces.
"""

from __future__ import annotations

import importlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import MissingInput

HOST = "/host:CPU"
WAIT = "IteratorGetNextOp::DoCompute"
STEP = "throughline/step"  # a name of our own: functions and ops may be called train
TUNED = ("parallelism", "buffer_limit")
_INSTANCE = re.compile(r"\[\d+\]")


@dataclass(frozen=True, kw_only=True)
class Event:
    """One timed span: its name, the step name it carries (or ""), thread, start and duration [ms from the trace's begin]."""

    name: str
    label: str
    thread: int
    start_ms: float
    duration_ms: float
    tuned: int | None = None  # what AUTOTUNE has set the iterator to: parallel calls, or the length of a buffer


@dataclass(frozen=True, kw_only=True)
class IteratorTime:
    """All calls of one iterator: `self_ms` excludes what it waited for its inputs on the same thread.

    `blocking` is true when its calls run inside the call the training waits for; work behind a prefetch or a parallel
    map runs ahead on other threads and does not block while it keeps up.
    """

    path: str
    step: str
    calls: int
    total_ms: float
    self_ms: float
    blocking: bool
    tuned: int | None = None  # parallel calls, or length of a prefetch buffer, where AUTOTUNE chose; the last value in the trace

    @property
    def depth(self) -> int:
        """Distance from the root of the pipeline."""
        return self.path.count("::") - 1


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """What a trace says: steps, wait per step [ms], iterators from the consumer to the disk."""

    steps: int
    step_ms_p50: float
    wait_ms_p50: float
    wait_ms_p95: float
    wait_ms_mean: float
    iterators: tuple[IteratorTime, ...]


def read_events(folder: Path) -> list[Event]:
    """Read all host events of the newest trace below a profiler log folder.

    Raises:
      MissingInput: there is no trace, or it is truncated.
    """
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise MissingInput(f"{folder} holds no trace (*.xplane.pb); run `dvc repro profile` again")
    # Imported here because it brings TensorFlow along, which the report does not need.
    space = importlib.import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2").XSpace()
    try:
        space.ParseFromString(files[-1].read_bytes())
    except Exception as error:  # protobuf raises its own DecodeError, whose module depends on the back end
        raise MissingInput(f"{files[-1]} is not a complete trace ({error}); run `dvc repro profile` again") from error
    return [event for plane in space.planes if plane.name == HOST for event in _events(plane)]


def break_down(events: list[Event]) -> Breakdown:
    """Sum up a trace. Waits and iterators are empty where the trace shows none."""
    steps = [event.duration_ms for event in events if event.name == STEP]
    waits = sorted(event.duration_ms for event in events if event.name == WAIT)
    return Breakdown(
        steps=len(steps),
        step_ms_p50=statistics.median(steps) if steps else float("nan"),
        wait_ms_p50=statistics.median(waits) if waits else float("nan"),
        wait_ms_p95=waits[int(0.95 * (len(waits) - 1))] if waits else float("nan"),
        wait_ms_mean=statistics.fmean(waits) if waits else float("nan"),
        iterators=tuple(_iterators(events)),
    )


def _events(plane: Any) -> Iterator[Event]:
    names = {key: value.name for key, value in plane.event_metadata.items()}
    kinds = {key: value.name for key, value in plane.stat_metadata.items()}
    begin = min((line.timestamp_ns for line in plane.lines), default=0)
    for line in plane.lines:
        offset = (line.timestamp_ns - begin) / 1e6
        for event in line.events:
            stats = {kinds[stat.metadata_id]: stat for stat in event.stats if kinds[stat.metadata_id] in ("name", "autotune", *TUNED)}
            words = {kind: stat.str_value or kinds.get(stat.ref_value, "") for kind, stat in stats.items()}
            chosen = [stat.int64_value or stat.uint64_value for kind, stat in stats.items() if kind in TUNED]
            yield Event(
                name=names[event.metadata_id],
                label=words.get("name", ""),
                tuned=chosen[0] if chosen and words.get("autotune") == "true" else None,
                thread=line.id,
                start_ms=offset + event.offset_ps / 1e9,
                duration_ms=event.duration_ps / 1e9,
            )


def _iterators(events: Iterable[Event]) -> Iterator[IteratorTime]:
    """Sum calls, total and self time per iterator path; `[3]` and the like (which shard, which thread) are one iterator."""
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.name.startswith("Iterator::") or event.name == WAIT:
            by_thread[event.thread].append(event)
    calls: dict[str, int] = defaultdict(int)
    total: dict[str, float] = defaultdict(float)
    own: dict[str, float] = defaultdict(float)
    steps: dict[str, str] = {}
    tuned: dict[str, int | None] = {}
    blocking: set[str] = set()
    for spans in by_thread.values():
        for event, parent, waited_for in _nested(spans):
            path = _INSTANCE.sub("", event.name)
            calls[path] += 1
            total[path] += event.duration_ms
            own[path] += event.duration_ms
            steps[path] = event.label
            tuned[path] = event.tuned if event.tuned is not None else tuned.get(path)
            if parent:
                own[_INSTANCE.sub("", parent.name)] -= event.duration_ms
            if waited_for:
                blocking.add(path)
    for path in sorted((path for path in calls if path != WAIT), key=lambda path: path.count("::")):
        yield IteratorTime(
            path=path,
            step=steps[path],
            calls=calls[path],
            total_ms=total[path],
            self_ms=max(0.0, own[path]),
            blocking=path in blocking,
            tuned=tuned[path],
        )


def _nested(spans: list[Event]) -> Iterator[tuple[Event, Event | None, bool]]:
    """Yield each span of one thread with the span around it and whether a consumer's wait encloses it."""
    stack: list[Event] = []
    for event in sorted(spans, key=lambda span: (span.start_ms, -span.duration_ms)):
        while stack and stack[-1].start_ms + stack[-1].duration_ms <= event.start_ms:
            stack.pop()
        yield event, (stack[-1] if stack else None), any(span.name == WAIT for span in stack)
        stack.append(event)
