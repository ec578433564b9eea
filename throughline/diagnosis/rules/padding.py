"""Work on padding, which the model does as on any token."""

from __future__ import annotations

from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.diagnosis.rules.base import Change, Effort, rule


def _work_left(facts: Facts) -> float:
    """Return the fraction of the model's work that is left with buckets."""
    now, then = facts.padding_pct or 0.0, facts.padding_pct_in_buckets or 0.0
    return min(1.0, (100 - now) / (100 - then))


@rule(
    params_key="batch.pad_to",
    cause="each batch is as long as its longest sequence, so steps differ, too",
    change=Change(config={"batch": {"pad_to": "auto"}}),
    effort=Effort.RESULTS,
)
def _padding(facts: Facts) -> str | None:
    now, then = facts.padding_pct, facts.padding_pct_in_buckets
    if now is None or then is None or facts.config.batch is not None:
        return None
    return (
        f"{now:.0f} % of what the model computes on is padding, {then:.0f} % in buckets of doubling"
        " length"
        if 100 * (1 - _work_left(facts)) >= WORTH_PCT
        else None
    )
