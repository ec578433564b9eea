"""Stage 6, profile: measure the model alone, trace a window of real steps, and say what holds
training up.

Writes runs/NAME/profile/: the trace, breakdown.json, diagnosis.json, steps.json and a timeline.
Runs in its own process with freshly initialised weights: the time of a step does not depend on
their values.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
import psutil
import tensorflow as tf

from tasks.assembly.inputs import input_pipeline, input_service, open_inputs
from tasks.assembly.model import build_models_for
from tasks.cli import StageContext, pipeline_stage_cli
from tasks.diagnosis.cost_model import Consumer, load_of
from tasks.diagnosis.diagnose import Ceilings, Diagnosis, diagnose
from tasks.diagnosis.facts import Facts
from tasks.diagnosis.op_costs import measure_costs
from tasks.diagnosis.threshold import parse_condition
from tasks.diagnosis.timeline import timeline_of
from tasks.diagnosis.trace_breakdown import Breakdown, break_down
from tasks.diagnosis.xspace import Trace, read_trace, trace
from tasks.errors import MissingInput
from tasks.files import read_json, resumable_folder, write_json
from tasks.layout import Layout
from tasks.measurement.accelerators import ACCELERATORS, Accelerator, find_accelerator
from tasks.measurement.steady_state import WARM_UP_STEPS, SteadyState
from tasks.measurement.train_steps import TrainingLoop, settle, time_training
from tasks.measurement.verdict import CrossCheck, Stall, cross_check_from
from tasks.params import Params
from tasks.pipelines.input_pipeline import InputPipeline
from tasks.progress import echo
from tasks.reporting.plots import plot_steps, plot_timelines
from tasks.settings import MeasureSettings, ModelSettings
from tasks.tracking.experiments import identity_of
from tasks.tracking.recorder import Recorder
from tasks.training.emulation import NAME as EMULATED

TREE_ROWS = 14
TRACE_DRAINED_PCT = 5.0  # a stall from which on the traced window starts on empty buffers
FAIL_IF = (
    "exit with an error if a metric of runs/NAME/profile.json meets a condition, e.g. 'stall_pct"
    " > 10'"
)
ACCELERATOR = (
    "plan for an accelerator that is not there: emulate its train step, print how many of them this"
    " host feeds"
)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was measured and concluded about one configuration."""

    state: SteadyState
    breakdown: Breakdown
    diagnosis: Diagnosis
    cross_check: CrossCheck | None


def profile(
    context: StageContext,
    pipeline: InputPipeline,
    out: Path,
    *,
    built: Mapping[str, Any],
    trained: Mapping[str, Any],
) -> Profile:
    """Time and trace real steps of the model on `pipeline` and judge them; results go to `out`."""
    params, measure = context.params, context.params.measure
    models = build_models_for(params, pipeline.data)
    loop = TrainingLoop(models, pipeline, params.train, warm_up_steps=measure.trace_after)
    state = time_training(loop, models, pipeline, train=params.train, measure=measure)
    with resumable_folder(out, key=str(time.time_ns())) as folder:
        events = _record_trace(loop, state, folder / "trace", measure)
        breakdown = break_down(events)
        cross_check = cross_check_from(
            state, trained, batch_size=pipeline.batch_size, steps=pipeline.steps
        )
        accelerator = bool(tf.config.list_physical_devices("GPU")) or models.emulated is not None
        measurements = Measurements(
            state=state, breakdown=breakdown, cross_check=cross_check, accelerator=accelerator
        )
        facts = collect_facts(context, pipeline, measurements, built=built, trained=trained)
        consumer = Consumer(
            step_ms=state.model_step_ms, core_ms=state.model_core_ms, accelerator=accelerator
        )
        ceilings = Ceilings(
            input_examples_per_s=facts.input_examples_per_s,
            model_examples_per_s=pipeline.batch_size / state.model_step_ms * 1e3,
            train_examples_per_s=trained.get("throughput", {}).get(
                "train_examples_per_s", float("nan")
            ),
            accelerator=accelerator,
        )
        diagnosis = diagnose(context.name, facts, ceilings, consumer)
        write_json(folder / "breakdown.json", asdict(breakdown))
        write_json(folder / "diagnosis.json", {**asdict(diagnosis), "costs": asdict(facts.costs)})
        write_json(folder / "steps.json", _rounds_as_lists(state))
        timeline = timeline_of(events)
        if timeline:
            write_json(folder / "timeline.json", asdict(timeline))
            plot_timelines({str(pipeline.plan): timeline.lanes}, folder / "timeline")
        plot_steps(state.train_steps_ms, state.model_step_ms, folder)
    return Profile(state=state, breakdown=breakdown, diagnosis=diagnosis, cross_check=cross_check)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What this stage has measured; `accelerator`: the model computes elsewhere, or is emulated."""

    state: SteadyState
    breakdown: Breakdown
    cross_check: CrossCheck | None
    accelerator: bool


def _rounds_as_lists(state: SteadyState) -> dict[str, Any]:
    """The rounds as lists, a value each: mean times of a step [ms], and training's speed relative
    to the reference.
    """
    blocks = ("reference", "model", "full", "drained")
    return {
        "side": state.side,
        **{
            f"{block}_ms": [getattr(each, block).mean_ms for each in state.rounds]
            for block in blocks
        },
        "train_ms": state.train_steps_ms,
        "relative_rates": list(state.relative_rates),
    }


def _record_trace(
    loop: TrainingLoop, state: SteadyState, folder: Path, measure: MeasureSettings
) -> Trace:
    """A window of real steps in the steady state; where the profiler left no readable trace, the
    rest is still said.
    """
    settle()
    if state.stall_pct >= TRACE_DRAINED_PCT:  # then the steady state is that of empty buffers
        for _ in range(state.prepared):
            loop.pull()
    for _ in range(WARM_UP_STEPS):
        loop.step()
    trace(loop.step, folder, steps=measure.trace_steps)
    try:
        return read_trace(folder)
    except MissingInput as error:
        echo(f"  no breakdown: {error}")
        return Trace(host=[], device=[])


def collect_facts(
    context: StageContext,
    pipeline: InputPipeline,
    measurements: Measurements,
    *,
    built: Mapping[str, Any],
    trained: Mapping[str, Any],
) -> Facts:
    """Everything that the rules look at."""
    config, stored, cores = (
        context.params.pipelines[context.name],
        pipeline.data,
        len(os.sched_getaffinity(0)),
    )
    state, breakdown = measurements.state, measurements.breakdown
    costs = measure_costs(pipeline, config)
    shards = stored.shards.for_split(pipeline.split)
    input_only, gap = built["throughput"], built["throughput"]["epoch_gap_s"]
    wait_ms = breakdown.wait_ms_mean
    return Facts(
        config=config,
        plan=pipeline.plan,
        breakdown=breakdown,
        costs=costs,
        load=load_of(pipeline.plan, costs, cores=cores),
        cores=cores,
        accelerator=measurements.accelerator,
        model_step_ms=state.model_step_ms,
        train_step_ms=state.train_step_ms,
        # Tracing itself takes time, so the share is that of the traced steps.
        wait_pct=(
            state.stall_pct
            if wait_ms is None or not breakdown.step_ms_p50
            else min(100.0, 100 * wait_ms / breakdown.step_ms_p50)
        ),
        stall=Stall.of(state),
        cross_check=measurements.cross_check,
        batch_mib=pipeline.batch_bytes / 2**20,
        stored_mib=stored.snapshot.bytes(pipeline.split) / 2**20,
        memory_mib=psutil.virtual_memory().available / 2**20,
        shard_count=len(shards),
        shard_mib=sum(shard.bytes for shard in shards) / max(1, len(shards)) / 2**20,
        malloc_tuned=context.malloc_tuned,
        epoch_gap_ms=None if gap is None else gap * 1e3,
        epoch_ms=state.train_step_ms * pipeline.steps,
        cold_examples_per_s=input_only["cold_examples_per_s"],
        input_examples_per_s=input_only["input_examples_per_s"],
        gpu_utilization_pct=trained.get("usage", {}).get("gpu_utilization_pct_mean"),
    )


def iterator_table(breakdown: Breakdown) -> list[str]:
    """The iterators as an indented table, the consumer first."""
    rows = [
        f"{'iterator (step)':<50}{'calls':>8}{'work ms':>10}"
        f"{'ms/call':>9}{'threads':>9}{'critical':>10}"
    ]
    for item in breakdown.iterators[:TREE_ROWS]:
        name = f"{'  ' * item.depth}{item.path.rpartition('::')[2]}" + (
            f" ({item.step})" if item.named else ""
        )
        chosen = f"  AUTOTUNE: {item.tuned}" if item.tuned is not None else ""
        columns = (
            f"{item.calls:>8,}{item.self_ms:>10,.2f}{item.call_ms_p50:>9,.3f}"
            f"{item.parallelism:>9.2f}{item.critical_pct:>8.0f} %"
        )
        rows.append(f"{name[:49]:<50}{columns}{chosen}")
    return rows


def summary(profiled: Profile, batch_size: int) -> dict[str, Any]:
    """What `dvc metrics` shows of a profile, and what `--fail-if` can ask for."""
    state, diagnosis, breakdown = profiled.state, profiled.diagnosis, profiled.breakdown
    relative, cross_check = sorted(state.relative_rates), profiled.cross_check
    tuned = {
        f"{item.path.rpartition('::')[2]} ({item.step})": item.tuned
        for item in breakdown.iterators
        if item.tuned is not None
    }
    return {
        "verdict": diagnosis.verdict,
        "stall_pct": diagnosis.stall_pct,
        "stall_pct_low": state.stall_interval_pct[0],
        "stall_pct_high": state.stall_interval_pct[1],
        "stall_side": state.side,
        "stall_seconds": state.seconds,
        "epochs_stall_pct": None if cross_check is None else cross_check.low_pct,
        "prepared_batches": state.prepared,
        "relative_rate": statistics.median(relative),
        "utilization_pct": diagnosis.utilization_pct,
        "wait_pct": diagnosis.wait_pct,
        "wait_ms_p50": breakdown.wait_ms_p50,
        "wait_ms_p95": breakdown.wait_ms_p95,
        "model_step_ms": state.model_step_ms,
        "train_step_ms": state.train_step_ms,
        "train_step_ms_low": state.train_step_interval_ms[0],
        "train_step_ms_high": state.train_step_interval_ms[1],
        "model_examples_per_s": batch_size / state.model_step_ms * 1e3,
        "reference_examples_per_s": batch_size / state.reference_step_ms * 1e3,
        "attainable_examples_per_s": diagnosis.attainable_examples_per_s,
        "predicted_gain": diagnosis.predicted_gain,
        "gpu_busy_ms": breakdown.gpu_busy_ms,
        "gpu_copy_ms": breakdown.gpu_copy_ms,
        "autotuned": tuned,
    }


def record(out: Path, params: Params, name: str, data_digest: str, profiled: Profile) -> None:
    """Add the profile to the configuration's MLflow run."""
    run_id = read_json(out / "run.json")["mlflow_run_id"]
    if run_id is None:
        return
    metrics = summary(profiled, params.batch_size)
    with Recorder(
        identity_of(Layout().manifest, params.data.path, pipeline=name, data_digest=data_digest),
        run_id=run_id,
    ) as recorder:
        recorder.metrics(
            {
                "throughput/model_examples_per_s": metrics["model_examples_per_s"],
                "throughput/attainable_examples_per_s": metrics["attainable_examples_per_s"],
                **{
                    f"input/{key}": metrics[key]
                    for key in (
                        "stall_pct",
                        "stall_pct_low",
                        "stall_pct_high",
                        "wait_ms_p50",
                        "wait_ms_p95",
                    )
                },
                "gpu/busy_ms_per_step": metrics["gpu_busy_ms"],
                "gpu/copy_ms_per_step": metrics["gpu_copy_ms"],
            }
        )
        first = profiled.diagnosis.findings[0].rule if profiled.diagnosis.findings else "none"
        recorder.tags(
            {
                "verdict": profiled.diagnosis.verdict,
                "finding": first,
                "autotuned": json.dumps(metrics["autotuned"]),
            }
        )
        recorder.artifact(out / "profile", folder="profile")


def print_summary(name: str, profiled: Profile) -> None:
    """Print verdict, cause, fix and the tree."""
    diagnosis, state = profiled.diagnosis, profiled.state
    spread = "{:.0f} to {:.0f} %".format(*state.stall_interval_pct)
    sides = {
        "both": "from full buffers and from empty ones alike",
        "drained": "from empty buffers, since full ones run down",
    }
    seen = sides.get(
        state.side,
        (
            "from full buffers, which stay full"
            if state.side == "full"
            else "full and empty buffers disagree"
        ),
    )
    rounds = f"{spread} over {len(state.rounds)} rounds, {seen}"
    echo(
        f"profile {name}: {diagnosis.verdict}, stall {diagnosis.stall_pct:.0f} % ({rounds});"
        f" {diagnosis.evidence}"
    )
    gain = (
        ""
        if diagnosis.predicted_gain is None
        else f" (predicted: {diagnosis.predicted_gain:.2f} × the throughput)"
    )
    echo(f"  cause: {diagnosis.cause}\n  fix: {diagnosis.fix}{gain}")
    for finding in diagnosis.findings:
        worth = (
            "gain not known"
            if finding.predicted_gain is None
            else f"{finding.predicted_gain:.2f} ×, confidence {finding.confidence}"
        )
        echo(f"  finding {finding.rule}: {finding.fix} ({worth})")
    for row in iterator_table(profiled.breakdown):
        echo(f"  {row}")


def profile_emulated(context: StageContext, accelerator: Accelerator, *, address: str) -> None:
    """Profile the configuration with an emulated accelerator as its model, and print how many of
    them this host feeds.

    Nothing of runs/NAME changes; the profile goes to .throughline/accelerators/NAME.
    """
    params = context.params
    emulated = ModelSettings(
        name=EMULATED, options={"step_ms": accelerator.step_ms(params.batch_size)}
    )
    context = replace(context, params=replace(params, model=emulated))
    stored, built = (
        open_inputs(params, Layout()),
        read_json(Layout().run(context.name) / "input.json"),
    )
    pipeline = input_pipeline(
        params, context.name, stored, split="train", purpose="train", address=address
    )
    out = Path(".throughline") / "accelerators" / context.name
    profiled = profile(context, pipeline, out, built=built, trained={})
    print_summary(
        f"{context.name} ({accelerator.model} of {context.options.accelerator}, emulated)", profiled
    )
    fed = built["throughput"]["input_examples_per_s"] / accelerator.examples_per_s
    echo(
        f"  this host feeds {fed:.1f} of them: the input alone delivers"
        f" {built['throughput']['input_examples_per_s']:,.0f} examples/s, one"
    )
    echo(
        f"  takes {accelerator.examples_per_s:,.0f} ({accelerator.step_s} s for"
        f" {accelerator.batch_size}; {accelerator.source})"
    )


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this stage's command line takes besides `--pipeline`."""
    parser.add_argument("--fail-if", metavar="CONDITION", help=FAIL_IF)
    parser.add_argument(
        "--accelerator", metavar="NAME", help=f"{ACCELERATOR}: {', '.join(ACCELERATORS)}"
    )


def main() -> None:
    """Measure the model alone, trace real steps, and say what holds this configuration's training
    up.
    """
    with (
        pipeline_stage_cli(main, declare_options) as context,
        input_service(context.params.pipelines[context.name]) as address,
    ):
        params, name, options = context.params, context.name, context.options
        condition = parse_condition(options.fail_if) if options.fail_if else None
        keras.utils.set_random_seed(params.train.seed)
        if options.accelerator:
            return profile_emulated(context, find_accelerator(options.accelerator), address=address)
        out, stored = Layout().run(name), open_inputs(params, Layout())
        built, trained = read_json(out / "input.json"), read_json(out / "train.json")
        pipeline = input_pipeline(
            params, name, stored, split="train", purpose="train", address=address
        )
        profiled = profile(context, pipeline, out / "profile", built=built, trained=trained)
        print_summary(name, profiled)
        write_json(out / "profile.json", summary(profiled, params.batch_size))
        record(out, params, name, stored.shards.data_digest, profiled)
        if condition:
            condition.check(summary(profiled, params.batch_size))
    return None


if __name__ == "__main__":
    main()
