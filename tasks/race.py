"""The race stage: measure how fast each configuration trains, and find causes and remedies.

All trained configurations race in turns against their models alone. The changes that the rules
propose for configurations that wait for input race, too. Writes race/race.json (every turn and the
conclusions) and race/metrics.json, and adds the figures to the MLflow runs of the trainings. With
--pipeline only that configuration races, and race/ stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.earlier import check_identity
from throughline.config.cli import add_run_option, options_stage_cli
from throughline.config.params import Params, check_pipelines_exist
from throughline.diagnosis.threshold import Threshold, parse_threshold
from throughline.measurement.accelerators import ACCELERATORS, Accelerator, find_accelerator
from throughline.measurement.hardware import describe_machine
from throughline.race.configurations import ConfigurationRace, Starter, find_worker
from throughline.race.judging import Subject, judge_race
from throughline.results.base import name_machine
from throughline.results.build import BuildResult, PlanSummary
from throughline.results.profiling import Breakdown, Findings
from throughline.results.race import (
    METRICS,
    METRICS_FILE,
    Raced,
    RaceResult,
    compared_metrics,
    race_metrics,
)
from throughline.results.train import TrainResult
from throughline.settings import EMULATED_MODEL, ModelSettings, PipelineConfig
from throughline.shared.errors import MissingInput, UnknownModel
from throughline.shared.files import write_json
from throughline.shared.layout import Layout
from throughline.shared.machine_lock import MACHINE_HELD, hold_machine
from throughline.shared.progress import echo, echo_fact, echo_problem, echo_result
from throughline.shared.scratch import clear_scratch
from throughline.shared.termination import exit_on_sigterm
from whowaits.timing.verdict import UNDECIDED

LOGS = Path(".throughline") / "race"


@dataclass(frozen=True, kw_only=True)
class Study:
    """The results of a configuration's build, train and profile stages."""

    plan: PlanSummary
    built: BuildResult
    trained: TrainResult
    breakdown: Breakdown
    findings: Findings

    @classmethod
    def read(cls, folder: Path, config: PipelineConfig) -> Study:
        """Read the study of a configuration, unless it has changed in params.yaml afterwards."""
        name, plan = folder.name, PlanSummary.read(folder)
        if PipelineConfig.model_validate(plan.config) != config:
            raise MissingInput(
                f"{name} has changed in params.yaml since it was trained; run `dvc repro"
                f" profile@{name}`"
            )
        return cls(
            plan=plan,
            built=BuildResult.read(folder),
            trained=TrainResult.read(folder),
            breakdown=Breakdown.read(folder),
            findings=Findings.read(folder),
        )


def read_studies(
    pipelines: Mapping[str, PipelineConfig], layout: Layout
) -> tuple[dict[str, Study], dict[str, str]]:
    """Return the studies of trained and profiled configurations, and why the others have none."""
    studies, lacking = {}, {}
    for name, config in pipelines.items():
        try:
            studies[name] = Study.read(layout.results(name), config)
        except MissingInput as error:
            lacking[name] = str(error)
    if not studies:
        raise MissingInput(next(iter(lacking.values())))
    return studies, lacking


def race(params: Params, studies: Mapping[str, Study], *, root: Path) -> RaceResult:
    starters = {
        name: Starter(
            config=params.pipelines[name],
            plan=study.plan.plan,
            model_layers=study.plan.model_layers,
            findings=study.findings.findings,
        )
        for name, study in studies.items()
    }
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    racing = ConfigurationRace(params, starters, root=root, folder=root / LOGS)
    try:
        racing.run()
    finally:
        clear_scratch(root)  # contestants are killed at the end and leave files
    here = describe_machine()
    subjects = [
        Subject(
            name=name,
            findings=study.findings.findings,
            trained=study.trained,
            settings=params.train,
            examples=study.plan.examples,
            steps=study.plan.steps_per_epoch,
            share=racing.share,
            same_machine=study.trained.machine == name_machine(here),
        )
        for name, study in studies.items()
    ]
    return judge_race(racing, subjects, machine=here)


def print_result(name: str, raced: Raced) -> None:
    """Print one configuration's verdict, rates, cause, fix, and the changes that were tried."""
    rate = raced.training
    fed = f", input alone {raced.input.value:,.0f}" if raced.input else ""
    echo_result(
        f"{name}: {raced.verdict}, stall {raced.stall_pct:.0f} % ({raced.stall_pct_low:.0f} to"
        f" {raced.stall_pct_high:.0f} %); {rate.value:,.0f} examples/s ({rate.low:,.0f} to"
        f" {rate.high:,.0f}), model alone {raced.model_alone.value:,.0f}{fed}"
    )
    if raced.note:
        echo_fact(f"{name} was measured {raced.note}")
    if raced.exchange_ms is not None:
        echo_fact(
            f"a step of {name}'s training takes {raced.exchange_ms:.2f} ms more than in the race,"
            " where its processes exchange nothing"
        )
    if raced.verdict == UNDECIDED:
        echo_problem(f"undecided: {raced.cause}; {raced.fix}")
    else:
        echo(f"  cause: {raced.cause}\n  fix: {raced.fix}")
    for each in raced.findings:
        worth = f"no gain shown: {each.untried}"
        if gain := each.gain:
            worth = f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f}), tried"
        echo(f"  finding {each.rule}: {each.fix} ({worth})")


def record(
    params: Params, layout: Layout, result: RaceResult, studies: Mapping[str, Study]
) -> None:
    """Add race and trace to the MLflow runs of the trainings."""
    from throughline.assembly.logged_training import find_recorder  # imports MLflow

    for name, raced in result.configurations.items():
        study = studies[name]
        recorder = find_recorder(params, layout, name, what="the race")
        if recorder is None:
            continue
        with recorder:
            recorder.set_tags(
                {
                    "verdict": raced.verdict,
                    "finding": raced.findings[0].rule if raced.findings else "none",
                    "autotuned": json.dumps(study.breakdown.autotuned),
                }
            )
            recorder.log_artifact(layout.results(name) / Findings.FOLDER, folder=Findings.FOLDER)
            # Last, so that calls kept for later have the time of their measurement.
            recorder.log_metrics(race_metrics(raced, study.breakdown, study.built.sequence_batches))


def emulate(params: Params, accelerator: Accelerator) -> Params:
    """Replace the model by an emulated train step of the accelerator, in a single process."""
    if params.window.tokens is not None:
        raise UnknownModel(
            "--accelerator emulates a model with one output per example, but a next-token model has"
            " one per token. Race this configuration without --accelerator"
        )
    step_ms = accelerator.step_ms(params.batch_size)
    model = ModelSettings(name=EMULATED_MODEL, options={"step_ms": step_ms})
    one = {"processes": 1, "batch_multiple": find_worker(params).multiple}
    return replace(params, model=model, train=params.train.model_copy(update=one))


def race_one(
    params: Params, name: str, *, accelerator: Accelerator | None, condition: Threshold | None
) -> None:
    """Race one configuration by itself, with an emulated accelerator if one is given."""
    study = Study.read(Layout().results(name), params.pipelines[name])
    title = name
    if accelerator:
        params = emulate(params, accelerator)
        # The training's epochs ran another model.
        study = replace(study, trained=replace(study.trained, machine=""))
        title = f"{name} ({accelerator.model}, emulated)"
    result = race(params, {name: study}, root=Path())
    if name not in result.configurations:
        raise MissingInput(f"{name} dropped out of the race: {result.lost[name]}")
    raced = result.configurations[name]
    print_result(title, raced)
    if accelerator and raced.input:
        rate = raced.input.value
        echo(
            f"  this host feeds {rate / accelerator.examples_per_s:.1f} such accelerators: the"
            f" input alone delivers {rate:,.0f} examples/s,\n  and one accelerator uses"
            f" {accelerator.examples_per_s:,.0f} of shape {'×'.join(map(str, accelerator.shape))}"
            f" ({accelerator.step_s} s for {accelerator.batch_size}; {accelerator.source})"
        )
    if condition:
        condition.check(raced.figures)


def declare_options(parser: argparse.ArgumentParser) -> None:
    add_run_option(parser)
    parser.add_argument("--pipeline", metavar="NAME", help="race this configuration by itself")
    parser.add_argument(
        "--fail-if",
        metavar="CONDITION",
        help="with --pipeline: exit with an error if a figure of this configuration meets a"
        " condition, e.g. 'stall_pct > 10'",
    )
    parser.add_argument(
        "--accelerator",
        metavar="NAME",
        help="with --pipeline: emulate the train step of an accelerator that is not there, and"
        f" print how many of them this host feeds; one of {', '.join(ACCELERATORS)}",
    )


def main() -> None:
    """Race all configurations that have been trained, and name the bottleneck of each."""
    with options_stage_cli(main, declare_options) as (params, options):
        check_identity()
        condition = parse_threshold(options.fail_if, METRICS) if options.fail_if else None
        accelerator = find_accelerator(options.accelerator) if options.accelerator else None
        if options.pipeline:
            check_pipelines_exist(params.pipelines, [options.pipeline])
        elif condition or accelerator:
            raise MissingInput(
                "--fail-if and --accelerator need a configuration: add --pipeline NAME"
            )
        if find_worker(params).index:  # the first host does it for all
            return
        waiting = hold_machine(lambda who: echo(f"waits: {who} is measuring on this machine"))
        with nullcontext() if os.environ.get(MACHINE_HELD) else waiting:
            if options.pipeline:
                race_one(params, options.pipeline, accelerator=accelerator, condition=condition)
                return
            layout = Layout()
            studies, lacking = read_studies(params.pipelines, layout)
            result = race(params, studies, root=Path())
        result = replace(result, lost={**result.lost, **lacking})
        metrics = {
            name: compared_metrics(studies[name].trained, raced, studies[name].breakdown)
            for name, raced in result.configurations.items()
        }
        layout.race.mkdir(exist_ok=True)
        result.write(layout.race)
        write_json(layout.race / METRICS_FILE, metrics)
        for name, raced in result.configurations.items():
            print_result(name, raced)
        for name, why in result.lost.items():
            echo_problem(f"{name} did not race: {why}")
        if result.disturbed_by:
            echo_problem(f"disturbed: {result.disturbed_by}")
        record(params, layout, result, studies)


if __name__ == "__main__":
    exit_on_sigterm()
    main()
