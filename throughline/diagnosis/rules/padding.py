"""Work on padding, which the model does like any other."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import Change, rule


def _saved_ms(facts: Facts) -> float:
    """Time of the model's step that goes into padding which buckets would not have."""
    now, then = facts.padding_pct or 0.0, facts.padding_pct_in_buckets or 0.0
    return facts.model_step_ms * max(0.0, now - then) / 100


@rule(
    params_key="batch.pad_to",
    cause="each batch is as long as its longest sequence, so steps differ, too",
    change=Change(config={"batch": {"pad_to": "auto"}}, saved_ms=_saved_ms),
)
def _padding(facts: Facts) -> str | None:
    now, then = facts.padding_pct, facts.padding_pct_in_buckets
    if now is None or then is None or facts.config.batch is not None:
        return None
    return (
        f"{now:.0f} % of what the model computes on is padding, {then:.0f} % in buckets of doubling"
        " length"
        if facts.is_worthwhile(_saved_ms(facts))
        else None
    )
