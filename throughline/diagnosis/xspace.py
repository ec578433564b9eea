"""Records and reads profiler traces: TensorFlow's XSpace as a list of timed spans.

An iterator's event has its full path as name (`Iterator::Root::Prefetch::BatchV2::Map`) and carries
the `name=` that the plan gave the step. A run number ties a function that a map calls to its
executor's spans on all threads. `trace_breakdown.py` interprets them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace  # pyright: ignore[reportAttributeAccessIssue]

from throughline.shared.errors import MissingInput

HOST, DEVICE = "/host:CPU", "/device:GPU"
WAIT = "IteratorGetNextOp::DoCompute"
STEP = "throughline/step"  # specific, because functions and ops may be named train
# The second name is that of Keras' TensorBoard callback.
STEPS = (STEP, "Profiled batch")
ITERATOR = "Iterator::"
_TUNED = ("parallelism", "buffer_limit")
_KEPT = {"name", "autotune", "id", *_TUNED}


@dataclass(frozen=True, kw_only=True)
class Event:
    """A timed span; times are in ms from the start of the trace.

    Attributes:
      label: The name of the plan's step, or "".
      run: The number of the function run that the span belongs to; 0 if it belongs to none.
      tuned: AUTOTUNE's value for an iterator: parallel calls, or a buffer's length.
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
        return self.start_ms + self.duration_ms

    @property
    def span(self) -> tuple[float, float]:
        return self.start_ms, self.end_ms

    @property
    def step(self) -> bool:
        return self.name in STEPS

    @property
    def iterator(self) -> bool:
        return self.name.startswith(ITERATOR)


@dataclass(frozen=True, kw_only=True)
class Trace:
    host: list[Event]
    device: list[Event]


def record_trace(step: Callable[[], object], folder: Path, *, steps: int) -> None:
    """Record a trace of `steps` steps that TensorBoard can read."""
    tf.profiler.experimental.start(str(folder))
    try:
        step()  # unmarked: the profiler starts on an idle device, with the host not a step ahead
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
                step()
    finally:
        tf.profiler.experimental.stop()


def read_trace(folder: Path) -> Trace:
    """Read the newest trace below a folder; raises MissingInput without a complete one."""
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise MissingInput(f"{folder} holds no trace (*.xplane.pb); run `dvc repro profile` again")
    space = XSpace()
    try:
        space.ParseFromString(files[-1].read_bytes())
    except Exception as error:  # protobuf's DecodeError, whose module depends on the back end
        raise MissingInput(
            f"{files[-1]} is not a complete trace ({error}); run `dvc repro profile` again"
        ) from error
    planes = [plane for plane in space.planes if plane.name.startswith((HOST, DEVICE))]
    begin = min((line.timestamp_ns for plane in planes for line in plane.lines), default=0)
    trace = Trace(host=[], device=[])
    for plane in planes:
        events = trace.host if plane.name.startswith(HOST) else trace.device
        events += _events(plane, begin)
    return trace


def _events(plane: Any, begin_ns: int) -> Iterator[Event]:
    names = {key: value.name for key, value in plane.event_metadata.items()}
    kinds = {key: value.name for key, value in plane.stat_metadata.items()}
    for line in plane.lines:
        # A GPU's plane also has lines that sum its streams up by step, module and op.
        if plane.name.startswith(DEVICE) and not line.name.startswith("Stream"):
            continue
        offset = (line.timestamp_ns - begin_ns) / 1e6
        for event in line.events:
            words, numbers = dict[str, str](), dict[str, int]()
            for stat in event.stats:
                if (kind := kinds[stat.metadata_id]) in _KEPT:
                    words[kind] = stat.str_value or kinds.get(stat.ref_value, "")
                    numbers[kind] = stat.int64_value or stat.uint64_value
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
