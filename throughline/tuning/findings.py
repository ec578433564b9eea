"""The result of a search: every candidate with its figures, and why it was dropped."""

import math

from throughline.reporting.tuning_table import NOT_RACED
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.settings import PipelineConfig
from throughline.tuning.budgets import describe_excess, parse_time
from throughline.tuning.choice import Choice, compose_sentence
from throughline.tuning.search import Search
from throughline.tuning.space import CEILING, Candidate


def summarize(search: Search, choice: Choice, *, searched_s: float) -> TuningResult:
    """Make the result of a search: the choice, then raced candidates by time, then the rest."""
    race, needs, limits = search.race, search.measured_needs, search.question.limits
    rows = [_describe(search, choice, each) for each in search.survey.space.candidates]
    rows += [
        TunedCandidate(name=name, family="refused", config={}, dropped=reason)
        for name, reason in search.survey.space.refusals
    ]
    rows.sort(key=lambda row: (bool(row.dropped), row.seconds or math.inf))
    return TuningResult(
        outcome=choice.outcome,
        sentence=compose_sentence(choice, race, search.needs[choice.name]),
        chosen=choice.name,
        config=describe_config(search.candidates[choice.name].config),
        baseline=choice.baseline,
        incumbent=choice.incumbent,
        epochs=race.epochs,
        examples=race.examples,
        ceiling_examples_per_s=race.speed(CEILING).value,
        rounds=len(race.rounds),
        searched_s=searched_s,
        stored=search.question.params.snapshot.stored_fraction,
        time_s=parse_time(search.question.budgets.time),
        candidates=rows,
        lost=list(search.journal.pages.lost),
        needed=needs[choice.name],
        refused=[need for need in needs.values() if describe_excess(need, limits)],
    )


def describe_config(config: PipelineConfig) -> dict[str, object]:
    """Return the fields of a configuration that differ from their defaults, as in params.yaml."""
    return {"read": config.read, **config.model_dump(exclude_defaults=True)}


def _describe(search: Search, choice: Choice, candidate: Candidate) -> TunedCandidate:
    name, race, need = candidate.name, search.race, search.measured_needs[candidate.name]
    raced = name in race.names
    seconds = race.seconds(name) if raced else None
    return TunedCandidate(
        name=name,
        family=candidate.family,
        config=describe_config(candidate.config),
        examples_per_s=race.speed(name).value if raced else None,
        seconds=seconds and seconds.value,
        seconds_low=seconds and seconds.low,
        seconds_high=seconds and seconds.high,
        ram_mib=need.ram_bytes / 2**20,
        disk_mib=need.disk_bytes / 2**20,
        prepare_s=need.prepare_s,
        dropped=_explain(search, choice, name),
    )


def _explain(search: Search, choice: Choice, name: str) -> str:
    race, why = search.race, search.excess.get(name) or search.journal.pages.dropped.get(name, "")
    if name == choice.name or why:
        return why
    if name not in race.names:
        return NOT_RACED
    ratio = race.ratio(name, choice.name, compared=len(search.rivals))
    if not ratio.rounds:  # it left before the choice raced
        times = race.seconds(name).value / race.seconds(choice.name).value
        return f"{times:.1f}× as long"
    span = f"{ratio.value:.2f}× as long, {ratio.low:.2f} to {ratio.high:.2f}"
    return span if ratio.above_one or ratio.below_one else f"{span}: noise"
