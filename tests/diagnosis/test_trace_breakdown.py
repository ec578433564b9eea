"""The trace says where time goes: a planted cost is found at its step, on whichever thread."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from throughline.diagnosis.intervals import difference, intersection, total_length, union
from throughline.diagnosis.trace_breakdown import break_down, find_timeline
from throughline.diagnosis.xspace import STEP, WAIT, Event, Trace, read_trace, record_trace
from throughline.shared.errors import MissingInput

pytestmark = pytest.mark.integration

# 12 steps on a prefetch of two maps, `decode` and `flip`, of two parallel calls each. A call of
# `decode` sleeps for 5 ms.
RECORDED = Path(__file__).parent / "recorded"


def test_a_planted_cost_is_found_at_its_step_and_its_place_in_time_whichever_thread_works_for_it():
    breakdown = break_down(read_trace(RECORDED))
    steps = {item.step: item for item in breakdown.iterators}
    decode, flip = steps["decode"], steps["flip"]
    assert (breakdown.steps, breakdown.worst()) == (12, decode)
    assert (decode.call_ms_p50, flip.call_ms_p50) == pytest.approx((5.267, 0.007), abs=0.001)
    assert (decode.self_ms, flip.self_ms) == pytest.approx((48.00, 0.08), abs=0.01)
    assert (round(decode.critical_pct), round(flip.critical_pct)) == (78, 21)
    assert decode.parallelism == pytest.approx(1.34, abs=0.01), "threads at work"
    timeline, lengths = find_timeline(read_trace(RECORDED)), {}
    for lane, intervals in timeline.lanes.items():
        lengths[lane] = round(sum(end - begin for begin, end in intervals), 1)
        assert all(0 <= begin <= end <= timeline.length_ms for begin, end in intervals)
    assert lengths == {"train step": 17.6, "waiting for input": 11.5, "decode": 14.4, "flip": 0.0}


@pytest.mark.slow
def test_the_trace_of_this_tensorflow_has_the_steps_of_the_plan_and_their_calls(tmp_path):
    """What the recorded one was made with may have named its events otherwise."""
    sleep = tf.function(lambda value: tf.numpy_function(lambda one: one, [value], tf.int64))
    dataset = tf.data.Dataset.range(80)
    for name in ("decode", "flip"):
        dataset = dataset.map(sleep, num_parallel_calls=2, name=name)
    batches = iter(dataset.prefetch(2, name="prefetch"))
    train = tf.function(lambda: next(batches) * 2)
    record_trace(train, tmp_path, steps=12)
    breakdown = break_down(read_trace(tmp_path))
    calls = {item.step: item.calls for item in breakdown.iterators if item.named}
    assert breakdown.steps == 12 and calls["prefetch"] == 12
    assert calls["decode"] > 0 and calls["flip"] > 0


def event(name, begin, end, **more):
    usual = {"label": "", "thread": 1, "run": 0}
    return Event(name=name, start_ms=begin, duration_ms=end - begin, **usual | more)


def test_every_instant_of_a_wait_is_blamed_on_one_iterator():
    """A parallel map reads for 2 of 10 ms, then its function runs for 6 ms on another thread."""
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


@pytest.mark.parametrize("name", [STEP, "Profiled batch"])
def test_work_behind_a_prefetch_that_keeps_up_is_not_waited_for(name):
    """Also in steps as Keras' own callback names them."""
    host = [
        *(event(name, 0, 30), event(WAIT, 0, 1), event("Iterator::Root", 0, 1)),
        event("Iterator::Root::Prefetch", 0, 1, label="prefetch"),
        event("Iterator::Root::Prefetch::Map", 1, 26, label="decode", thread=2),
    ]
    breakdown = break_down(Trace(host=host, device=[]))
    assert (breakdown.steps, breakdown.wait_ms_p50) == (1, 1)
    assert {item.step: item.self_ms for item in breakdown.iterators}["decode"] == 25


def test_what_a_trace_does_not_show_is_absent_and_a_missing_or_cut_one_is_reported(tmp_path):
    breakdown = break_down(Trace(host=[], device=[]))
    assert (breakdown.steps, breakdown.iterators) == (0, ())
    assert (breakdown.wait_ms_p50, breakdown.gpu_busy_ms) == (None, None)
    assert find_timeline(Trace(host=[], device=[])) is None
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


PAIRS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=12,
)


def instants(pairs) -> set[int]:
    """The unit steps that (begin, end) pairs cover."""
    return {step for begin, end in pairs for step in range(int(begin), int(end))}


@settings(max_examples=40)
@given(PAIRS, PAIRS)
def test_sets_of_instants_are_what_sets_of_unit_steps_are(one, other):
    first, second = union(one), union(other)
    assert instants(first) == instants(one)
    assert instants(intersection(first, second)) == instants(one) & instants(other)
    assert instants(difference(first, second)) == instants(one) - instants(other)
    assert total_length(first) == len(instants(one))
    assert (np.diff(first.ravel()) > 0).all(), "sorted and disjoint, touching spans joined"
