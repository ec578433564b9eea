"""The result of a comparison, or of one configuration, as a sentence.

The sentence says what is certain and what is not, and never calls examples or quality the same
without a check. The terminal, the report, Prefect and MLflow show it.
"""

import math
from collections.abc import Mapping, Sequence

from throughline.reporting.ranking import Ranking, count_validation_trials, stderr_of_difference
from throughline.results.comparison import Row
from throughline.results.race import Raced
from throughline.results.train import SIGNIFICANT_STDERRS
from whowaits.timing.verdict import COMPUTE_BOUND, UNDECIDED

NAMES_IN_FULL = 3
TWO_DIGITS_BELOW = 1.15
ENDED_PCT = 5.0  # a stall of at most this is none


def write_headline(ranking: Ranking, rows: Mapping[str, Row]) -> str:
    if len(rows) == 1:
        return _about_one(ranking)
    base, best = ranking.raced[ranking.baseline], ranking.raced[ranking.best]
    if base.contradiction:
        return (
            f"How the configurations compare is undecided, since the figures of"
            f" `{ranking.baseline}` contradict each other: {base.contradiction}."
        )
    if ranking.best not in ranking.winners:
        return _about_no_gain(ranking)
    top, other = rows[ranking.best], rows[ranking.baseline]
    ratio = ranking.gains[ranking.best]
    digits = 2 if ratio.low < TWO_DIGITS_BELOW else 1
    value, low, high = (f"{end:.{digits}f}" for end in (ratio.value, ratio.low, ratio.high))
    gain = f"{value}× as fast ({low} to {high})"
    same = f"{_same_examples(top, other)}, {_same_quality(top, other)}"
    others = [
        name for name in ranking.tied if name not in (ranking.best, ranking.baseline, *ranking.open)
    ]
    more = []
    if best.verdict == UNDECIDED:
        more += [f"how long it still waits is undecided, {_span(best)}"]
    more += [f"{_enumerate(others)} {_are(others)} as fast within the noise"] if others else []
    if ranking.open:
        faster = f"{_enumerate(ranking.open)} {_are(ranking.open)} faster than `{ranking.baseline}`"
        more += [f"whether {faster} is undecided"]
    return f"{_before_and_after(ranking)} {'; '.join([f'{gain}, {same}', *more])}."


def _about_one(ranking: Ranking) -> str:
    name, raced = ranking.baseline, ranking.raced[ranking.baseline]
    rate = f"{raced.training.value:,.0f} examples per second"
    if raced.contradiction:
        return (
            f"How fast `{name}` trains, and whether it waits for its input, is undecided:"
            f" {raced.contradiction}."
        )
    if raced.verdict == UNDECIDED:
        return (
            f"`{name}` trains {rate}; whether it waits for its input is undecided ({_span(raced)}"
            " of the time)."
        )
    if raced.verdict == COMPUTE_BOUND:
        return (
            f"`{name}` trains {rate} and waits for its input {raced.stall_pct:.0f} % of the"
            " time: its model takes the rest, so there is nothing to gain from the input."
        )
    return (
        f"`{name}` waits for its input {raced.stall_pct:.0f} % of the time: it trains {rate}"
        f" of the {raced.model_alone.value:,.0f} that its model could take."
    )


def _about_no_gain(ranking: Ranking) -> str:
    base, name = ranking.raced[ranking.baseline], ranking.baseline
    if names := ranking.open:
        low = min(ranking.gains[each].low for each in names)
        high = max(ranking.gains[each].high for each in names)
        return (
            f"Whether anything trains faster than `{name}` is undecided:"
            f" {_enumerate(names)} {_are(names)} {low:.1f} to {high:.1f}× as fast."
        )
    if unclear := [each for each, raced in ranking.raced.items() if raced.contradiction]:
        return (
            f"Whether anything trains faster than `{name}` is undecided, since the figures of"
            f" {_enumerate(unclear)} contradict each other."
        )
    share = f"{base.stall_pct:.0f} % of the time"
    reason = f"training waits for its input {share}, and none of these configurations changes that"
    if base.verdict == COMPUTE_BOUND:
        reason = f"training waits for its input only {share}; the model takes the rest"
    elif base.verdict == UNDECIDED:
        reason = f"whether training waits for its input is undecided ({_span(base)} of the time)"
    return f"No configuration trains faster than `{name}` beyond the noise: {reason}."


def _before_and_after(ranking: Ranking) -> str:
    base, best = ranking.raced[ranking.baseline], ranking.raced[ranking.best]
    share = _span(base) if base.verdict == UNDECIDED else f"{base.stall_pct:.0f} %"
    before = f"Training waits for its input {share} of the time"
    if base.verdict == COMPUTE_BOUND:
        return f"{before} only, but `{ranking.best}` is"
    if UNDECIDED in (base.verdict, best.verdict) or best.stall_pct >= base.stall_pct:
        return f"{before}. `{ranking.best}` is"
    if best.stall_pct <= ENDED_PCT:
        return f"{before}. `{ranking.best}` ends that:"
    return f"{before}. `{ranking.best}` brings that to {best.stall_pct:.0f} %:"


def _span(raced: Raced) -> str:
    return f"{raced.stall_pct_low:.0f} to {raced.stall_pct_high:.0f} %"


def _same_examples(top: Row, base: Row) -> str:
    """Say what both have in common: the examples, the examples but for pixels, or the data."""
    drawn = [row.pipeline for row in (base, top) if row.drawn_by_class]
    what = "the same data" if drawn else "same examples"
    apart = [row.difference_mean for row in (base, top) if row.difference_mean is not None]
    if apart:
        what = f"examples whose pixels differ by {max(apart):.2f} of 256 levels on average"
    return f"{what}, drawn by class in {_enumerate(drawn)}" if drawn else what


def _same_quality(top: Row, base: Row) -> str:
    """Say whether the quality is the same (accuracies: within chance); otherwise, give figures."""
    ours, theirs = top.val_metric, base.val_metric
    trials = count_validation_trials(top)
    if top.test_metric is not None and base.test_metric is not None:
        ours, theirs, trials = top.test_metric, base.test_metric, top.held_out.trials
    if top.metric == "accuracy":
        allowed = SIGNIFICANT_STDERRS * stderr_of_difference((ours + theirs) / 2, trials)
        if abs(ours - theirs) <= allowed:
            return "same accuracy"
    elif math.isclose(ours, theirs, rel_tol=1e-3):
        return f"same {top.metric}"
    return f"{top.metric} {ours:.4g} instead of {theirs:.4g}{_other_order(top, base)}"


def _other_order(top: Row, base: Row) -> str:
    mixed = [
        f"`{row.pipeline}` mixes {row.mixed_examples:,} of {row.examples:,} examples at a time"
        for row in (base, top)
        if row.mixed_examples is not None and row.mixed_examples < row.examples
    ]
    return f" ({'; '.join(mixed)})" if mixed and base.mixed_examples != top.mixed_examples else ""


def _enumerate(names: Sequence[str]) -> str:
    """List names as in a sentence; count those beyond the first few.

    >>> _enumerate(["a"]), _enumerate(["a", "b"]), _enumerate(["a", "b", "c", "d"])
    ('`a`', '`a` and `b`', '`a`, `b` and 2 others')
    """
    shown = [f"`{name}`" for name in names]
    if len(shown) > NAMES_IN_FULL:
        shown = [*shown[: NAMES_IN_FULL - 1], f"{len(names) - NAMES_IN_FULL + 1} others"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
