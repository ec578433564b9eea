"""Recording and reading a profiler trace: TensorFlow's XSpace protocol buffer as a list of timed
spans. Works on CPU-only traces.

Iterator events are named by their full path (`Iterator::Root::Prefetch::BatchV2::Map`) and carry
the `name=` that the plan gave the step. A function that a map calls is known by a run number, which
ties its executor's spans, on whichever thread they are, to the call. What they mean is in
`trace_breakdown.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from throughline.shared.errors import MissingInput

HOST, DEVICE = "/host:CPU", "/device:GPU"
WAIT = "IteratorGetNextOp::DoCompute"
STEP = "throughline/step"  # a name of our own: functions and ops may be called train
# The second is what Keras' TensorBoard callback calls the steps that it traces.
STEPS = (STEP, "Profiled batch")
ITERATOR = "Iterator::"
_TUNED = ("parallelism", "buffer_limit")
_KEPT = {"name", "autotune", "id", *_TUNED}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One timed span: its name, the step name it carries (or ""), thread, start and duration [ms
    from the trace's begin].

    `run` is the number of the function run that it belongs to, 0 where it names none. `tuned` is
    what AUTOTUNE has set an iterator to: parallel calls, or the length of a buffer.
    """

    name: str
    label: str
    thread: int
    start_ms: float
    duration_ms: float
    run: int = 0
    tuned: int | None = None

    @property
    def end_ms(self) -> float:
        """When it was over."""
        return self.start_ms + self.duration_ms

    @property
    def span(self) -> tuple[float, float]:
        """Its begin and end."""
        return self.start_ms, self.end_ms

    @property
    def step(self) -> bool:
        """Whether it is a train step of the traced window."""
        return self.name in STEPS

    @property
    def iterator(self) -> bool:
        """Whether it is a call of a tf.data iterator."""
        return self.name.startswith(ITERATOR)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All spans of a trace, on the host and on the GPUs (none without one)."""

    host: list[Event]
    device: list[Event]


def record_trace(step: Callable[[], object], folder: Path, *, steps: int) -> None:
    """Record a TensorBoard-readable trace of `steps` steps into `folder`."""
    tf.profiler.experimental.start(str(folder))
    try:
        step()  # the profiler starts on a device at rest; where the host is ahead, this one is next
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
                step()
    finally:
        tf.profiler.experimental.stop()


def read_trace(folder: Path) -> Trace:
    """Read the newest trace below a profiler log folder.

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
    except (
        Exception
    ) as error:  # protobuf raises its own DecodeError, whose module depends on the back end
        raise MissingInput(
            f"{files[-1]} is not a complete trace ({error}); run `dvc repro profile` again"
        ) from error
    planes = {
        kind: [plane for plane in space.planes if plane.name.startswith(kind)]
        for kind in (HOST, DEVICE)
    }
    begin = min(
        (line.timestamp_ns for group in planes.values() for plane in group for line in plane.lines),
        default=0,
    )
    return Trace(
        host=[event for plane in planes[HOST] for event in _events(plane, begin)],
        # A GPU's plane also has lines that repeat the work of its streams, summed up by step,
        # module and op.
        device=[
            event for plane in planes[DEVICE] for event in _events(plane, begin, only="Stream")
        ],
    )


def _events(plane: Any, begin_ns: int, only: str = "") -> Iterator[Event]:
    names = {key: value.name for key, value in plane.event_metadata.items()}
    kinds = {key: value.name for key, value in plane.stat_metadata.items()}
    for line in plane.lines:
        if not line.name.startswith(only):
            continue
        offset = (line.timestamp_ns - begin_ns) / 1e6
        for event in line.events:
            stats = {
                kind: stat for stat in event.stats if (kind := kinds[stat.metadata_id]) in _KEPT
            }
            words = {
                kind: stat.str_value or kinds.get(stat.ref_value, "")
                for kind, stat in stats.items()
            }
            numbers = {kind: stat.int64_value or stat.uint64_value for kind, stat in stats.items()}
            chosen = [numbers[kind] for kind in _TUNED if kind in numbers]
            yield Event(
                name=names[event.metadata_id],
                label=words.get("name", ""),
                thread=line.id,
                start_ms=offset + event.offset_ps / 1e9,
                duration_ms=event.duration_ps / 1e9,
                run=numbers.get("id", 0),
                tuned=chosen[0] if chosen and words.get("autotune") == "true" else None,
            )
