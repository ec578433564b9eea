"""Stage 6, profile: measure the model alone, trace a window of real steps, and say what holds training up.

Writes runs/NAME/profile/: the trace, breakdown.json, diagnosis.json, steps.json and a timeline. Runs in its own process with
freshly initialised weights: the time of a step does not depend on their values.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import psutil
import tensorflow as tf

from tasks.assembly import input_pipeline, input_service, open_inputs, work_of
from tasks.errors import MissingInput
from tasks.evidence.breakdown import Breakdown, break_down
from tasks.evidence.condition import parse_condition
from tasks.evidence.costs import measure_costs
from tasks.evidence.diagnosis import Ceilings, Diagnosis, diagnose
from tasks.evidence.facts import Facts
from tasks.evidence.operational import Consumer, load_of
from tasks.evidence.plots import plot_steps, plot_timelines
from tasks.evidence.stepping import Rounds, Step, alone, in_turns, trace, training
from tasks.evidence.timeline import timeline_of
from tasks.evidence.tracking import Identity, Recorder
from tasks.evidence.xspace import Trace, read_trace
from tasks.files import read_json, resumable_folder, write_json
from tasks.modelling import models_of
from tasks.params import Params
from tasks.pipelines.dataset import InputPipeline
from tasks.pipelines.plan import Work
from tasks.progress import say
from tasks.settings import MeasureSettings
from tasks.stage import Entered, Layout, pipeline_door

TREE_ROWS = 14


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was found out about one configuration."""

    rounds: Rounds
    breakdown: Breakdown
    diagnosis: Diagnosis


def profile(entered: Entered, pipeline: InputPipeline, work: Work, out: Path, *, built: Mapping[str, Any], trained: Mapping[str, Any]) -> Profile:
    """Time and trace real steps of the model on `pipeline` and judge them; results go to `out`."""
    params, measure = entered.params, entered.params.measure
    models = models_of(params, pipeline.stored)
    model, step = alone(models, pipeline, params.train), training(models, pipeline, params.train)
    for _ in range(min(measure.trace_after, pipeline.steps)):
        step()
    each, at_least = measure.max_seconds / (2 * measure.rounds), math.ceil(measure.trace_steps / measure.rounds)
    rounds = in_turns(model, step, rounds=measure.rounds, seconds=each, at_least=at_least)
    with resumable_folder(out, key=str(time.time_ns())) as folder:
        events = _traced(step, folder / "trace", measure)
        breakdown = break_down(events)
        facts = facts_of(entered, pipeline, work, rounds, breakdown, built=built, trained=trained)
        consumer = Consumer(step_ms=rounds.model_step_ms, core_ms=rounds.model_core_ms, accelerator=facts.accelerator)
        ceilings = Ceilings(
            input_examples_per_s=facts.input_examples_per_s,
            model_examples_per_s=pipeline.batch_size / rounds.model_step_ms * 1e3,
            train_examples_per_s=trained.get("throughput", {}).get("train_examples_per_s", float("nan")),
            accelerator=facts.accelerator,
        )
        diagnosis = diagnose(entered.name, facts, ceilings, consumer, work)
        write_json(folder / "breakdown.json", asdict(breakdown))
        write_json(folder / "diagnosis.json", {**asdict(diagnosis), "costs": asdict(facts.costs)})
        write_json(folder / "steps.json", {"model_ms": [turn.median_ms for turn in rounds.model], "train_ms": rounds.train_steps_ms})
        timeline = timeline_of(events)
        if timeline:
            write_json(folder / "timeline.json", asdict(timeline))
            plot_timelines({str(pipeline.plan): timeline.lanes}, folder / "timeline")
        plot_steps(rounds.train_steps_ms, rounds.model_step_ms, folder)
    return Profile(rounds=rounds, breakdown=breakdown, diagnosis=diagnosis)


def _traced(step: Step, folder: Path, measure: MeasureSettings) -> Trace:
    """A window of real steps; where the profiler left no readable trace, what can be said without one still is."""
    trace(step, folder, steps=measure.trace_steps)
    try:
        return read_trace(folder)
    except MissingInput as error:
        say(f"  no breakdown: {error}")
        return Trace(host=[], device=[])


def facts_of(  # noqa: PLR0913 - it brings together what was measured in three stages
    entered: Entered,
    pipeline: InputPipeline,
    work: Work,
    rounds: Rounds,
    breakdown: Breakdown,
    *,
    built: Mapping[str, Any],
    trained: Mapping[str, Any],
) -> Facts:
    """Everything that the rules look at."""
    config, stored, cores = entered.params.pipelines[entered.name], pipeline.stored, len(os.sched_getaffinity(0))
    costs = measure_costs(pipeline, config, work)
    accelerator = bool(tf.config.list_physical_devices("GPU"))
    shards = stored.shards.of(pipeline.split)
    alone, gap = built["throughput"], built["throughput"]["epoch_gap_s"]
    waited = breakdown.wait_ms_mean
    return Facts(
        config=config,
        plan=pipeline.plan,
        breakdown=breakdown,
        costs=costs,
        load=load_of(pipeline.plan, costs, batch_size=pipeline.batch_size, cores=cores),
        batch_size=pipeline.batch_size,
        cores=cores,
        accelerator=accelerator,
        model_step_ms=rounds.model_step_ms,
        train_step_ms=rounds.train_step_ms,
        # Tracing itself takes time, so the share is that of the traced steps.
        wait_pct=rounds.stall_pct if waited is None or not breakdown.step_ms_p50 else min(100.0, 100 * waited / breakdown.step_ms_p50),
        stall_pct=rounds.stall_pct,
        batch_mib=pipeline.batch_bytes / 2**20,
        stored_mib=stored.snapshot.bytes(pipeline.split) / 2**20,
        memory_mib=psutil.virtual_memory().available / 2**20,
        shard_count=len(shards),
        shard_mib=sum(shard.bytes for shard in shards) / max(1, len(shards)) / 2**20,
        keeps_freed_memory=entered.keeps_freed_memory,
        epoch_gap_ms=None if gap is None else gap * 1e3,
        epoch_ms=rounds.train_step_ms * pipeline.steps,
        cold_examples_per_s=alone["cold_examples_per_s"],
        input_examples_per_s=alone["input_examples_per_s"],
        gpu_utilization_pct=trained.get("usage", {}).get("gpu_utilization_pct_mean"),
    )


def tree(breakdown: Breakdown) -> list[str]:
    """The iterators as an indented table, the consumer first."""
    rows = [f"{'iterator (step)':<50}{'calls':>8}{'work ms':>10}{'ms/call':>9}{'threads':>9}{'critical':>10}"]
    for item in breakdown.iterators[:TREE_ROWS]:
        name = f"{'  ' * item.depth}{item.path.rpartition('::')[2]}" + (f" ({item.step})" if item.named else "")
        chosen = f"  AUTOTUNE: {item.tuned}" if item.tuned is not None else ""
        figures = f"{item.calls:>8,}{item.self_ms:>10,.2f}{item.call_ms_p50:>9,.3f}{item.parallelism:>9.2f}{item.critical_pct:>8.0f} %"
        rows.append(f"{name[:49]:<50}{figures}{chosen}")
    return rows


def summary(profiled: Profile, batch_size: int) -> dict[str, Any]:
    """What `dvc metrics` shows of a profile, and what `--fail-if` can ask for."""
    rounds, diagnosis, breakdown = profiled.rounds, profiled.diagnosis, profiled.breakdown
    tuned = {f"{item.path.rpartition('::')[2]} ({item.step})": item.tuned for item in breakdown.iterators if item.tuned is not None}
    return {
        "verdict": diagnosis.verdict,
        "stall_pct": diagnosis.stall_pct,
        "stall_pct_low": rounds.stall_interval_pct[0],
        "stall_pct_high": rounds.stall_interval_pct[1],
        "utilization_pct": diagnosis.utilization_pct,
        "wait_pct": diagnosis.wait_pct,
        "wait_ms_p50": breakdown.wait_ms_p50,
        "wait_ms_p95": breakdown.wait_ms_p95,
        "model_step_ms": rounds.model_step_ms,
        "train_step_ms": rounds.train_step_ms,
        "train_step_ms_low": rounds.train_step_interval_ms[0],
        "train_step_ms_high": rounds.train_step_interval_ms[1],
        "model_examples_per_s": batch_size / rounds.model_step_ms * 1e3,
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
    figures = summary(profiled, params.batch_size)
    with Recorder(Identity(data_set=params.data.source, pipeline=name, data_digest=data_digest), run_id=run_id) as recorder:
        recorder.metrics(
            {
                "throughput/model_examples_per_s": figures["model_examples_per_s"],
                "throughput/attainable_examples_per_s": figures["attainable_examples_per_s"],
                **{f"input/{key}": figures[key] for key in ("stall_pct", "stall_pct_low", "stall_pct_high", "wait_ms_p50", "wait_ms_p95")},
                "gpu/busy_ms_per_step": figures["gpu_busy_ms"],
                "gpu/copy_ms_per_step": figures["gpu_copy_ms"],
            }
        )
        first = profiled.diagnosis.findings[0].rule if profiled.diagnosis.findings else "none"
        recorder.tags({"verdict": profiled.diagnosis.verdict, "finding": first, "autotuned": json.dumps(figures["autotuned"])})
        recorder.artifact(out / "profile", folder="profile")


def tell(name: str, profiled: Profile) -> None:
    """Print verdict, cause, fix and the tree."""
    diagnosis, rounds = profiled.diagnosis, profiled.rounds
    spread = "{:.0f} to {:.0f} %".format(*rounds.stall_interval_pct)
    say(f"profile {name}: {diagnosis.verdict}, stall {diagnosis.stall_pct:.0f} % ({spread} over {len(rounds.train)} rounds); {diagnosis.evidence}")
    gain = "" if diagnosis.predicted_gain is None else f" (predicted: {diagnosis.predicted_gain:.2f} × the throughput)"
    say(f"  cause: {diagnosis.cause}\n  fix: {diagnosis.fix}{gain}")
    for finding in diagnosis.findings:
        worth = "gain not known" if finding.predicted_gain is None else f"{finding.predicted_gain:.2f} ×, confidence {finding.confidence}"
        say(f"  finding {finding.rule}: {finding.fix} ({worth})")
    for row in tree(profiled.breakdown):
        say(f"  {row}")


def main() -> None:
    """Measure the model alone, trace real steps, and say what holds this configuration's training up."""
    with (
        pipeline_door(main, lambda parser: parser.add_argument("--fail-if", metavar="CONDITION", help=FAIL_IF)) as entered,
        input_service(entered.params.pipelines[entered.name]) as address,
    ):
        params, name = entered.params, entered.name
        condition = parse_condition(entered.options.fail_if) if entered.options.fail_if else None
        keras.utils.set_random_seed(params.train.seed)
        out, stored = Layout().run(name), open_inputs(params, Layout())
        built, trained = read_json(out / "input.json"), read_json(out / "train.json")
        pipeline = input_pipeline(params, name, stored, split="train", purpose="train", address=address)
        profiled = profile(entered, pipeline, work_of(params, stored, "train"), out / "profile", built=built, trained=trained)
        tell(name, profiled)
        write_json(out / "profile.json", summary(profiled, params.batch_size))
        record(out, params, name, stored.shards.data_digest, profiled)
        if condition:
            condition.check(summary(profiled, params.batch_size))


FAIL_IF = "exit with an error should a figure of runs/NAME/profile.json be like this, e.g. 'stall_pct > 10'"

if __name__ == "__main__":
    main()
