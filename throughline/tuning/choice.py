"""Chooses the configuration that a search finds, and writes the sentence about it. Pure.

The whole training counts: preparation, first epoch, remaining epochs. The incumbent, the fastest of
the user's own configurations, stays unless another one certainly beats it. Among equals, the least
memory decides, then the least disk, then the shortest configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from throughline.measurement.rounds import Race
from throughline.reporting.headline import TWO_DIGITS_BELOW
from throughline.reporting.ranking import BASELINE
from throughline.results.base import Estimate
from throughline.results.tuning import TUNED, Outcome
from throughline.settings import PipelineConfig
from throughline.tuning.budgets import Need, format_bytes, format_seconds
from throughline.tuning.space import CEILING

TIE = 1.05  # candidates up to this factor slower than the fastest count as equal to it
NEGLIGIBLE = 0.05  # share of a step below which the input is not worth changing
LEAST_GAIN = 1.02  # the least speed-up that is worth a change of params.yaml
LEAST_ROUNDS = 5  # rounds against the incumbent before a lead counts
MEMORY_GRAIN = 64 * 2**20  # bytes; needs within the same multiple are equal
LONGER = "a longer --time may show that more can be gained"
NONE_OF_OWN = "none of your own configurations can be trained within the budgets"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice of a search; `to_…` is its time ÷ the time of the other configuration."""

    outcome: Outcome
    name: str
    baseline: str
    incumbent: str  # the fastest of the user's own; without any, the slowest rival
    to_baseline: Estimate
    to_incumbent: Estimate
    pays_from: int | None  # the epoch, as by `find_break_even`
    reason: str = ""
    lost: bool = False  # a configuration of the user's own was lost, and may have been the fastest


def choose(
    race: Race,
    rivals: Sequence[str],
    own: Sequence[str],
    *,
    needs: Mapping[str, Need],
    configs: Mapping[str, PipelineConfig],
    unraced: Sequence[str] = (),
) -> Choice:
    """Choose among `rivals`, which have all raced.

    `own` are the user's configurations; if there are none, any rival may be chosen. `unraced` had
    no time to race. Intervals allow for choosing the best of several.
    """

    def compare(one: str, other: str) -> Estimate:
        return race.ratio(one, other, compared=len(rivals))

    incumbent = race.fastest(own or rivals)
    searched = [name for name in rivals if name not in own]
    lead = {name: compare(name, incumbent) for name in searched}
    ahead = [name for name in searched if not own or _leads(lead[name], LEAST_ROUNDS)]
    name = incumbent
    if ahead:
        fastest = race.fastest([incumbent, *ahead])
        gaps = {each: race.ratio(each, fastest) for each in ahead}
        tied = [each for each, gap in gaps.items() if not gap.above_one and gap.value <= TIE]
        name = _pick_leanest(tied, needs, configs)
    if own:
        baseline = find_baseline(own)
    else:  # the slowest rival that raced with the choice, or the choice itself
        met = [each for each in rivals if race.ratio(each, name).rounds]
        baseline = incumbent = max(met, key=lambda each: race.ratio(each, name).value)
    leads = {each: compare(each, name) for each in searched}
    short = [each for each in leads if _leads(leads[each]) and leads[each].rounds < LEAST_ROUNDS]
    outcome, reason = _conclude(race, incumbent, new=bool(ahead), short=short, unraced=unraced)
    return Choice(
        outcome=outcome,
        name=name,
        baseline=baseline,
        incumbent=incumbent,
        to_baseline=compare(name, baseline),
        to_incumbent=compare(name, incumbent),
        pays_from=find_break_even(race, name, baseline),
        reason="; ".join(filter(None, [reason, NONE_OF_OWN * (outcome == "found" and not own)])),
    )


def _conclude(
    race: Race, incumbent: str, *, new: bool, short: Sequence[str], unraced: Sequence[str]
) -> tuple[Outcome, str]:
    """Return the outcome and its reason; `short` are ahead of the choice after too few rounds."""
    if disturbed := race.disturbed_by():
        return "undecided", disturbed
    if new:
        return "found", f"{_say_late(short)}; {LONGER}" if short else ""
    if is_compute_bound(race, incumbent):
        return "compute-bound", ""
    if unmeasured := [*short, *unraced]:
        return "undecided", _say_late(unmeasured)
    return "kept", ""


def _say_late(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the time was up before `{names[0]}`{more} had raced for {LEAST_ROUNDS} rounds"


def pick_survivors(
    race: Race, rivals: Sequence[str], searched: Sequence[str], *, most: int
) -> list[str]:
    """Pick the rivals that may be the fastest, at most `most` of them from `searched`."""
    left = race.survivors(rivals, most=len(rivals))
    best = race.survivors([name for name in searched if name in left], most=most)
    return [name for name in left if name not in searched or name in best]


def find_baseline(own: Sequence[str]) -> str:
    """Return the configuration that others are compared with: `naive`, or else the first."""
    return BASELINE if BASELINE in own else own[0]


def is_compute_bound(race: Race, name: str) -> bool:
    """Return whether even a free input would certainly shorten training by less than 5 %."""
    to_ceiling = race.ratio(name, CEILING)
    return to_ceiling.rounds > 0 and to_ceiling.high < 1 / (1 - NEGLIGIBLE)


def find_break_even(race: Race, name: str, baseline: str) -> int | None:
    """Return the first epoch, if any, after which no more time was spent than by the baseline."""
    epoch = None if name == baseline else race.break_even(name, baseline)
    return epoch if epoch is not None and epoch <= race.epochs else None


def _leads(lead: Estimate, least_rounds: int = 0) -> bool:
    return lead.below_one and lead.value <= 1 / LEAST_GAIN and lead.rounds >= least_rounds


def _pick_leanest(
    tied: Sequence[str], needs: Mapping[str, Need], configs: Mapping[str, PipelineConfig]
) -> str:
    least = min(needs[name].ram_bytes for name in tied)

    def rank(name: str) -> tuple[float, float, int]:
        memory = (needs[name].ram_bytes - least) // MEMORY_GRAIN
        keys = len(configs[name].model_dump(exclude_defaults=True))
        return memory, needs[name].disk_bytes, keys

    return min(tied, key=rank)


def compose_sentence(choice: Choice, race: Race, need: Need) -> str:
    incumbent = f"`{choice.incumbent}`"
    if choice.outcome == "undecided":
        if race.disturbed_by():
            advice = "Run it again while nothing else runs"
        elif choice.lost:
            advice = "Run the same command to try it again, or remove it from pipelines"
        else:
            advice = "Run the same command to continue, or give a longer --time"
        others = "" if race.disturbed_by() else " of the others"
        so_far = f"so far `{choice.name}` is the fastest{others}"
        return f"{TUNED}: undecided: {choice.reason}; {so_far}. {advice}"
    if choice.outcome == "compute-bound":
        return (
            f"{TUNED}: nothing to gain: with {incumbent} the input takes less than"
            f" {100 * NEGLIGIBLE:.0f} % of a step; the model takes the rest"
        )
    if choice.outcome == "kept":
        return f"{TUNED}: nothing beats {incumbent}"
    epochs = "1 epoch" if race.epochs == 1 else f"{race.epochs:,} epochs"
    parts = [f"{format_seconds(race.seconds(choice.name).value)} for {epochs}"]
    times, low, high = _format_gain(choice.to_baseline)
    if choice.name != choice.baseline and choice.to_baseline.rounds:
        parts.append(f"{times}× {choice.baseline} ({low} to {high})")
    if choice.incumbent != choice.baseline:
        times, *_ = _format_gain(choice.to_incumbent)
        parts.append(f"{times}× {incumbent}")
    spent = [f"{format_bytes(need.disk_bytes)} of disk"] if need.disk_bytes else []
    spent += [f"{format_seconds(need.prepare_s)} of preparation"] if need.prepare_s else []
    if choice.pays_from is not None and choice.pays_from > 1:
        spent.append(f"pays off from epoch {choice.pays_from}")
    clauses = [", ".join(parts), *filter(None, [", ".join(spent), choice.reason])]
    return f"{TUNED}: {'; '.join(clauses)}"


def _format_gain(ratio: Estimate) -> list[str]:
    """Format the speed-up of a training that takes `ratio` of another one's time."""
    digits = 2 if TWO_DIGITS_BELOW * ratio.high > 1 else 1
    ends = (ratio.value, ratio.high, ratio.low)
    return [f"{1 / end:.{digits}f}" if end > 0 else "∞" for end in ends]
