"""The profile stage: measure the model alone, trace a window of real steps, and say what holds
training up.

Writes runs/NAME/profile/: the trace, breakdown.json, diagnosis.json, steps.json and a timeline.
Runs in its own process with freshly initialized weights: the time of a step does not depend on
their values.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from throughline.assembly.inputs import (
    estimate_snapshot_bytes,
    open_input_pipeline,
    open_input_service,
    open_inputs,
)
from throughline.assembly.model import build_models_for
from throughline.assembly.process_configuration import configure_process
from throughline.assembly.processes import measure_one_process, meet_processes
from throughline.config.cli import StageContext, add_run_option, pipeline_stage_cli
from throughline.diagnosis.cost_model import ModelStepCost, estimate_load
from throughline.diagnosis.diagnose import Ceilings, diagnose
from throughline.diagnosis.facts import Facts
from throughline.diagnosis.op_costs import measure_costs
from throughline.diagnosis.summary import Profile, print_summary, summarize, summarize_rounds
from throughline.diagnosis.threshold import parse_threshold
from throughline.diagnosis.timeline import find_timeline
from throughline.diagnosis.trace_breakdown import break_down
from throughline.diagnosis.xspace import Trace, read_trace, record_trace
from throughline.measurement.accelerators import ACCELERATORS, Accelerator, find_accelerator
from throughline.measurement.other_processes import OtherProcesses
from throughline.measurement.padding import padding_in_buckets
from throughline.measurement.steady_state import WARM_UP_STEPS, SteadyState
from throughline.measurement.train_steps import TrainingLoop, time_training, wait_until_idle
from throughline.measurement.verdict import CrossCheck, Stall, cross_check_from
from throughline.models.emulation import EMULATED_MODEL
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.plan import make_plan
from throughline.plan.training_workers import TrainingWorker
from throughline.reporting.evaluation_plots import plot_evaluation
from throughline.reporting.plots import plot_steps, plot_timelines
from throughline.results.build import BuildResult, InputThroughput
from throughline.results.profiling import (
    METRICS_FILE,
    Breakdown,
    Diagnosis,
    ProfileResult,
    compared_metrics,
    join_profiles,
    profile_metrics,
)
from throughline.results.train import RunRecord, TrainResult
from throughline.settings import MeasureSettings, ModelSettings
from throughline.shared.errors import MissingInput, UnknownModel
from throughline.shared.files import PARTIAL, atomic_folder, replace_folder, write_json
from throughline.shared.layout import Layout
from throughline.shared.limits import available_memory, usable_cores
from throughline.shared.progress import echo, echo_problem
from throughline.tracking.experiments import RunKey, make_run_key
from throughline.tracking.recorder import Recorder
from throughline.training.gpus import count_training_gpus
from throughline.training.processes import run_one_of_several

TRACE_DRAINED_PCT = 5.0  # a stall from which on the traced window starts on empty buffers
FAIL_IF = (
    "exit with an error if a metric of runs/NAME/profile.json meets a condition, e.g. 'stall_pct"
    " > 10'"
)
ACCELERATOR = (
    "plan for an accelerator that is not there: emulate its train step, print how many of them this"
    " host feeds"
)


def profile(
    context: StageContext,
    pipeline: InputPipeline,
    out: Path,
    *,
    built: BuildResult,
    trained: TrainResult | None = None,
    own: Collection[int] = (),
) -> Profile:
    """Time and trace real steps of the model on `pipeline` and judge them; results go to `out`.

    `built` and `trained` are the results of build and train; None: it was not trained. `own` are
    the ids of processes of this host that are profiled at the same time.

    Raises:
      MissingInput: build has measured another number of processes.
    """
    params, measure = context.params, context.params.measure
    models = build_models_for(params, pipeline.data)
    loop = TrainingLoop(models, pipeline, params.train, warm_up_steps=measure.warm_up_steps)
    worker = pipeline.worker
    input_throughput = built.slice_of(worker.index, count=worker.count)
    with OtherProcesses(own) as others:
        state = time_training(loop, models, pipeline, train=params.train, measure=measure)
    with atomic_folder(out) as folder:
        events = _trace_steady_state(loop, state, folder / "trace", measure)
        breakdown = break_down(events)
        cross_check = cross_check_from(
            state,
            trained.throughput if trained and trained.processes == worker.count == 1 else None,
            batch_size=pipeline.examples_per_step,
            steps=pipeline.steps_per_epoch,
        )
        on_gpu = count_training_gpus() > 0
        on_accelerator = on_gpu or models.emulation is not None
        measurements = Measurements(
            state=state, breakdown=breakdown, cross_check=cross_check, on_accelerator=on_accelerator
        )
        facts = replace(
            collect_facts(
                context, pipeline, measurements, input_throughput=input_throughput, trained=trained
            ),
            padding_pct=built.sequence_batches and built.sequence_batches.padding_pct,
            padding_pct_in_buckets=padding_in_buckets(pipeline),
        )
        model_step = ModelStepCost(
            step_ms=state.model_step_ms,
            core_ms=state.model_core_ms,
            on_accelerator=on_accelerator,
            ahead=on_gpu,
        )
        ceilings = Ceilings(
            input_examples_per_s=facts.input_examples_per_s,
            model_examples_per_s=pipeline.examples_per_step / state.model_step_ms * 1e3,
            on_accelerator=on_accelerator,
        )
        diagnosis = diagnose(context.name, facts, ceilings, model_step)
        breakdown.write(folder)
        replace(diagnosis, costs=asdict(facts.costs)).write(folder)
        summarize_rounds(state).write(folder)
        timeline = find_timeline(events)
        if timeline:
            timeline.write(folder)
            plot_timelines({str(pipeline.plan): timeline.lanes}, folder / "timeline")
        plot_steps(state.train_steps_ms, state.model_step_ms, folder)
    return Profile(
        input_throughput=input_throughput,
        state=state,
        others=others,
        breakdown=breakdown,
        diagnosis=diagnosis,
        cross_check=cross_check,
    )


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What this stage has measured; `on_accelerator`: the model is on a GPU, or emulated."""

    state: SteadyState
    breakdown: Breakdown
    cross_check: CrossCheck | None
    on_accelerator: bool


def _trace_steady_state(
    loop: TrainingLoop, state: SteadyState, folder: Path, measure: MeasureSettings
) -> Trace:
    """A window of real steps in the steady state; where the profiler left no readable trace, the
    rest is still said.
    """
    wait_until_idle()
    if state.stall_pct >= TRACE_DRAINED_PCT:  # then the steady state is that of empty buffers
        for _ in range(state.prepared):
            loop.pull()
    for _ in range(WARM_UP_STEPS):
        loop.step()
    record_trace(loop.step, folder, steps=measure.trace_steps)
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
    input_throughput: InputThroughput,
    trained: TrainResult | None,
) -> Facts:
    """Everything that the rules look at."""
    config, data, worker = (
        context.params.pipelines[context.name],
        pipeline.data,
        pipeline.worker,
    )
    cores = worker.share(usable_cores())
    state, breakdown = measurements.state, measurements.breakdown
    steps_per_epoch = pipeline.steps_per_epoch
    if worker.count > 1:  # costs are those of batches that are as large as a slice
        spec = replace(pipeline.plan.spec, batch_size=pipeline.batch_size // worker.count)
        pipeline = replace(pipeline, plan=make_plan(config, spec), worker=TrainingWorker())
    costs = measure_costs(pipeline, config)
    shards = data.shards.for_split(pipeline.split)
    gap = input_throughput.epoch_gap_s
    wait_ms = breakdown.wait_ms_mean
    return Facts(
        config=config,
        plan=pipeline.plan,
        breakdown=breakdown,
        costs=costs,
        load=estimate_load(pipeline.plan, costs, cores=cores),
        cores=cores,
        on_accelerator=measurements.on_accelerator,
        model_step_ms=state.model_step_ms,
        train_step_ms=state.train_step_ms,
        # Tracing itself takes time, so the share is that of the traced steps.
        wait_pct=(
            None
            if wait_ms is None or not breakdown.traced_step_ms_p50
            else min(100.0, 100 * wait_ms / breakdown.traced_step_ms_p50)
        ),
        stall=Stall.of(state),
        cross_check=measurements.cross_check,
        batch_mib=pipeline.batch_bytes / 2**20,
        stored_mib=estimate_snapshot_bytes(data, pipeline.split) / 2**20,
        available_memory_mib=worker.share(available_memory()) / 2**20,
        shard_count=len(shards),
        shard_mib=sum(shard.bytes for shard in shards) / max(1, len(shards)) / 2**20,
        epoch_gap_ms=None if gap is None else gap * 1e3,
        epoch_ms=state.train_step_ms * steps_per_epoch,
        cold_examples_per_s=input_throughput.cold_examples_per_s,
        input_examples_per_s=input_throughput.input_examples_per_s,
        gpu_utilization_pct=trained and trained.usage.gpu_utilization_pct_mean,
    )


def keep_slowest(folders: Sequence[Path], slowest: int) -> None:
    """Leave of the `folders` of all processes that of the slowest, where that of the first is."""
    if slowest:
        replace_folder(folders[slowest], folders[0])
    for folder in folders[1:]:
        shutil.rmtree(folder.parent, ignore_errors=True)


def record(out: Path, run_key: RunKey, result: ProfileResult) -> None:
    """Add the profile to the configuration's MLflow run."""
    diagnosis, run_id = Diagnosis.read(out), RunRecord.read(out).mlflow_run_id
    if run_id is None:
        return
    with Recorder(run_key, run_id=run_id) as recorder:
        recorder.log_metrics(profile_metrics(result))
        recorder.set_tags(
            {
                "verdict": result.verdict,
                "finding": diagnosis.findings[0].rule if diagnosis.findings else "none",
                "autotuned": json.dumps(result.autotuned),
                "slowest_process": str(result.slowest),
            }
        )
        recorder.log_artifact(out / "profile", folder="profile")


def profile_emulated(context: StageContext, accelerator: Accelerator, *, address: str) -> None:
    """Profile the configuration with an emulated accelerator as its model, and print how many of
    them this host feeds.

    Nothing of runs/NAME changes; the profile goes to .throughline/accelerators/NAME.
    """
    params = context.params
    if params.window.tokens is not None:
        raise UnknownModel(
            "--accelerator emulates a model with one output per example; next tokens have one per"
            " token. Profile this configuration with its own model"
        )
    emulated = ModelSettings(
        name=EMULATED_MODEL, options={"step_ms": accelerator.step_ms(params.batch_size)}
    )
    context = replace(context, params=replace(params, model=emulated))
    data, built = open_inputs(params, Layout()), BuildResult.read(Layout().results(context.name))
    pipeline = open_input_pipeline(
        params, context.name, data, split="train", purpose="train", address=address
    )
    out = Path(".throughline") / "accelerators" / context.name
    profiled = profile(
        context, pipeline, out / Diagnosis.FOLDER, built=replace(built, processes=())
    )
    print_summary(
        f"{context.name} ({accelerator.model} of {context.options.accelerator}, emulated)",
        summarize(profiled, pipeline.examples_per_step),
        out,
    )
    fed = profiled.input_throughput.input_examples_per_s / accelerator.examples_per_s
    echo(
        f"  this host feeds {fed:.1f} of them: the input alone delivers"
        f" {profiled.input_throughput.input_examples_per_s:,.0f} examples/s, one"
    )
    echo(
        f"  takes {accelerator.examples_per_s:,.0f} ({accelerator.step_s} s for"
        f" {accelerator.batch_size}; {accelerator.source})"
    )


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this stage's command line takes besides `--pipeline`."""
    add_run_option(parser)
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
        open_input_service(context.params.pipelines[context.name]) as address,
    ):
        params, name, options = context.params, context.name, context.options
        condition = parse_threshold(options.fail_if) if options.fail_if else None
        if options.accelerator:
            configure_process(params.train)
            context = replace(context, params=measure_one_process(params))
            return profile_emulated(context, find_accelerator(options.accelerator), address=address)
        failing = ["--fail-if", options.fail_if] if options.fail_if else []
        replicas = meet_processes(params, name, ["tasks.profiling", *failing])
        if replicas is None:
            return None
        configure_process(params.train, replicas.worker)
        out, data = Layout().results(name), open_inputs(params, Layout())
        built, trained = BuildResult.read(out), TrainResult.read(out)
        pipeline = open_input_pipeline(
            params, name, data, split="train", purpose="train", address=address
        )
        folders = [out / Diagnosis.FOLDER] + [
            out / f"process-{index}{PARTIAL}" / Diagnosis.FOLDER
            for index in range(1, replicas.worker.count)
        ]
        profiled = profile(
            context,
            pipeline,
            folders[replicas.worker.index],
            built=built,
            trained=trained,
            own=replicas.meet_on_host(),
        )
        own = summarize(profiled, pipeline.examples_per_step)
        result = join_profiles(replicas.gather(own), trained)
        if not replicas.is_chief:
            replicas.wait_for_chief()
            return None
        keep_slowest(folders, result.slowest)
        plot_evaluation(out, out / Diagnosis.FOLDER)
        print_summary(name, result, out)
        if result.disturbed_by:
            echo_problem(
                f"disturbed: at work besides: {result.disturbed_by}; others took"
                f" {result.others_cpu_pct:.0f} % of the cores meanwhile"
            )
        result.write(out)
        write_json(out / METRICS_FILE, compared_metrics(built, trained, result))
        data_digest = data.shards.data_digest
        run_key = make_run_key(
            Layout().manifest,
            params.data.path,
            pipeline=name,
            window=params.window,
            data_digest=data_digest,
        )
        record(out, run_key, result)
        replicas.wait_for_chief()
        if condition:
            condition.check(asdict(result))
    return None


if __name__ == "__main__":
    run_one_of_several(main)
