"""Breaks a trace down: waits per step, work per iterator, and which iterators caused the waits.

An iterator's *work* is time in its own code and in functions that it calls, on any thread, without
waiting for others. Its *critical* time is the part of training's waits that no other iterator
explains: each wait is traced from training down the tree, through a parallel map to its running
calls, and through a prefetch to the iterator that fills it.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from throughline.diagnosis.intervals import (
    close_gaps,
    difference,
    intersection,
    merge,
    total_length,
    union,
)
from throughline.diagnosis.xspace import WAIT, Event, Trace
from throughline.reporting.plots import TRAIN_LANE, WAITING_LANE
from throughline.results.profiling import AUTOMATIC, Breakdown, IteratorTime, Timeline

_INSTANCE = re.compile(r"\[\d+\]")
_EXECUTES, _CALLS = "ExecutorState::Process", "InstantiatedCapturedFunction::Run"
# Suffix of the span in which a thread of a prefetch or a parallel map makes an element.
_PRODUCES = "Produce"
TREE_ROWS = 14
STEPS_SHOWN = 6  # in a timeline
# Points across the window: spans closer than one point look like one, and only make pages large.
RESOLUTION = 1500
_COPY = re.compile(r"memcpy.?h(ost)?.?(to)?.?d", re.IGNORECASE)


def break_down(trace: Trace) -> Breakdown:
    """Sum up a trace from its first step on. Fields that it does not show are empty or None."""
    steps = [event for event in trace.host if event.step]
    begin = min((event.start_ms for event in steps), default=0.0)
    host = [event for event in trace.host if event.end_ms > begin]
    window = union(event.span for event in steps)
    waits = find_waits(host, trace.device)
    lengths = sorted(map(total_length, waits))

    def on_gpu(*, copies: bool) -> float | None:
        if not trace.device or not steps:
            return None
        spans = (event.span for event in trace.device if bool(_COPY.search(event.name)) == copies)
        return total_length(intersection(union(spans), window)) / len(steps)

    return Breakdown(
        steps=len(steps),
        traced_step_ms_mean=(
            statistics.fmean(event.duration_ms for event in steps) if steps else None
        ),
        wait_ms_p50=statistics.median(lengths) if lengths else None,
        wait_ms_p95=lengths[int(0.95 * (len(lengths) - 1))] if lengths else None,
        wait_ms_mean=statistics.fmean(lengths) if lengths else None,
        iterators=tuple(_iterators(host, merge(waits), total_length(window) or float("nan"))),
        gpu_busy_ms=on_gpu(copies=False),
        gpu_copy_ms=on_gpu(copies=True),
    )


def find_waits(host: Sequence[Event], device: Sequence[Event]) -> list[np.ndarray]:
    """Return the spans of each wait for input; with a GPU, only those in which it is idle."""
    busy = union(event.span for event in device)
    return [difference(union([event.span]), busy) for event in host if event.name == WAIT]


def find_activity(events: Sequence[Event]) -> dict[str, np.ndarray]:
    """Return the spans in which each step of the plan ran, from the consumer to the disk."""
    tallies, spans = _tally(events), defaultdict[str, list[np.ndarray]](list)
    for path in sorted(tallies, key=lambda path: path.count("::")):
        tally = tallies[path]
        at_work = tally.runs if tally.works_elsewhere else tally.calls
        for child in [] if tally.works_elsewhere else _children(path, tallies):
            at_work = difference(at_work, tallies[child].calls)
        spans[tally.step].append(at_work)
    return {step: merge(sets) for step, sets in spans.items()}


def find_timeline(trace: Trace) -> Timeline | None:
    """Return the timeline of the last traced steps; None if the trace has no step."""
    marks = [event for event in trace.host if event.step][-STEPS_SHOWN:]
    if not marks:
        return None
    begin, end = marks[0].start_ms, marks[-1].end_ms
    active = {
        TRAIN_LANE: union(event.span for event in marks),
        WAITING_LANE: merge(find_waits(trace.host, trace.device)),
    }
    for step, at_work in find_activity(trace.host).items():
        if step and AUTOMATIC not in step and step != "prefetch":
            active[step] = at_work
    lanes: dict[str, list[tuple[float, float]]] = {}
    for lane, at_work in active.items():
        shown = intersection(at_work, np.array([[begin, end]])) - begin
        if lane != TRAIN_LANE:
            shown = close_gaps(shown, (end - begin) / RESOLUTION)
        if len(shown):
            lanes[lane] = [(first, last) for first, last in shown.tolist()]
    return Timeline(length_ms=end - begin, lanes=lanes)


def iterator_table(breakdown: Breakdown) -> list[str]:
    """Format the first `TREE_ROWS` iterators as an indented table, the consumer first."""
    columns = f"{'calls':>8}{'work ms':>10}{'ms/call':>9}{'threads':>9}{'critical':>10}"
    rows = [f"{'iterator (step)':<50}{columns}"]
    for item in breakdown.iterators[:TREE_ROWS]:
        name = f"{'  ' * item.depth}{item.title}"
        rows.append(
            f"{name[:49]:<50}{item.calls:>8,}{item.self_ms:>10,.2f}{item.call_ms_p50:>9,.3f}"
            f"{item.parallelism:>9.2f}{item.critical_pct:>8.0f} %"
            + (f"  AUTOTUNE: {item.tuned}" if item.tuned is not None else "")
        )
    return rows


@dataclass(kw_only=True)
class _Tally:
    step: str = ""
    tuned: int | None = None
    call_spans: list[tuple[float, float]] = field(default_factory=list)
    own_ms: float = 0.0  # time of its calls, without its inputs' calls on the same thread
    works_elsewhere: bool = False  # whether other threads work for it, while its own calls wait
    # Spans in which its functions ran, by the number of the run.
    function_spans: dict[int, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @cached_property
    def calls(self) -> np.ndarray:
        return union(self.call_spans)

    @cached_property
    def runs(self) -> np.ndarray:
        return union(itertools.chain.from_iterable(self.function_spans.values()))


def _iterators(
    events: Sequence[Event], waits: np.ndarray, window_ms: float
) -> Iterator[IteratorTime]:
    """Sum up every iterator; paths that differ in a number, as in `[3]`, are one."""
    tallies = _tally(events)
    critical: dict[str, float] = defaultdict(float)
    for root in (path for path in tallies if path.count("::") == 1):
        _attribute_wait(root, waits, tallies, critical)
    waited = sum(critical.values())
    for path in sorted(tallies, key=lambda path: path.split("::")):
        tally = tallies[path]
        runs = [sum(end - begin for begin, end in run) for run in tally.function_spans.values()]
        work = sum(runs) if tally.works_elsewhere else max(0.0, tally.own_ms)
        each = sorted(runs or [end - begin for begin, end in tally.call_spans])
        yield IteratorTime(
            path=path,
            step=tally.step,
            calls=len(tally.call_spans),
            self_ms=work,
            call_ms_p50=statistics.median(each),
            call_ms_p95=each[int(0.95 * (len(each) - 1))],
            parallelism=work / window_ms,
            critical_pct=100 * critical[path] / waited if waited else 0.0,
            tuned=tally.tuned,
        )


def _attribute_wait(
    path: str, waits: np.ndarray, tallies: Mapping[str, _Tally], critical: dict[str, float]
) -> None:
    """Attribute the waits for `path` to its functions, then to its inputs, the rest to itself."""
    tally = tallies[path]
    left = intersection(waits, tally.calls)
    if tally.works_elsewhere:
        worked = intersection(left, tally.runs)
        critical[path] += total_length(worked)
        left = difference(left, worked)
    for child in _children(path, tallies):
        _attribute_wait(child, left, tallies, critical)
        left = difference(left, tallies[child].calls)
    critical[path] += total_length(left)


def _tally(events: Sequence[Event]) -> dict[str, _Tally]:
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    spans = list(_nest(events))
    _count_functions(spans, _count_calls(spans, tallies), tallies)
    return {path: tally for path, tally in tallies.items() if tally.call_spans}


def _count_calls(spans: Sequence[_Span], tallies: dict[str, _Tally]) -> dict[int, str]:
    """Tally the iterators' calls; return the iterator each producing span (by id) works for."""
    produced: dict[int, str] = {}
    for span in spans:
        event = span.event
        if not event.iterator:
            continue
        path = _path(event)
        tally = tallies[path]
        tally.step = event.label
        tally.tuned = event.tuned if event.tuned is not None else tally.tuned
        tally.call_spans.append(event.span)
        tally.own_ms += event.duration_ms
        caller = span.find_caller()
        if caller is not None and caller.iterator:
            tallies[_path(caller)].own_ms -= event.duration_ms
        elif path.count("::") > 1:
            consumer = path.rpartition("::")[0]
            tallies[consumer].works_elsewhere = True
            if caller is not None:
                produced[id(caller)] = consumer
    return produced


def _count_functions(
    spans: Sequence[_Span], produced: Mapping[int, str], tallies: dict[str, _Tally]
) -> None:
    """Tally the runs of functions for their callers, or the iterators their threads work for."""
    owners: dict[int, str] = {}
    for span in spans:
        run = span.event.run if span.event.name.startswith(_CALLS) else 0
        if run and (caller := span.find_caller()):
            owners[run] = _path(caller) if caller.iterator else produced.get(id(caller), "")
    for span in spans:
        run = span.event.run if span.event.name == _EXECUTES else 0
        inner = any((outer.name, outer.run) == (_EXECUTES, run) for outer in span.enclosing())
        if not inner and (owner := owners.get(run)):
            tallies[owner].function_spans[run].append(span.event.span)


def _path(event: Event) -> str:
    return _INSTANCE.sub("", event.name)


def _children(path: str, tallies: Mapping[str, _Tally]) -> list[str]:
    return [other for other in tallies if other.rpartition("::")[0] == path]


@dataclass(frozen=True)
class _Span:
    """An event, and the span on the same thread that encloses it."""

    event: Event
    outer: _Span | None

    def enclosing(self) -> Iterator[Event]:
        span = self.outer
        while span is not None:
            yield span.event
            span = span.outer

    def find_caller(self) -> Event | None:
        """Return the enclosing call of an iterator, or production of an element, or None."""
        for event in self.enclosing():
            if event.iterator or event.name.endswith(_PRODUCES):
                return event
        return None


def _nest(events: Sequence[Event]) -> Iterator[_Span]:
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    for thread in by_thread.values():
        outer: _Span | None = None
        for event in sorted(thread, key=lambda event: (event.start_ms, -event.duration_ms)):
            while outer is not None and outer.event.end_ms <= event.start_ms:
                outer = outer.outer
            outer = _Span(event, outer)
            yield outer
