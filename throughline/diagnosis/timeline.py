"""A timeline of execution from a trace: when each step of the plan really ran."""

from __future__ import annotations

from throughline.diagnosis.intervals import close_gaps, intersection, merge, union
from throughline.diagnosis.trace_breakdown import find_activity, find_waits
from throughline.diagnosis.xspace import Trace
from throughline.reporting.plots import TRAIN_LANE, WAITING_LANE
from throughline.results.profiling import AUTOMATIC, Timeline

STEPS_SHOWN = 6
# Points across the window: closer spans would look like one, and only make pages large.
RESOLUTION = 1500


def find_timeline(trace: Trace) -> Timeline | None:
    """Return the timeline of the last traced steps; None if the trace has no step."""
    marks = [event for event in trace.host if event.step][-STEPS_SHOWN:]
    if not marks:
        return None
    begin, end = marks[0].start_ms, marks[-1].end_ms
    window = union([(begin, end)])
    lanes = {
        TRAIN_LANE: union(event.span for event in marks),
        WAITING_LANE: merge(find_waits(trace.host, trace.device)),
        **{
            step: at_work
            for step, at_work in find_activity(trace.host).items()
            if step and AUTOMATIC not in step and step != "prefetch"
        },
    }
    finest = (end - begin) / RESOLUTION
    shown = {lane: intersection(at_work, window) - begin for lane, at_work in lanes.items()}
    return Timeline(
        length_ms=end - begin,
        lanes={
            lane: [
                (first, last)
                for first, last in (
                    spans if lane == TRAIN_LANE else close_gaps(spans, finest)
                ).tolist()
            ]
            for lane, spans in shown.items()
            if len(spans)
        },
    )
