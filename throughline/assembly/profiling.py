"""A configuration profiled: its steps timed, a window of them traced, and what they say judged by
the rules.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from throughline.assembly.model import build_models_for
from throughline.config.cli import StageContext
from throughline.diagnosis.cost_model import ModelStepCost, estimate_load
from throughline.diagnosis.diagnose import diagnose
from throughline.diagnosis.facts import Facts
from throughline.diagnosis.op_costs import measure_costs, share_of_worker
from throughline.diagnosis.summary import Profile, summarize_rounds
from throughline.diagnosis.timeline import find_timeline
from throughline.diagnosis.trace_breakdown import break_down
from throughline.diagnosis.xspace import Trace, read_trace, record_trace
from throughline.measurement.hardware import describe_machine
from throughline.measurement.other_processes import OtherProcesses
from throughline.measurement.padding import padding_in_buckets
from throughline.measurement.rounds import SteadyState
from throughline.measurement.steady_state import WARM_UP_STEPS
from throughline.measurement.train_steps import TrainingLoop, time_training, wait_until_idle
from throughline.measurement.verdict import CrossCheck, Stall, cross_check_from
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.sizes import estimate_snapshot_bytes
from throughline.reporting.plots import plot_steps, plot_timelines
from throughline.results.build import BuildResult, InputThroughput, name_machine
from throughline.results.profiling import Breakdown
from throughline.results.train import TrainResult
from throughline.settings import MeasureSettings, TrainSettings
from throughline.shared.errors import MissingInput
from throughline.shared.files import atomic_folder
from throughline.shared.limits import available_memory, usable_cores
from throughline.shared.progress import echo
from throughline.training.gpus import count_training_gpus

TRACE_DRAINED_PCT = 5.0  # a stall from which on the traced window starts on empty buffers


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
    worker, here = pipeline.worker, name_machine(describe_machine())
    input_throughput = known = built.slice_of(worker.index, count=worker.count)
    if (there := name_machine(built.machine)) != here:
        echo(
            f"  {there} has built it: neither its first pass nor its gap between epochs counts here"
        )
        warm = known.input_examples_per_s
        known = replace(known, epoch_gap_s=None, cold_examples_per_s=warm)
    with OtherProcesses(own) as others:
        state = time_training(loop, models, pipeline, train=params.train, measure=measure)
    with atomic_folder(out) as folder:
        events = _trace_steady_state(loop, state, folder / "trace", measure)
        breakdown = break_down(events)
        timed_alike = here == there and _takes_single_steps(params.train)
        cross_check = cross_check_from(
            state,
            trained.throughput
            if trained and trained.processes == worker.count == 1 and timed_alike
            else None,
            batch_size=pipeline.examples_per_step,
            mean_batch=pipeline.examples / worker.count / pipeline.steps_per_epoch,
            steps=pipeline.steps_per_epoch,
        )
        on_accelerator = count_training_gpus() > 0 or models.emulation is not None
        measurements = Measurements(
            state=state, breakdown=breakdown, cross_check=cross_check, on_accelerator=on_accelerator
        )
        facts = replace(
            collect_facts(context, pipeline, measurements, input_throughput=known, trained=trained),
            padding_pct=built.sequence_batches and built.sequence_batches.padding_pct,
            padding_pct_in_buckets=padding_in_buckets(pipeline),
        )
        model_step = ModelStepCost(
            step_ms=state.model_step_ms,
            core_ms=state.model_core_ms,
            on_accelerator=on_accelerator,
            held_ms=state.held_ms,
        )
        model_rate = pipeline.examples_per_step / state.model_step_ms * 1e3
        diagnosis = diagnose(context.name, facts, model_step, model_examples_per_s=model_rate)
        breakdown.write(folder)
        replace(diagnosis, costs=asdict(facts.costs)).write(folder)
        summarize_rounds(state).write(folder)
        timeline = find_timeline(events)
        if timeline:
            timeline.write(folder)
            plot_timelines({str(pipeline.plan): timeline.lanes}, folder / "timeline")
        plot_steps(state.train_steps_ms, state.model_step_ms, folder)
    return Profile(
        machine=here,
        input_throughput=input_throughput,
        state=state,
        others=others,
        breakdown=breakdown,
        diagnosis=diagnosis,
        cross_check=cross_check,
    )


def _takes_single_steps(settings: TrainSettings) -> bool:
    """Whether a training's epochs are steps as they are timed here, one by one, and nothing else:
    then their rates can contradict.
    """
    _, unit = settings.checkpoint_period
    return settings.steps_per_execution == 1 and unit == "epochs" and not settings.callbacks


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
    config, data, worker = (context.params.pipelines[context.name], pipeline.data, pipeline.worker)
    cores = worker.share(usable_cores())
    state, breakdown = measurements.state, measurements.breakdown
    steps_per_epoch = pipeline.steps_per_epoch
    costs, batch_bytes = measure_costs(pipeline, config), pipeline.batch_bytes / worker.count
    in_batch = pipeline.examples_per_step if pipeline.plan.batching else None
    pipeline, config = share_of_worker(pipeline, config)
    examples = in_batch or pipeline.plan.spec.batch_size
    shards = data.shards.for_split(pipeline.split)
    gap = input_throughput.epoch_gap_s
    batch_s = pipeline.examples_per_step / input_throughput.input_examples_per_s
    wait_ms = breakdown.wait_ms_mean
    return Facts(
        config=config,
        plan=pipeline.plan,
        breakdown=breakdown,
        costs=costs,
        load=estimate_load(pipeline.plan, costs, cores=cores, examples_per_step=examples),
        cores=cores,
        on_accelerator=measurements.on_accelerator,
        model_step_ms=state.model_step_ms,
        train_step_ms=state.train_step_ms,
        # Tracing itself takes time, so the share is that of the traced steps.
        wait_pct=(
            None
            if wait_ms is None or not breakdown.traced_step_ms_mean
            else min(100.0, 100 * wait_ms / breakdown.traced_step_ms_mean)
        ),
        stall=Stall.of(state),
        cross_check=measurements.cross_check,
        batch_mib=batch_bytes / 2**20,
        stored_mib=estimate_snapshot_bytes(data, pipeline.split) / 2**20,
        available_memory_mib=worker.share(available_memory()) / 2**20,
        shard_count=len(shards),
        shard_mib=sum(shard.bytes for shard in shards) / max(1, len(shards)) / 2**20,
        # Without what any batch takes, which the first one does, too.
        epoch_gap_ms=None if gap is None else max(0.0, gap - batch_s) * 1e3,
        epoch_ms=state.train_step_ms * steps_per_epoch,
        cold_examples_per_s=input_throughput.cold_examples_per_s,
        input_examples_per_s=input_throughput.input_examples_per_s,
        examples_per_step=examples,
        gpu_utilization_pct=trained and trained.usage.gpu_utilization_pct_mean,
        stored_fraction=context.params.snapshot.stored_fraction,
        steps_per_execution=context.params.train.steps_per_execution,
    )
