"""Sequential work that could run concurrently, with training or on more cores."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import Change, rule
from throughline.plan.steps import Gather, Map, Read


@rule(
    params_key="vectorize",
    cause="the functions may be cheaper than calling them for single examples",
    change=Change(config={"vectorize": True, "map": {"parallel": "none"}, "prefetch": 2}),
)
def _costly_calls(facts: Facts) -> str | None:
    per_example_map = facts.per_example_map()
    if (
        facts.config.vectorize
        or per_example_map is None
        or all(op.takes == "example" for op in per_example_map.ops)
    ):
        return None
    work = facts.work_ms(Map)
    return (
        f"{facts.examples_per_step:.0f} calls per step take {work:.2f} core-ms,"
        f" {1e3 * work / facts.examples_per_step:.0f} µs each"
        if facts.is_worthwhile(work)
        else None
    )


@rule(
    params_key="map.parallel",
    cause="one call runs at a time",
    change=Change(config={"map": {"parallel": "cores"}, "prefetch": 2}),
)
def _sequential_map(facts: Facts) -> str | None:
    if not facts.map_parallelism.is_sequential or facts.cores == 1:
        return None
    if facts.plan.gathers_on_device:  # part of the model's step
        return None
    work = facts.work_ms(Map, Gather)
    return (
        f"its ops take {work:.2f} ms of a step, one call after another, on one of {facts.cores}"
        " cores"
        if facts.is_worthwhile(work)
        else None
    )


@rule(
    params_key="prefetch",
    cause="nothing is prepared while the model computes",
    change=Change(config={"prefetch": 2}),
)
def _no_prefetch(facts: Facts) -> str | None:
    if facts.config.prefetch != "none" or facts.plan.gathers_on_device:
        return None
    wait = facts.breakdown.wait_ms_mean or 0.0
    return (
        f"{wait:.2f} ms of each step wait for a batch that nobody has begun"
        if facts.is_worthwhile(wait)
        else None
    )


@rule(
    params_key="interleave",
    cause="shards are read one after another",
    change=Change(
        config={"interleave": {"cycle_length": 4, "block_length": 16, "parallel": "cores"}}
    ),
)
def _sequential_read(facts: Facts) -> str | None:
    step = facts.plan.steps[0]
    if not isinstance(step, Read) or step.source != "shards" or facts.shard_count == 1:
        return None
    if not step.parallel.is_sequential or facts.plan.caches:
        return None
    work = facts.work_ms(Read)
    return (
        f"reading takes {work:.2f} ms of a step, from one file at a time"
        if facts.is_worthwhile(work)
        else None
    )
