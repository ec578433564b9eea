"""The profile stage: trace a window of real steps, and find possible faults of a configuration.

Writes runs/NAME/profile/: the trace, breakdown.json, findings.json and a timeline. Runs in its own
process with freshly initialized weights, because their values do not change the time of a step. The
race measures the gain of the findings.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tasks.earlier import check_identity
from throughline.assembly.inputs import (
    open_input_pipeline,
    open_input_service,
    open_inputs,
    training_worker,
)
from throughline.assembly.model import build_models_for, configure_process
from throughline.config.cli import pipeline_stage_cli
from throughline.config.params import Params
from throughline.diagnosis.facts import Facts
from throughline.diagnosis.findings import find_all
from throughline.diagnosis.trace_breakdown import break_down, find_timeline, iterator_table
from throughline.diagnosis.xspace import Trace, read_trace, record_trace
from throughline.measurement.padding import padding_in_buckets
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.sizes import estimate_snapshot_bytes
from throughline.race.training import MANY_EPOCHS, advance
from throughline.reporting.evaluation_plots import plot_evaluation
from throughline.reporting.plots import plot_timelines
from throughline.results.build import BuildResult
from throughline.results.profiling import Breakdown, Findings
from throughline.results.train import TrainResult
from throughline.shared.errors import MissingInput
from throughline.shared.files import atomic_folder
from throughline.shared.layout import Layout
from throughline.shared.limits import available_memory, usable_cores
from throughline.shared.progress import echo, echo_result
from throughline.shared.termination import exit_on_sigterm
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, make_step_model

WARM_UP_STEPS, WARM_UP_S = 10, 1.0  # before the trace: builds graphs, fills buffers


def open_steps(params: Params, pipeline: InputPipeline) -> Callable[[], object]:
    """Fill the cache, if there is one, and return a function that runs the next train step."""
    models = build_models_for(params, pipeline.data)
    single = params.train.model_copy(update={"steps_per_execution": 1})
    step = StepFunction(make_step_model(models, single, Feed.of(pipeline, single)))
    batches = iter(pipeline.steps(epochs=MANY_EPOCHS))
    for _ in range(pipeline.steps_per_epoch if pipeline.plan.caches else 0):
        next(batches)
    return partial(advance, step, batches)


def trace(step: Callable[[], object], folder: Path, *, steps: int) -> Trace:
    """Trace train steps after a warm-up; empty if the profiler leaves no readable trace."""
    done, until = 0, time.perf_counter() + WARM_UP_S
    while done < WARM_UP_STEPS or time.perf_counter() < until:
        step()
        done += 1
    record_trace(step, folder, steps=steps)
    try:
        return read_trace(folder)
    except MissingInput as error:
        echo(f"  no breakdown: {error}")
        return Trace(host=[], device=[])


def collect_facts(
    params: Params,
    name: str,
    pipeline: InputPipeline,
    breakdown: Breakdown,
    *,
    built: BuildResult,
    trained: TrainResult,
) -> Facts:
    data = pipeline.data
    shards = data.shards.for_split(pipeline.split)
    texts = built.sequence_batches
    return Facts(
        config=params.pipelines[name],
        plan=pipeline.plan,
        breakdown=breakdown,
        cores=pipeline.worker.share(usable_cores()),
        batch_mib=pipeline.batch_bytes / 2**20,
        stored_mib=estimate_snapshot_bytes(data, pipeline.split) / 2**20,
        available_memory_mib=pipeline.worker.share(available_memory()) / 2**20,
        shard_count=len(shards),
        shard_mib=sum(shard.bytes for shard in shards) / max(1, len(shards)) / 2**20,
        examples=pipeline.examples,
        examples_per_step=pipeline.examples_per_step,
        gpu_utilization_pct=trained.usage.gpu_utilization_pct_mean,
        stored_fraction=params.snapshot.stored_fraction,
        steps_per_execution=params.train.steps_per_execution,
        padding_pct=texts and texts.padding_pct,
        padding_pct_in_buckets=padding_in_buckets(pipeline),
    )


def main() -> None:
    """Trace real steps of this configuration, and find possible causes of a slow training."""
    with (
        pipeline_stage_cli(main) as context,
        open_input_service(context.params.pipelines[context.name]) as address,
    ):
        check_identity()
        params, name = context.params, context.name
        if training_worker(params).index:  # the first of several hosts does it for all
            return
        configure_process(params.train)
        out, data = Layout().results(name), open_inputs(params, Layout())
        built, trained = BuildResult.read(out), TrainResult.read(out)
        pipeline = open_input_pipeline(params, name, data, address=address)
        with atomic_folder(out / Findings.FOLDER) as folder:
            step = open_steps(params, pipeline)
            events = trace(step, folder / "trace", steps=params.measure.trace_steps)
            breakdown = break_down(events)
            facts = collect_facts(params, name, pipeline, breakdown, built=built, trained=trained)
            found = Findings(wait_pct=facts.wait_pct, findings=tuple(find_all(name, facts)))
            breakdown.write(folder)
            found.write(folder)
            if timeline := find_timeline(events):
                timeline.write(folder)
                plot_timelines({str(pipeline.plan): timeline.lanes}, folder / "timeline")
            plot_evaluation(out, folder)
        waits = "the trace shows no wait"
        if found.wait_pct is not None:
            waits = f"{found.wait_pct:.0f} % of a traced step is waiting for input"
        rules = ", ".join(each.rule for each in found.findings) or "none"
        echo(f"profile {name}: {pipeline.plan}")
        echo_result(f"{waits}; findings: {rules}")
        for row in iterator_table(breakdown):
            echo(f"  {row}")


if __name__ == "__main__":
    exit_on_sigterm()
    main()
