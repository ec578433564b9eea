"""The trace says where time goes: a planted cost is found at its step, and moving it moves the verdict."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from tasks.errors import MissingInput
from tasks.evidence.diagnosis import Ceilings, diagnose
from tasks.evidence.xspace import STEP, break_down, read_events

BURN_MS = 5.0


def burn(value):
    end = time.perf_counter() + BURN_MS / 1e3
    while time.perf_counter() < end:
        pass
    return value


def traced(folder, *, burning: str, prefetch: bool = False):
    """Trace ten steps of a pipeline in which one of two maps burns 5 ms a call."""

    def slow(value):
        return tf.numpy_function(burn, [value], tf.int64)

    def quick(value):
        return value + 1

    def step(name):
        return slow if name == burning else quick

    dataset = tf.data.Dataset.range(60).map(step("decode"), name="decode").map(step("flip"), name="flip")
    dataset = dataset.prefetch(2, name="prefetch") if prefetch else dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False

    @tf.function
    def train(batches):
        return next(batches) * 2

    batches = iter(dataset.with_options(options))
    for _ in range(5):
        train(batches)
    tf.profiler.experimental.start(str(folder))
    for number in range(10):
        with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
            train(batches)
            time.sleep(2 * BURN_MS / 1e3 if prefetch else 0)
    tf.profiler.experimental.stop()
    return break_down(read_events(folder))


CEILINGS = Ceilings(input_examples_per_s=200, model_examples_per_s=2000, train_examples_per_s=180, accelerator=True)


@pytest.mark.parametrize("burning", ["decode", "flip"])
def test_a_planted_cost_is_found_at_its_step(tmp_path, burning):
    breakdown = traced(tmp_path, burning=burning)
    assert breakdown.steps == 10
    burnt = next(item for item in breakdown.iterators if item.step == burning)
    assert burnt.self_ms / burnt.calls == pytest.approx(BURN_MS, rel=0.25)
    assert burnt.blocking
    diagnosis = diagnose(breakdown, CEILINGS, model_step_ms=0.5, train_step_ms=breakdown.step_ms_p50)
    assert diagnosis.verdict == "input-bound"
    assert diagnosis.cause.startswith(f"{burning}:")


def test_work_behind_a_prefetch_that_keeps_up_is_not_waited_for(tmp_path):
    breakdown = traced(tmp_path, burning="decode", prefetch=True)
    assert breakdown.wait_ms_p50 < BURN_MS / 5
    assert not next(item for item in breakdown.iterators if item.step == "decode").blocking
    assert diagnose(breakdown, CEILINGS, model_step_ms=10, train_step_ms=10.2).verdict == "compute-bound"


def test_missing_and_truncated_traces_are_told_plainly(tmp_path):
    with pytest.raises(MissingInput, match="holds no trace"):
        read_events(tmp_path)
    (tmp_path / "cut.xplane.pb").write_bytes(b"\x0a\xff\xff\xff\x7f")
    with pytest.raises(MissingInput, match="not a complete trace"):
        read_events(tmp_path)


def test_ceilings_add_up_where_the_cores_are_shared():
    alone = {"input_examples_per_s": 300.0, "model_examples_per_s": 600.0, "train_examples_per_s": 190.0}
    assert Ceilings(**alone, accelerator=True).attainable_examples_per_s == 300
    assert Ceilings(**alone, accelerator=False).attainable_examples_per_s == pytest.approx(200)
