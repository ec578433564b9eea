"""Compares configurations: from their result files to rows and conclusions.

It needs no pictures and no page, so flows can use it, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
from throughline.settings import PipelineConfig
from throughline.shared.errors import MissingInput, UnequalConfigurations
from throughline.shared.files import digest_json
from throughline.shared.layout import Layout
from whowaits.timing.verdict import UNDECIDED

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


@dataclass(frozen=True, kw_only=True)
class RunResults:
    plan: PlanSummary
    built: BuildResult
    trained: TrainResult
    history: Sequence[Mapping[str, float]]
    run: RunRecord
    breakdown: Breakdown

    @classmethod
    def read(cls, folder: Path) -> RunResults:
        return cls(
            plan=PlanSummary.read(folder),
            built=BuildResult.read(folder),
            trained=TrainResult.read(folder),
            history=read_history(folder),
            run=RunRecord.read(folder),
            breakdown=Breakdown.read(folder),
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
    files = [*(kind.path(Path()) for kind in RESULT_FILES), Path(HISTORY), Path(LOSSES)]
    missing = {}
    for name in names:
        lacking = [file.as_posix() for file in files if not (layout.results(name) / file).exists()]
        if lacking:
            missing[name] = f"{', '.join(lacking)} missing"
    results = {one: RunResults.read(layout.results(one)) for one in names if one not in missing}
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
    lost = {name: why for name, why in race.lost.items() if name in results}
    if not raced:
        raise MissingInput(
            f"{layout.race} has no raced configuration:"
            f" {next(iter(lost.values()), 'none took part')}; run `dvc repro -f -s race`"
        )
    ranking = Ranking(replace(race, configurations=raced))
    folder, snapshot_s = layout.snapshot.parent, 0.0
    if SnapshotCost.path(folder).exists():
        snapshot_s = SnapshotCost.read(folder).seconds
    configs = {name: PipelineConfig.model_validate(results[name].plan.config) for name in raced}
    prepare_s = {name: snapshot_s for name in raced if configs[name].read == "snapshot"}
    rows = {
        name: _row(name, results[name], configs[name], ranking, prepare_s=prepare_s)
        for name in raced
    }
    best = rows[ranking.best]
    exact = [one.built for one in results.values() if one.built.pixel_difference is None]
    digests = exact and {split: one.digest for split, one in exact[0].examples_digests.items()}
    checked = run_checklist(configs[best.pipeline], read_shard_index(layout.shards), best)
    return Comparison(
        headline=write_headline(ranking, rows),
        best=best.pipeline,
        tied=tuple(ranking.tied),
        undecided=tuple(ranking.open),
        measure_again=(*ranking.undecided, *lost),
        baseline=ranking.baseline,
        metric=best.metric,
        warning=accuracy_warning(list(rows.values())),
        disturbed_by=race.disturbed_by,
        missing={**lost, **missing},
        machine=race.machine,
        examples_digest=digest_json(digests) if exact else "none",
        data_digest=results[best.pipeline].plan.data_digest,
        checklist=tuple(checked),
        configurations=tuple(rows.values()),
    )


def check_equal(built: Mapping[str, BuildResult]) -> None:
    """Check that all configurations with exact pixels delivered the same examples.

    Raises:
      UnequalConfigurations: If they differ.
    """
    exact = {name: result for name, result in built.items() if result.pixel_difference is None}
    splits = (split for result in exact.values() for split in result.examples_digests)
    for split in dict.fromkeys(splits):
        named = defaultdict[str, list[str]](list)
        for name, result in exact.items():
            digest = result.examples_digests.get(split)
            named[digest.digest[:12] if digest else "none"].append(name)
        if len(named) > 1:
            groups = "; ".join(f"{', '.join(names)}: {digest}" for digest, names in named.items())
            raise UnequalConfigurations(
                f"the configurations did not deliver the same examples of the {split} split"
                f" ({groups}); they cannot be compared"
            )


def _row(
    name: str,
    result: RunResults,
    config: PipelineConfig,
    ranking: Ranking,
    *,
    prepare_s: Mapping[str, float],
) -> Row:
    plan, built, trained = result.plan, result.built, result.trained
    raced, gain = ranking.raced[name], ranking.gains[name]
    throughput, step, difference = trained.throughput, trained.step, built.pixel_difference
    texts = built.sequence_batches
    sources = (raced, trained.usage, trained, result.breakdown, result.run, built, plan)
    # Most figures have the same names in the results that they come from.
    same = {
        field.name: getattr(source, field.name)
        for source in sources
        for field in fields(Row)
        if hasattr(source, field.name)
    }
    return Row(
        **same
        | {
            "pipeline": name,
            "steady_examples_per_s": raced.training.value,
            "steady_examples_per_s_low": raced.training.low,
            "steady_examples_per_s_high": raced.training.high,
            "input_examples_per_s": raced.input and raced.input.value,
            "model_examples_per_s": raced.model_alone.value,
            "speedup_vs_naive": gain.value,
            "speedup_vs_naive_low": gain.low,
            "speedup_vs_naive_high": gain.high,
            "gain": None if raced.verdict == UNDECIDED else raced.gain,
            "break_even_epoch": ranking.break_even(
                name, examples=plan.examples, prepare_s=prepare_s
            ),
            "train_examples_per_s": throughput and throughput.train_examples_per_s,
            "fit_step_ms_p50": step and step.ms_p50,
            "fit_step_ms_p95": step and step.ms_p95,
            "fit_step_ms_p99": step and step.ms_p99,
            "val_metric": trained.last_epoch[f"val_{trained.metric}"],
            "test_metric": trained.test.get(trained.metric),
            "difference_mean": difference and difference.mean,
            "difference_max": difference and difference.max,
            "drawn_by_class": config.sampling != "uniform",
            "tokens_per_s": texts and raced.input and raced.input.value * texts.tokens_per_example,
            "mixed_examples": count_mixed(config.shuffle, examples=plan.examples),
        }
    )
