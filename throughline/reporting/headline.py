"""The result of a comparison, or of one configuration, in a sentence that can be read aloud.

It says what is certain, names what is not, and never calls examples or a model's quality the same
without a check. Terminal, report, Prefect and MLflow all show this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from throughline.reporting.ranking import (
    count_validation_trials,
    find_baseline,
    find_best,
    find_tied,
    find_winners,
    ratio_interval,
    relative_rate,
    stderr_of_difference,
)
from throughline.results.comparison import MeasuredRow, list_machines
from throughline.results.train import SIGNIFICANT_STDERRS
from whowaits.timing.verdict import COMPUTE_BOUND, UNDECIDED

# Two configurations whose ratio may be 1 are as fast as each other, unless its interval is so wide,
# high end to low end, that it says nothing.
WIDE = 1.3
NAMES_IN_FULL = 3
TWO_DIGITS_BELOW = 1.15


def write_headline(rows: Sequence[MeasuredRow]) -> str:
    """The result in words, for one configuration or several."""
    if len(rows) == 1:
        return _about_one(rows[0])
    if len(list_machines(rows)) > 1:
        return (
            "Which configuration trains fastest is undecided: they were measured on different"
            " machines."
        )
    base, top = find_baseline(rows), find_best(rows)
    undecided = find_undecided(rows)
    if top not in find_winners(rows):
        return _about_no_gain(rows, base, undecided)
    gain = f"{_times(top, base, rows)}, {_same_examples(top, base)}, {_same_quality(top, base)}"
    others = [
        name for name in find_tied(rows) if name not in (top.pipeline, base.pipeline, *undecided)
    ]
    more = []
    if top.verdict == UNDECIDED:
        left = f"{top.stall_pct_low:.0f} to {top.stall_pct_high:.0f} %"
        more += [f"how long it still waits is undecided, {left}"]
    more += [f"{_enumerate(others)} {_be(others)} as fast within the noise"] if others else []
    more += [_say_undecided(rows, undecided)] if undecided else []
    return f"{_before_and_after(base, top)} {gain}{''.join(f'; {each}' for each in more)}."


def find_undecided(rows: Sequence[MeasuredRow]) -> list[str]:
    """Configurations of which it is open whether they are faster than the baseline: the interval of
    that ratio holds 1 and is wide.
    """
    base = find_baseline(rows)
    return [row.pipeline for row in rows if row is not base and _is_open(row, base, rows)]


def find_measure_again(rows: Sequence[MeasuredRow]) -> list[str]:
    """Configurations whose measurement is worth doing again: whose gain or verdict is undecided,
    and what was measured while other processes took what it might have used.
    """
    undecided = find_undecided(rows)
    return [
        row.pipeline
        for row in rows
        if row.pipeline in undecided or row.verdict == UNDECIDED or row.disturbed_by
    ]


def _is_open(row: MeasuredRow, other: MeasuredRow, rows: Sequence[MeasuredRow]) -> bool:
    low, high = ratio_interval(row, other, among=rows)
    return low <= 1 <= high and high >= WIDE * low


def _about_one(row: MeasuredRow) -> str:
    rate = f"{relative_rate(row) * row.reference_examples_per_s:,.0f} examples per second"
    if row.verdict == UNDECIDED:
        span = f"{row.stall_pct_low:.0f} to {row.stall_pct_high:.0f} % of the time"
        return (
            f"`{row.pipeline}` trains {rate}; whether it waits for its input is undecided"
            f" ({row.contradiction or span}{_by_whom([row], [row.pipeline])})."
        )
    if row.verdict == COMPUTE_BOUND:
        return (
            f"`{row.pipeline}` trains {rate} and waits for its input {row.stall_pct:.0f} % of the"
            " time: its model takes the rest, so there is nothing to gain from the input."
        )
    return (
        f"`{row.pipeline}` waits for its input {row.stall_pct:.0f} % of the time: it trains {rate}"
        f" of the {row.model_examples_per_s:,.0f} that its model could take."
    )


def _about_no_gain(rows: Sequence[MeasuredRow], base: MeasuredRow, undecided: Sequence[str]) -> str:
    if undecided:
        measured = [row for row in rows if row is not base]
        spans = [
            ratio_interval(row, base, among=rows) for row in measured if row.pipeline in undecided
        ]
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        return (
            f"Whether anything trains faster than `{base.pipeline}` is undecided:"
            f" {_enumerate(undecided)} {_be(undecided)} {low:.1f} to {high:.1f}× as fast"
            f"{_by_whom(rows, [*undecided, base.pipeline])}."
        )
    reason = {
        COMPUTE_BOUND: (
            f"training waits for its input only {base.stall_pct:.0f} % of the time, the model"
            " takes the rest"
        ),
        UNDECIDED: (
            "and whether training waits for its input is undecided"
            f" ({base.stall_pct_low:.0f} to {base.stall_pct_high:.0f} % of the time)"
        ),
    }.get(
        base.verdict,
        f"training waits for its input {base.stall_pct:.0f} % of the time, and none of these"
        " configurations changes that",
    )
    return f"No configuration trains faster than `{base.pipeline}` beyond the noise: {reason}."


def _before_and_after(base: MeasuredRow, top: MeasuredRow) -> str:
    """How much is waited with the baseline, and what the best configuration makes of it."""
    share = (
        f"{base.stall_pct_low:.0f} to {base.stall_pct_high:.0f}"
        if base.verdict == UNDECIDED
        else f"{base.stall_pct:.0f}"
    )
    before = f"Training waits for its input {share} % of the time"
    if base.verdict == COMPUTE_BOUND:
        return f"{before} only, and still `{top.pipeline}` is"
    if top.verdict == COMPUTE_BOUND:
        return f"{before}. `{top.pipeline}` ends that:"
    if top.verdict == UNDECIDED or top.stall_pct >= base.stall_pct:
        return f"{before}. `{top.pipeline}` is"
    return f"{before}. `{top.pipeline}` brings that to {top.stall_pct:.0f} %:"


def _times(top: MeasuredRow, base: MeasuredRow, rows: Sequence[MeasuredRow]) -> str:
    """How many times as fast, with its interval."""
    low, high = ratio_interval(top, base, among=rows)
    digits = 2 if low < TWO_DIGITS_BELOW else 1
    ratio = relative_rate(top) / relative_rate(base)
    return f"{ratio:.{digits}f}× as fast ({low:.{digits}f} to {high:.{digits}f})"


def _same_examples(top: MeasuredRow, base: MeasuredRow) -> str:
    """Their digests were compared, or of approximate decoding the pixels; what sampling draws of
    the same data is not the same.
    """
    drawn = [row.pipeline for row in (base, top) if row.drawn_by_class]
    what = "the same data" if drawn else "same examples"
    differences = [row.difference_mean for row in (base, top) if row.difference_mean is not None]
    if differences:
        most = max(differences)
        what = f"examples whose pixels differ by {most:.2f} of 256 levels on average"
    return f"{what}, drawn by class in {_enumerate(drawn)}" if drawn else what


def _same_quality(top: MeasuredRow, base: MeasuredRow) -> str:
    """Whether the model became as good: within chance where the metric is a share, else in
    figures.
    """
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


def _other_order(top: MeasuredRow, base: MeasuredRow) -> str:
    """What of the order of examples may be why a model became better or worse."""
    mixed = [
        f"`{row.pipeline}` mixes {row.mixed_examples:,} of {row.examples:,} examples at a time"
        for row in (base, top)
        if row.mixed_examples is not None and row.mixed_examples < row.examples
    ]
    return f" ({'; '.join(mixed)})" if mixed and base.mixed_examples != top.mixed_examples else ""


def _say_undecided(rows: Sequence[MeasuredRow], names: Sequence[str]) -> str:
    base = find_baseline(rows).pipeline
    faster = f"{_enumerate(names)} {_be(names)} faster than `{base}`"
    why = next((row.contradiction for row in rows if row.pipeline in names), "")
    return f"whether {faster} is undecided{why and f' ({why})'}{_by_whom(rows, names)}"


def _by_whom(rows: Sequence[MeasuredRow], names: Sequence[str]) -> str:
    """What disturbed the measurement of any of the named configurations."""
    who = dict.fromkeys(row.disturbed_by for row in rows if row.pipeline in names)
    named = " and ".join(each for each in who if each)
    return f", disturbed by {named}" if named else ""


def _enumerate(names: Sequence[str]) -> str:
    """Names as people list them; many are counted.

    >>> _enumerate(["a"]), _enumerate(["a", "b"]), _enumerate(["a", "b", "c", "d"])
    ('`a`', '`a` and `b`', '`a`, `b` and 2 others')
    """
    shown = [f"`{name}`" for name in names]
    if len(shown) > NAMES_IN_FULL:
        shown = [*shown[: NAMES_IN_FULL - 1], f"{len(names) - NAMES_IN_FULL + 1} others"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
