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
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from throughline.assembly.inputs import (
    infer_input_shape,
    open_input_pipeline,
    open_input_service,
    open_inputs,
)
from throughline.assembly.process_configuration import configure_process
from throughline.assembly.processes import measure_one_process, meet_processes
from throughline.assembly.profiling import profile
from throughline.config.cli import StageContext, add_run_option, pipeline_stage_cli
from throughline.diagnosis.summary import print_summary, summarize
from throughline.diagnosis.threshold import parse_threshold
from throughline.measurement.accelerators import ACCELERATORS, Accelerator, find_accelerator
from throughline.measurement.hardware import describe_machine
from throughline.models.emulation import EMULATED_MODEL
from throughline.reporting.evaluation_plots import plot_evaluation
from throughline.results.build import BuildResult, name_machine
from throughline.results.profiling import (
    METRICS,
    METRICS_FILE,
    Diagnosis,
    ProfileResult,
    compared_metrics,
    join_profiles,
    profile_metrics,
)
from throughline.results.train import RunRecord, TrainResult
from throughline.settings import ModelSettings
from throughline.shared.errors import MissingInput, UnknownModel
from throughline.shared.files import PARTIAL, replace_folder, write_json
from throughline.shared.layout import Layout
from throughline.shared.progress import echo, echo_problem
from throughline.shared.termination import exit_on_sigterm
from throughline.tracking.copied_runs import record_measurement
from throughline.tracking.experiments import RunKey, make_run_key
from throughline.tracking.recorder import is_gone
from throughline.tracking.store import show_address
from throughline.training.processes import run_one_of_several

FAIL_IF = (
    "exit with an error if a metric of runs/NAME/profile.json meets a condition, e.g. 'stall_pct"
    " > 10'"
)
ACCELERATOR = (
    "plan for an accelerator that is not there: emulate its train step, print how many of them this"
    " host feeds"
)


def keep_slowest(folders: Sequence[Path], slowest: int) -> None:
    """Leave of the `folders` of all processes that of the slowest, where that of the first is."""
    if slowest:
        replace_folder(folders[slowest], folders[0])
    for folder in folders[1:]:
        shutil.rmtree(folder.parent, ignore_errors=True)


def record(out: Path, run_key: RunKey, result: ProfileResult) -> None:
    """Add the profile to the MLflow run of the configuration's training, or in a run with changes
    that has not trained it to a copy of that.
    """
    diagnosis, run = Diagnosis.read(out), RunRecord.read(out)
    if run.mlflow_run_id is None and run.unsent is None:
        return
    if is_gone(run_key, run.mlflow_run_id, run.unsent):
        echo(f"MLflow at {show_address()} has no run of this training; the profile is not sent")
        return
    with record_measurement(run_key, run.mlflow_run_id, run.unsent) as recorder:
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


def profile_emulated(
    context: StageContext, accelerator: Accelerator, *, address: str
) -> ProfileResult:
    """Profile the configuration with an emulated accelerator as its model, and print how many of
    them this host feeds.

    Nothing of runs/NAME changes; the profile goes to .throughline/accelerators/NAME.

    Raises:
      UnknownModel: it trains on next tokens.
      MissingInput: build has measured another machine.
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
    _check_same_machine(built, context.name)
    pipeline = open_input_pipeline(
        params, context.name, data, split="train", purpose="train", address=address
    )
    out = Path(".throughline") / "accelerators" / context.name
    profiled = profile(
        context, pipeline, out / Diagnosis.FOLDER, built=replace(built, processes=())
    )
    result = summarize(profiled, pipeline.examples_per_step)
    print_summary(
        f"{context.name} ({accelerator.model} of {context.options.accelerator}, emulated)",
        result,
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
    shape = infer_input_shape(params, data)
    if shape != accelerator.shape:
        echo(
            f"  ! the benchmark's examples are {_by(accelerator.shape)}, these {_by(shape)}:"
            " one may take more or fewer of them"
        )
    return result


def _by(shape: Sequence[int | None]) -> str:
    return "×".join("?" if side is None else str(side) for side in shape)


def _check_same_machine(built: BuildResult, name: str) -> None:
    """Refuse what build has measured on another machine, as rates of this one.

    Raises:
      MissingInput: says where, and how to measure it here.
    """
    there, here = name_machine(built.machine), name_machine(describe_machine())
    if there != here:
        raise MissingInput(
            f"the input of {name} alone was measured on {there}, and this machine has {here};"
            f" `dvc repro --force --single-item build@{name}` measures it here"
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
        condition = parse_threshold(options.fail_if, METRICS) if options.fail_if else None
        if options.accelerator:
            configure_process(params.train)
            context = replace(context, params=measure_one_process(params))
            accelerator = find_accelerator(options.accelerator)
            emulated = profile_emulated(context, accelerator, address=address)
            if condition:
                condition.check(asdict(emulated))
            return
        failing = ["--fail-if", options.fail_if] if options.fail_if else []
        replicas = meet_processes(params, name, ["tasks.profiling", *failing])
        if replicas is None:
            return
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
            return
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
    return


if __name__ == "__main__":
    exit_on_sigterm()
    run_one_of_several(main)
