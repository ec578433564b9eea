"""Waits for the slowest call, in which no core is busy."""

from __future__ import annotations

from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.diagnosis.rules.base import Change, Effort, rule


@rule(
    params_key="deterministic",
    cause="a parallel map that keeps the order waits for its slowest call",
    change=Change(config={"deterministic": False}),
    effort=Effort.RESULTS,
)
def _variable_cost(facts: Facts) -> str | None:
    if not facts.config.deterministic or facts.map_parallelism.is_sequential:
        return None
    maps = [
        item
        for item in facts.breakdown.iterators
        if "Map" in item.path.rpartition("::")[2] and item.named and item.critical_pct > WORTH_PCT
    ]
    call = next(
        (item for item in maps if item.call_ms_p95 > 3 * item.call_ms_p50 and item.call_ms_p95 > 1),
        None,
    )
    return (
        f"a call of {call.step} takes {call.call_ms_p50:.1f} ms (median) to {call.call_ms_p95:.1f}"
        " ms (p95): stragglers block in-order delivery"
        if call
        else None
    )
