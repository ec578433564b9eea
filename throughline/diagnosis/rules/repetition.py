"""Work that every epoch repeats with the same result."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import SNAPSHOT, Change, Effort, rule
from throughline.plan.steps import Gather, Map


@rule(
    params_key="read",
    cause="every epoch repeats the preprocessing",
    change=SNAPSHOT,
    effort=Effort.DISK,
)
def _repeated_work(facts: Facts) -> str | None:
    if facts.plan.reads_whole_snapshot or facts.plan.caches:
        return None
    work = facts.work_ms(Map, Gather)
    return (
        f"the ops take {work:.2f} core-ms of every step; of the deterministic ones the result is"
        " the same in every epoch"
        if facts.is_worthwhile(work)
        else None
    )


@rule(
    params_key="cache",
    cause="every epoch repeats the preprocessing",
    change=Change(config={"cache": {"where": "memory", "after": "preprocess"}}),
    effort=Effort.MEMORY,
)
def _no_cache(facts: Facts) -> str | None:
    repeated = _repeated_work.detect(facts)
    fits = facts.stored_mib < facts.available_memory_mib / 2 and facts.plan.service is None
    return (
        f"{repeated}; its results take {facts.stored_mib:,.0f} MiB" if repeated and fits else None
    )
