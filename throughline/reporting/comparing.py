"""One configuration or several side by side: from their result files to rows, and what they say.

It needs no pictures and no page, so a flow can use it, too.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from throughline.data.shards.index import read_shard_index
from throughline.plan.steps import count_mixed
from throughline.reporting.checklist import run_checklist
from throughline.reporting.consistency import keep_consistent
from throughline.reporting.headline import find_measure_again, find_undecided, write_headline
from throughline.reporting.ranking import (
    accuracy_warning,
    bootstrap_interval,
    break_even_epoch,
    drift_pct,
    find_baseline,
    find_best,
    find_tied,
    ratio_interval,
    reference_rate,
    relative_rate,
)
from throughline.results.base import ResultFile
from throughline.results.build import BuildResult, PlanSummary, name_machine
from throughline.results.comparison import BOTH, Comparison, MeasuredRow, Row, list_machines
from throughline.results.evaluation import Evaluation
from throughline.results.profiling import Breakdown, Diagnosis, ProfileResult, RoundTimes
from throughline.results.snapshot import SnapshotCost
from throughline.results.train import HISTORY, RunRecord, TrainResult, read_history
from throughline.settings import PipelineConfig, ShuffleSettings
from throughline.shared.errors import MissingInput, UnequalConfigurations
from throughline.shared.files import digest_json
from throughline.shared.layout import Layout


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """Everything that the stages have written about one configuration."""

    plan: PlanSummary
    built: BuildResult
    trained: TrainResult
    history: Sequence[Mapping[str, float]]
    run: RunRecord
    profiled: ProfileResult
    breakdown: Breakdown
    diagnosis: Diagnosis
    rounds: RoundTimes


RESULT_FILES: tuple[type[ResultFile], ...] = (
    PlanSummary,
    BuildResult,
    TrainResult,
    Evaluation,
    RunRecord,
    ProfileResult,
    Breakdown,
    Diagnosis,
    RoundTimes,
)


def compare_one(name: str, layout: Layout) -> Comparison:
    """A configuration by itself.

    Raises:
      MissingInput: it has not been built, trained and profiled.
    """
    return compare(*read_all([name], layout), layout)


def read_all(
    names: Sequence[str], layout: Layout
) -> tuple[dict[str, RunResults], dict[str, list[str]]]:
    """The results of the configurations that have all of them, and which files of the others are
    not there.

    Raises:
      MissingInput: no configuration has been built, trained and profiled.
      UnequalConfigurations: two configurations delivered different examples.
    """
    missing = {name: lacking for name in names if (lacking := _missing_files(layout.results(name)))}
    results = {name: read_results(layout.results(name)) for name in names if name not in missing}
    if not results:
        raise MissingInput(
            "; ".join(
                f"{layout.results(name)}: {', '.join(lacking)} missing"
                for name, lacking in missing.items()
            )
            + "; run `dvc repro` first"
        )
    check_equal({name: result.built for name, result in results.items()})
    return results, missing


def compare(
    results: Mapping[str, RunResults], missing: Mapping[str, list[str]], layout: Layout
) -> Comparison:
    """Rank the configurations and say which is best; their results are by name."""
    measured = _keep_all_consistent(
        [_measured_row(name, result) for name, result in results.items()]
    )
    top, base = find_best(measured), find_baseline(measured)
    shown = results[top.pipeline]
    config = PipelineConfig.model_validate(shown.plan.config)
    shards = read_shard_index(layout.shards)
    return Comparison(
        headline=write_headline(measured),
        best=top.pipeline,
        tied=tuple(find_tied(measured)) if len(list_machines(measured)) == 1 else (),
        undecided=tuple(find_undecided(measured)),
        measure_again=tuple(find_measure_again(measured)),
        drift_pct=drift_pct(measured),
        baseline=base.pipeline,
        metric=top.metric,
        warning=" ".join(filter(None, [_warn_of_machines(measured), accuracy_warning(measured)]))
        or None,
        missing=missing,
        machine=shown.built.machine,
        examples_digest=next(
            (
                digest_json({split: one.digest for split, one in built.examples_digests.items()})
                for built in (result.built for result in results.values())
                if built.pixel_difference is None
            ),
            "none",
        ),
        data_digest=shown.plan.data_digest,
        checklist=tuple(run_checklist(config, shards, top)),
        configurations=_rows(measured, setup_s=_snapshot_seconds(layout)),
    )


def _warn_of_machines(rows: Sequence[MeasuredRow]) -> str:
    """Say who was measured where, and how to have all of this machine; empty where it is one."""
    machines = list_machines(rows)
    if len(machines) == 1:
        return ""
    where = "; ".join(f"{', '.join(names)} on {machine}" for machine, names in machines.items())
    return (
        f"measured on different machines ({where}): `dvc repro --force --single-item build@NAME`"
        " for each of those of another machine, then this comparison again, measures them on this"
        " one."
    )


def check_equal(built: Mapping[str, BuildResult]) -> None:
    """Compare the digests of the examples that the configurations delivered.

    Raises:
      UnequalConfigurations: they differ; those that are approximate by their own wish apart, whose
      difference is shown.
    """
    exact = {name: result for name, result in built.items() if result.pixel_difference is None}
    for split in dict.fromkeys(
        split for result in exact.values() for split in result.examples_digests
    ):
        digests: dict[str, list[str]] = {}
        for name, result in exact.items():
            digest = result.examples_digests.get(split)
            digests.setdefault(digest.digest if digest else "none", []).append(name)
        if len(digests) > 1:
            groups = "; ".join(
                f"{', '.join(names)}: {digest[:12]}" for digest, names in digests.items()
            )
            raise UnequalConfigurations(
                f"the configurations did not deliver the same examples of the {split} split"
                f" ({groups}); they cannot be compared"
            )


def _snapshot_seconds(layout: Layout) -> float:
    """How long the snapshot took to write; 0 where that is not known."""
    folder = layout.snapshot.parent
    return SnapshotCost.read(folder).seconds if SnapshotCost.path(folder).exists() else 0.0


def _missing_files(folder: Path) -> list[str]:
    files = [kind.path(folder) for kind in RESULT_FILES]
    return [
        path.relative_to(folder).as_posix()
        for path in (*files, folder / HISTORY)
        if not path.exists()
    ]


def read_results(folder: Path) -> RunResults:
    """Read what the stages have written into a configuration's folder."""
    return RunResults(
        plan=PlanSummary.read(folder),
        built=BuildResult.read(folder),
        trained=TrainResult.read(folder),
        history=read_history(folder),
        run=RunRecord.read(folder),
        profiled=ProfileResult.read(folder),
        breakdown=Breakdown.read(folder),
        diagnosis=Diagnosis.read(folder),
        rounds=RoundTimes.read(folder),
    )


def _keep_all_consistent(measured: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Rows of which none contradicts its own ceilings and epochs."""
    reference, ceilings = reference_rate(measured), _model_ceilings(measured)
    return [
        keep_consistent(
            row, reference=reference, model_ceiling=ceilings[row.model_layers] * reference
        )
        for row in measured
    ]


def _model_ceilings(measured: Sequence[MeasuredRow]) -> dict[tuple[str, ...], float]:
    """The rate of each model alone, by its layers, as a fraction of the reference model's."""
    return {
        layers: statistics.median(
            row.model_examples_per_s / row.reference_examples_per_s
            for row in measured
            if row.model_layers == layers
        )
        for layers in dict.fromkeys(row.model_layers for row in measured)
    }


def _rows(measured: Sequence[MeasuredRow], *, setup_s: float) -> tuple[Row, ...]:
    """One row per configuration, in the order of params.yaml."""
    reference, ceilings = reference_rate(measured), _model_ceilings(measured)
    rows = [_row(row, measured, reference, ceilings[row.model_layers]) for row in measured]
    return tuple(
        replace(row, break_even_epoch=break_even_epoch(row, find_baseline(rows), setup_s=setup_s))
        for row in rows
    )


def _row(
    row: MeasuredRow, measured: Sequence[MeasuredRow], reference: float, ceiling: float
) -> Row:
    """A row, one of those `measured`, at one rate of the reference model; `ceiling` is that of its
    own model, as a fraction of the reference's, which all configurations with the same layers
    share.
    """
    base = find_baseline(measured)
    low, high = bootstrap_interval(row.relative_rates)
    speedup_low, speedup_high = (
        (1.0, 1.0)
        if row is base
        else ratio_interval(row, base, among=measured)
        if row.machine == base.machine
        else (0.0, math.inf)
    )
    return Row(
        **vars(row),
        steady_examples_per_s=relative_rate(row) * reference,
        steady_examples_per_s_low=low * reference,
        steady_examples_per_s_high=high * reference,
        model_ceiling_examples_per_s=ceiling * reference,
        speedup_vs_naive=relative_rate(row) / relative_rate(base),
        speedup_vs_naive_low=speedup_low,
        speedup_vs_naive_high=speedup_high,
    )


def _measured_row(name: str, result: RunResults) -> MeasuredRow:
    """What the report says about one configuration."""
    built, trained, profiled = result.built, result.trained, result.profiled
    throughput, step, difference = trained.throughput, trained.step, built.pixel_difference
    return MeasuredRow(
        pipeline=name,
        plan=result.plan.plan,
        examples=result.plan.examples,
        gathers=result.plan.config["read"] == "snapshot",
        caches=result.plan.config["cache"] is not None,
        drawn_by_class=result.plan.config["sampling"] != "uniform",
        machine=BOTH.join(dict.fromkeys((name_machine(built.machine), profiled.machine))),
        model_layers=tuple(
            json.dumps(each, sort_keys=True)
            for each in (*result.plan.device_ops, result.plan.config["batch"])
            if each is not None
        ),
        disturbed_by=profiled.disturbed_by,
        train_examples_per_s=throughput and throughput.train_examples_per_s,
        warm_examples_per_s=throughput.warm_examples_per_s if throughput else None,
        warm_steps=step.count if step else 0,
        relative_rates=result.rounds.relative_rates,
        rate_doubt=result.rounds.rate_doubt,
        reference_examples_per_s=profiled.reference_examples_per_s,
        input_examples_per_s=built.throughput.input_examples_per_s,
        cold_examples_per_s=built.throughput.cold_examples_per_s,
        model_examples_per_s=profiled.model_examples_per_s,
        stall_pct=profiled.stall_pct,
        stall_pct_low=profiled.stall_pct_low,
        stall_pct_high=profiled.stall_pct_high,
        wait_ms_mean=profiled.wait_ms_mean,
        predicted_gain=profiled.predicted_gain,
        first_batch_s=built.throughput.first_batch_s,
        epoch_gap_s=built.throughput.epoch_gap_s,
        fit_step_ms_p50=step and step.ms_p50,
        fit_step_ms_p95=step and step.ms_p95,
        fit_step_ms_p99=step and step.ms_p99,
        rss_mb_max=trained.usage.rss_mb_max,
        disk_read_mb=trained.usage.disk_read_mb,
        cpu_seconds_per_1k_examples=trained.cpu_seconds_per_1k_examples,
        cpu_utilization_pct=trained.usage.cpu_utilization_pct,
        gpu_utilization_pct_mean=trained.usage.gpu_utilization_pct_mean,
        metric=trained.metric,
        validation_examples=built.validation_examples,
        held_out=trained.held_out,
        val_metric=trained.last_epoch[f"val_{trained.metric}"],
        test_metric=trained.test.get(trained.metric),
        difference_mean=difference and difference.mean,
        difference_max=difference and difference.max,
        verdict=result.diagnosis.verdict,
        cause=result.diagnosis.cause,
        fix=result.diagnosis.fix,
        mlflow_run_id=result.run.mlflow_run_id,
        unsent=result.run.unsent,
        sequence_batches=built.sequence_batches,
        mixed_examples=count_mixed(
            ShuffleSettings.model_validate(result.plan.config["shuffle"]),
            examples=result.plan.examples,
        ),
    )
