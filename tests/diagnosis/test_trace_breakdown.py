"""The trace says where time goes: a planted cost is found at its step, on whichever thread, and
moving it moves the blame.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import tensorflow as tf

from throughline.diagnosis.timeline import find_timeline
from throughline.diagnosis.trace_breakdown import break_down
from throughline.diagnosis.xspace import STEP, WAIT, Event, Trace, read_trace
from throughline.shared.errors import MissingInput

pytestmark = pytest.mark.integration

BURN_MS, STEPS = 5.0, 40  # what lay prepared when the trace began takes little of so many


def cheap(value):
    return value + 1


@dataclass
class Planted:
    """A pipeline of two maps, one of which burns some time a call."""

    burning: str
    parallel: int | None = None
    prefetch: bool = False
    burn_ms: float = BURN_MS
    consumer_ms: float = 0.0

    def burn(self, value):
        """Take the time and leave the interpreter to others, as a kernel does."""
        time.sleep(self.burn_ms / 1e3)
        return value

    def dataset(self) -> tf.data.Dataset:
        def costly(value):
            return tf.numpy_function(self.burn, [value], tf.int64)

        dataset = tf.data.Dataset.range(80)
        for name in ("decode", "flip"):
            dataset = dataset.map(
                costly if name == self.burning else cheap,
                num_parallel_calls=self.parallel,
                name=name,
            )
        dataset = dataset.prefetch(2, name="prefetch") if self.prefetch else dataset
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        return dataset.with_options(options)


def traced(folder, planted: Planted, *, step: str = STEP, steps: int = STEPS) -> Trace:
    """Steps that take what the pipeline delivers."""

    @tf.function
    def train(batches):
        return next(batches) * 2

    batches = iter(planted.dataset())
    for _ in range(5):
        train(batches)
    tf.profiler.experimental.start(str(folder))
    for number in range(steps):
        with tf.profiler.experimental.Trace(step, step_num=number, _r=1):
            train(batches)
            time.sleep(planted.consumer_ms / 1e3)
    tf.profiler.experimental.stop()
    return read_trace(folder)


@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("burning", ["decode", "flip"])
def test_a_planted_cost_is_found_at_its_step(tmp_path, burning, prefetch, parallel):
    breakdown = break_down(traced(tmp_path, Planted(burning, parallel, prefetch)))
    assert breakdown.steps == STEPS
    by_step = {item.step: item for item in reversed(breakdown.iterators)}
    burnt, spared = by_step[burning], by_step["flip" if burning == "decode" else "decode"]
    # A busy machine makes a burn longer, never shorter.
    assert burnt.call_ms_p50 >= BURN_MS
    assert burnt.self_ms > 5 * spared.self_ms
    assert burnt.critical_pct > 50 > spared.critical_pct
    assert breakdown.worst() is burnt


def event(name, begin, end, *, label="", thread=1, run=0):
    return Event(
        name=name, label=label, thread=thread, start_ms=begin, duration_ms=end - begin, run=run
    )


def test_every_instant_of_a_wait_is_blamed_on_one_iterator():
    """A parallel map reads for 2 ms of a wait of 10 ms, then its function runs for 6 ms on a thread
    of its own.
    """

    host = [
        event(STEP, 0, 12),
        event(WAIT, 0, 10),
        event("Iterator::Root", 0, 10),
        event("Iterator::Root::ParallelMapV2", 0, 10, label="decode"),
        event("ParallelMapProduce", 1, 9, thread=2),
        event("Iterator::Root::ParallelMapV2::TFRecord", 1, 3, label="read", thread=2),
        event("InstantiatedCapturedFunction::Run", 3, 9, thread=2, run=7),
        event("ExecutorState::Process", 3, 9, thread=2, run=7),
    ]
    iterators = break_down(Trace(host=host, device=[])).iterators
    blamed = {item.step: item.critical_pct for item in iterators if item.named}
    assert blamed == pytest.approx({"decode": 80, "read": 20})


def test_a_wait_is_what_of_it_a_gpu_is_idle_for():
    """The host is one step ahead, and a step before the first traced one is under way."""
    host = [
        *(event(WAIT, 0, 9), event("Iterator::Root", 0, 9)),
        *(event(STEP, 10, 20), event(WAIT, 10, 18), event("Iterator::Root", 10, 18)),
        *(event(STEP, 20, 30), event(WAIT, 20, 28), event("Iterator::Root", 20, 28)),
    ]
    busy = [event("kernel", 0, 15), event("Memcpy HtoD", 15, 16), event("kernel", 20, 40)]
    breakdown = break_down(Trace(host=host, device=busy))
    assert (breakdown.steps, breakdown.wait_ms_mean) == (2, 1), "2 of the first, none of the other"
    assert (breakdown.gpu_busy_ms, breakdown.gpu_copy_ms) == (7.5, 0.5)
    assert break_down(Trace(host=host, device=[])).wait_ms_mean == 8
    assert breakdown.iterators[0].calls == 2


@pytest.mark.slow
def test_work_behind_a_prefetch_that_keeps_up_is_not_waited_for(tmp_path):
    # A burn is long against the two time slices that a step may wait for its turn on a busy
    # machine.
    planted = Planted("decode", prefetch=True, burn_ms=25.0, consumer_ms=6 * 25.0)
    assert break_down(traced(tmp_path, planted, steps=20)).wait_ms_p50 < planted.burn_ms / 2


def test_a_trace_of_keras_own_callback_is_read_as_well(tmp_path):
    breakdown = break_down(traced(tmp_path, Planted("decode"), step="Profiled batch"))
    assert breakdown.steps == STEPS
    assert breakdown.worst().step == "decode"


def test_the_timeline_shows_the_burn_where_it_was(tmp_path):
    # As long as above, so that what a step waits for its turn is little of it.
    timeline = find_timeline(traced(tmp_path, Planted("decode", prefetch=True, burn_ms=25.0)))
    lengths = {
        lane: sum(end - begin for begin, end in intervals)
        for lane, intervals in timeline.lanes.items()
    }
    assert lengths["decode"] > 0.5 * timeline.length_ms > 3 * lengths["flip"]
    assert lengths["waiting for input"] > 0.5 * timeline.length_ms
    assert all(
        0 <= begin <= end <= timeline.length_ms
        for union in timeline.lanes.values()
        for begin, end in union
    )


def test_what_a_trace_does_not_show_is_absent():
    breakdown = break_down(Trace(host=[], device=[]))
    assert (breakdown.steps, breakdown.iterators) == (0, ())
    assert (breakdown.wait_ms_p50, breakdown.gpu_busy_ms) == (None, None)
    assert find_timeline(Trace(host=[], device=[])) is None


def test_missing_and_truncated_traces_are_reported(tmp_path):
    with pytest.raises(MissingInput, match="holds no trace"):
        read_trace(tmp_path)
    (tmp_path / "cut.xplane.pb").write_bytes(b"\x0a\xff\xff\xff\x7f")
    with pytest.raises(MissingInput, match="not a complete trace"):
        read_trace(tmp_path)


def test_the_streams_of_a_gpu_are_told_apart_from_the_copies_to_it(tmp_path):
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    space = XSpace()

    def add(plane_name, line_name, events):
        plane = space.planes.add(name=plane_name)
        line = plane.lines.add(name=line_name)
        for number, (name, begin_ms, length_ms) in enumerate(events, start=1):
            plane.event_metadata[number].name = name
            line.events.add(
                metadata_id=number, offset_ps=int(begin_ms * 1e9), duration_ps=int(length_ms * 1e9)
            )

    add("/host:CPU", "python", [(STEP, 0, 10)])
    add("/device:GPU:0", "Stream #13(Compute)", [("gemm", 1, 4), ("relu", 4, 2)])
    add("/device:GPU:0", "Stream #14(MemcpyH2D)", [("MemcpyH2D", 0, 3)])
    add("/device:GPU:0", "XLA Ops", [("gemm", 1, 9)])
    (tmp_path / "made.xplane.pb").write_bytes(space.SerializeToString())
    breakdown = break_down(read_trace(tmp_path))
    assert breakdown.gpu_busy_ms == pytest.approx(5)
    assert breakdown.gpu_copy_ms == pytest.approx(3)
