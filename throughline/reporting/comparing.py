"""Compares configurations: from their result files to rows and conclusions.

It needs no pictures and no page, so flows can use it, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from throughline.data.shards.index import read_shard_index
from throughline.plan.steps import count_mixed
from throughline.reporting.checklist import run_checklist
from throughline.reporting.headline import write_headline
from throughline.reporting.ranking import Ranking, accuracy_warning
from throughline.results.base import ResultFile
from throughline.results.build import BuildResult, PlanSummary
from throughline.results.comparison import Comparison, Row
from throughline.results.evaluation import Evaluation
from throughline.results.profiling import Breakdown, Findings
from throughline.results.race import RaceResult
from throughline.results.receipt import LOSSES, Receipt
from throughline.results.snapshot import SnapshotCost
from throughline.results.train import HISTORY, RunRecord, TrainResult, read_history
from throughline.settings import PipelineConfig, ShuffleSettings
from throughline.shared.errors import MissingInput, UnequalConfigurations
from throughline.shared.files import digest_json
from throughline.shared.layout import Layout
from whowaits.timing.verdict import UNDECIDED


@dataclass(frozen=True, kw_only=True)
class RunResults:
    plan: PlanSummary
    built: BuildResult
    trained: TrainResult
    history: Sequence[Mapping[str, float]]
    run: RunRecord
    breakdown: Breakdown
    findings: Findings


RESULT_FILES: tuple[type[ResultFile], ...] = (
    PlanSummary,
    BuildResult,
    TrainResult,
    Evaluation,
    Receipt,
    RunRecord,
    Breakdown,
    Findings,
)


def compare_some(names: Sequence[str], layout: Layout) -> Comparison:
    """Compare only these configurations; raises as `read_all` and `compare` do."""
    raced = RaceResult.read(layout.race)
    chosen = {name: one for name, one in raced.configurations.items() if name in names}
    results, missing = read_all(names, layout)
    return compare(results, missing, replace(raced, configurations=chosen), layout)


def read_all(names: Sequence[str], layout: Layout) -> tuple[dict[str, RunResults], dict[str, str]]:
    """Read the results of all complete configurations, and name the files that others lack.

    Raises:
      MissingInput: If no configuration has all of its result files.
      UnequalConfigurations: If two configurations delivered different examples.
    """
    lacking = {name: _missing_files(layout.results(name)) for name in names}
    missing = {name: f"{', '.join(files)} missing" for name, files in lacking.items() if files}
    results = {name: read_results(layout.results(name)) for name in names if name not in missing}
    if not results:
        raise MissingInput(
            "; ".join(f"{layout.results(name)}: {why}" for name, why in missing.items())
            + "; run `dvc repro` first"
        )
    check_equal({name: result.built for name, result in results.items()})
    return results, missing


def compare(
    results: Mapping[str, RunResults],
    missing: Mapping[str, str],
    race: RaceResult,
    layout: Layout,
) -> Comparison:
    """Rank the configurations that have raced; `results` are by name.

    Raises:
      MissingInput: If none of them has raced.
    """
    raced = {name: one for name, one in race.configurations.items() if name in results}
    if not raced:
        why = next((race.lost[name] for name in results if name in race.lost), "none took part")
        raise MissingInput(
            f"{layout.race} has no raced configuration: {why}; run `dvc repro -f -s race`"
        )
    race = replace(race, configurations=raced)
    lost = {name: why for name, why in race.lost.items() if name in results}
    ranking = Ranking(race)
    snapshot_s = _snapshot_seconds(layout)
    prepare_s = {
        name: snapshot_s for name in raced if results[name].plan.config["read"] == "snapshot"
    }
    rows = {name: _row(name, results[name], ranking, prepare_s=prepare_s) for name in raced}
    best = ranking.best
    shown = results[best]
    config = PipelineConfig.model_validate(shown.plan.config)
    shards = read_shard_index(layout.shards)
    exact = [one.built for one in results.values() if one.built.pixel_difference is None]
    digests = (
        {split: one.digest for split, one in exact[0].examples_digests.items()} if exact else {}
    )
    return Comparison(
        headline=write_headline(ranking, rows),
        best=best,
        tied=tuple(ranking.tied),
        undecided=tuple(ranking.open),
        measure_again=(*ranking.undecided, *lost),
        baseline=ranking.baseline,
        metric=rows[best].metric,
        warning=accuracy_warning(list(rows.values())),
        disturbed_by=race.disturbed_by,
        missing={**lost, **missing},
        machine=race.machine,
        examples_digest=digest_json(digests) if exact else "none",
        data_digest=shown.plan.data_digest,
        checklist=tuple(run_checklist(config, shards, rows[best])),
        configurations=tuple(rows.values()),
    )


def check_equal(built: Mapping[str, BuildResult]) -> None:
    """Check that all configurations delivered the same examples.

    Configurations with approximate pixels are excluded; their difference is shown.

    Raises:
      UnequalConfigurations: If they differ.
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
    folder = layout.snapshot.parent
    return SnapshotCost.read(folder).seconds if SnapshotCost.path(folder).exists() else 0.0


def _missing_files(folder: Path) -> list[str]:
    files = [kind.path(folder) for kind in RESULT_FILES]
    return [
        path.relative_to(folder).as_posix()
        for path in (*files, folder / HISTORY, folder / LOSSES)
        if not path.exists()
    ]


def read_results(folder: Path) -> RunResults:
    return RunResults(
        plan=PlanSummary.read(folder),
        built=BuildResult.read(folder),
        trained=TrainResult.read(folder),
        history=read_history(folder),
        run=RunRecord.read(folder),
        breakdown=Breakdown.read(folder),
        findings=Findings.read(folder),
    )


def _row(name: str, result: RunResults, ranking: Ranking, *, prepare_s: Mapping[str, float]) -> Row:
    built, trained, raced = result.built, result.trained, ranking.raced[name]
    throughput, step, difference = trained.throughput, trained.step, built.pixel_difference
    config, texts, gain = result.plan.config, built.sequence_batches, ranking.gains[name]
    return Row(
        pipeline=name,
        plan=result.plan.plan,
        examples=result.plan.examples,
        verdict=raced.verdict,
        cause=raced.cause,
        fix=raced.fix,
        note=raced.note,
        steady_examples_per_s=raced.training.value,
        steady_examples_per_s_low=raced.training.low,
        steady_examples_per_s_high=raced.training.high,
        input_examples_per_s=raced.input and raced.input.value,
        model_examples_per_s=raced.model_alone.value,
        stall_pct=raced.stall_pct,
        stall_pct_low=raced.stall_pct_low,
        stall_pct_high=raced.stall_pct_high,
        speedup_vs_naive=gain.value,
        speedup_vs_naive_low=gain.low,
        speedup_vs_naive_high=gain.high,
        gain=None if raced.verdict == UNDECIDED else raced.gain,
        wait_ms_mean=result.breakdown.wait_ms_mean,
        first_batch_s=raced.first_batch_s,
        exchange_ms=raced.exchange_ms,
        break_even_epoch=ranking.break_even(
            name, examples=result.plan.examples, prepare_s=prepare_s
        ),
        train_examples_per_s=throughput and throughput.train_examples_per_s,
        epochs_doubt=trained.epochs_doubt,
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
        mlflow_run_id=result.run.mlflow_run_id,
        unsent=result.run.unsent,
        drawn_by_class=config["sampling"] != "uniform",
        sequence_batches=texts,
        tokens_per_s=texts and raced.input and raced.input.value * texts.tokens_per_example,
        mixed_examples=count_mixed(
            ShuffleSettings.model_validate(config["shuffle"]), examples=result.plan.examples
        ),
    )
