"""Stage 6, profile: measure the model alone, trace a window of real steps, and say what holds training up.

Writes runs/NAME/profile/: the trace, breakdown.json, diagnosis.json and a timeline. Runs in its own process with freshly
initialised weights: the time of a step does not depend on their values.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tasks.assembly import input_pipeline, input_service, open_inputs
from tasks.evidence.diagnosis import Ceilings, Diagnosis, diagnose
from tasks.evidence.plots import plot_timeline
from tasks.evidence.tracking import Identity, Recorder
from tasks.evidence.xspace import STEP, Breakdown, break_down, read_events
from tasks.files import read_json, resumable_folder, write_json
from tasks.modelling import models_of
from tasks.models import Models, Resident, compile_model
from tasks.pipelines.dataset import InputPipeline
from tasks.progress import say
from tasks.settings import MeasureSettings, TrainSettings
from tasks.stage import Layout, pipeline_door

WARM_UP_STEPS = 3
TREE_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the earlier stages measured [examples/s]: the input alone, and training."""

    input_examples_per_s: float
    train_examples_per_s: float


def profile(
    models: Models, pipeline: InputPipeline, out: Path, *, settings: TrainSettings, measure: MeasureSettings, rates: Rates
) -> tuple[Breakdown, Diagnosis]:
    """Trace `measure.trace_steps` steps of the model on `pipeline` and judge them; results go to `out`."""
    alone = step_of(models, pipeline, settings, fetching=False)
    batch = next(pipeline.batches())
    model_ms = time_steps(alone, _endless(batch), seconds=measure.max_seconds / 2, at_least=measure.trace_steps)
    step, batches = step_of(models, pipeline, settings, fetching=True), _epochs(pipeline)
    for _ in range(pipeline.steps if pipeline.plan.caches else 0):
        next(batches)  # a cache serves from the second epoch on, and that is what most of a training sees
    for _ in range(min(measure.trace_after, pipeline.steps)):
        step(batches)
    train_ms = time_steps(step, batches, seconds=measure.max_seconds / 2, at_least=measure.trace_steps)
    with resumable_folder(out, key=str(time.time_ns())) as folder:
        trace(step, batches, folder / "trace", steps=measure.trace_steps)
        events = read_events(folder / "trace")
        breakdown = break_down(events)
        ceilings = Ceilings(
            input_examples_per_s=rates.input_examples_per_s,
            model_examples_per_s=pipeline.batch_size / model_ms * 1e3,
            train_examples_per_s=rates.train_examples_per_s,
            accelerator=bool(tf.config.list_physical_devices("GPU")),
        )
        diagnosis = diagnose(breakdown, ceilings, model_step_ms=model_ms, train_step_ms=train_ms)
        steps = {"model_step_ms": model_ms, "train_step_ms": train_ms, "model_examples_per_s": ceilings.model_examples_per_s}
        write_json(folder / "breakdown.json", {**steps, **asdict(breakdown)})
        write_json(folder / "diagnosis.json", diagnosis)
        plot_timeline(events, folder, title=str(pipeline.plan))
    return breakdown, diagnosis


def step_of(models: Models, pipeline: InputPipeline, settings: TrainSettings, *, fetching: bool) -> Callable[[Iterator], Any]:
    """Keras' own train step as a function of an iterator; `fetching`: on what the pipeline feeds, else on finished batches."""
    model = models.whole if pipeline.plan.device_ops else models.network
    if fetching and pipeline.plan.resident:
        model = Resident(model, pipeline.gatherer())
    compile_model(model, settings.model_copy(update={"steps_per_execution": 1}), target=models.target, steps=pipeline.steps)
    model.make_train_function()
    return model.train_function  # type: ignore[return-value]


def time_steps(step: Callable[[Iterator], Any], batches: Iterator, *, seconds: float, at_least: int) -> float:
    """Median time of a train step [ms] over `seconds`, but at least so many steps, after a short warm-up.

    Steps are timed one by one up to the moment their loss is known on the host.
    """
    for _ in range(WARM_UP_STEPS):
        step(batches)
    times = []
    begun = time.perf_counter()
    while len(times) < at_least or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        logs = step(batches)
        float(next(iter(logs.values())))
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


def trace(step: Callable[[Iterator], Any], batches: Iterator, folder: Path, *, steps: int) -> None:
    """Record a TensorBoard-readable trace of `steps` steps into `folder`."""
    tf.profiler.experimental.start(str(folder))
    try:
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
                step(batches)
    finally:
        tf.profiler.experimental.stop()


def _endless(batch: Any) -> Iterator:
    """One batch again and again, kept on the training device: what the model can do when input costs nothing."""
    device = "/GPU:0" if tf.config.list_physical_devices("GPU") else "/CPU:0"
    with tf.device(device):
        batch = tf.nest.map_structure(tf.identity, batch)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return iter(dataset.with_options(options))


def _epochs(pipeline: InputPipeline) -> Iterator:
    """What training is fed, without end. A plan that gathers is given enough epochs; others are repeated."""
    plenty = 1000
    if pipeline.plan.resident:
        return iter(tf.data.Dataset.range(plenty * pipeline.steps))
    return iter(pipeline.dataset(epochs=plenty) if pipeline.plan.gathers else pipeline.dataset().repeat())


def tree(breakdown: Breakdown) -> list[str]:
    """The iterators as an indented table, the consumer first."""
    rows = [f"{'iterator (step)':<52}{'calls':>8}{'total ms':>11}{'self ms':>10}"]
    for item in breakdown.iterators[:TREE_ROWS]:
        name = f"{'  ' * item.depth}{item.path.rpartition('::')[2]}" + (f" ({item.step})" if "Dataset:" not in item.step else "")
        chosen = f"  AUTOTUNE: {item.tuned}" if item.tuned is not None else ""
        rows.append(
            f"{name[:51]:<52}{item.calls:>8,}{item.total_ms:>11,.2f}{item.self_ms:>10,.2f}" + ("  ← blocks" if item.blocking else "") + chosen
        )
    return rows


def main() -> None:
    """Measure the model alone, trace real steps, and say what holds this configuration's training up."""
    with pipeline_door(main) as (params, name), input_service(params.pipelines[name]) as address:
        keras.utils.set_random_seed(params.train.seed)
        out, stored = Layout().run(name), open_inputs(params, Layout())
        built, trained = read_json(out / "input.json"), read_json(out / "train.json")
        pipeline = input_pipeline(params, name, stored, split="train", purpose="train", address=address)
        rates = Rates(
            train_examples_per_s=trained.get("throughput", {}).get("train_examples_per_s", float("nan")),
            input_examples_per_s=built["throughput"]["input_examples_per_s"],
        )
        models = models_of(params, stored)
        breakdown, diagnosis = profile(models, pipeline, out / "profile", settings=params.train, measure=params.measure, rates=rates)
        say(f"profile {name}: {diagnosis.verdict}, stall {diagnosis.stall_pct:.0f} %; {diagnosis.evidence}")
        say(f"  cause: {diagnosis.cause}\n  fix: {diagnosis.fix}")
        for row in tree(breakdown):
            say(f"  {row}")
        write_json(out / "profile.json", summary(breakdown, diagnosis, read_json(out / "profile" / "breakdown.json")))
        record(out, name, params.data.source, stored.shards.data_digest, breakdown, diagnosis)


def summary(breakdown: Breakdown, diagnosis: Diagnosis, timed: dict[str, Any]) -> dict[str, Any]:
    """What `dvc metrics` shows of a profile."""
    return {
        "verdict": diagnosis.verdict,
        "stall_pct": diagnosis.stall_pct,
        "utilization_pct": diagnosis.utilization_pct,
        "wait_ms_p50": breakdown.wait_ms_p50,
        "wait_ms_p95": breakdown.wait_ms_p95,
        "model_examples_per_s": timed["model_examples_per_s"],
        "attainable_examples_per_s": diagnosis.attainable_examples_per_s,
        "autotuned": {f"{item.path.rpartition('::')[2]} ({item.step})": item.tuned for item in breakdown.iterators if item.tuned is not None},
    }


def record(out: Path, name: str, data_set: str, data_digest: str, breakdown: Breakdown, diagnosis: Diagnosis) -> None:
    """Add the profile to the configuration's MLflow run."""
    run_id = read_json(out / "run.json")["mlflow_run_id"]
    if run_id is None:
        return
    profiled = read_json(out / "profile" / "breakdown.json")
    with Recorder(Identity(data_set=data_set, pipeline=name, data_digest=data_digest), run_id=run_id) as recorder:
        recorder.metrics(
            {
                "throughput/model_examples_per_s": profiled["model_examples_per_s"],
                "input/stall_pct": diagnosis.stall_pct,
                "input/wait_ms_p50": breakdown.wait_ms_p50,
                "input/wait_ms_p95": breakdown.wait_ms_p95,
            }
        )
        recorder.tags({"verdict": diagnosis.verdict, "autotuned": json.dumps(summary(breakdown, diagnosis, profiled)["autotuned"])})
        recorder.artifact(out / "profile", folder="profile")


if __name__ == "__main__":
    main()
