"""Work done one after another that could run concurrently: with the training, or on more cores."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import Change, rule
from throughline.plan.steps import Gather, Map, Read


@rule(
    params_key="prefetch",
    cause="nothing is prepared while the model computes",
    change=Change(config={"prefetch": 2}),
)
def _no_prefetch(facts: Facts) -> str | None:
    if facts.config.prefetch != "none" or facts.plan.gathers_on_device:
        return None
    serial = facts.load.serial_ms if facts.load else facts.breakdown.wait_ms_mean or 0.0
    return (
        f"{serial:.2f} ms of input run on the training's own thread in each step"
        if facts.is_worthwhile(serial)
        else None
    )


@rule(
    params_key="map.parallel",
    cause="one call runs at a time",
    change=Change(config={"map": {"parallel": "cores"}}),
)
def _sequential_map(facts: Facts) -> str | None:
    if not facts.map_parallelism.is_sequential or facts.cores == 1:
        return None
    if facts.plan.gathers_on_device:  # within the model's step
        return None
    per_example_map = facts.per_example_map()
    steps = [step for step in facts.warm_steps if isinstance(step, Map | Gather)]
    work = facts.decoding_ms() + sum(
        facts.work_ms(op, batched=step is not per_example_map) for step in steps for op in step.ops
    )
    calls = facts.examples_per_step * facts.costs.call_us / 1e3 if per_example_map else 0.0
    return (
        f"its ops take {work:.2f} ms of a step, one call after another, on one of {facts.cores}"
        " cores"
        if facts.is_worthwhile(work) and work > calls
        else None
    )


@rule(
    params_key="vectorize",
    cause="the functions are cheaper than calling them for single examples",
    change=Change(config={"vectorize": True, "map": {"parallel": "none"}}),
)
def _costly_calls(facts: Facts) -> str | None:
    per_example_map = facts.per_example_map()
    if (
        facts.config.vectorize
        or per_example_map is None
        or all(op.takes == "example" for op in per_example_map.ops)
    ):
        return None
    calls = facts.examples_per_step * facts.costs.call_us / 1e3
    work = sum(facts.work_ms(op, batched=False) for op in per_example_map.ops)
    how = "" if facts.map_parallelism.is_sequential else f"in parallel ({facts.map_parallelism}), "
    return (
        f"{facts.examples_per_step:.0f} calls per step, {how}take {facts.costs.call_us:.0f} µs"
        f" each, {calls:.2f} ms, before any work of the ops ({work:.2f} ms)"
        if facts.is_worthwhile(calls) and calls > work / 2
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
    work = facts.examples_per_step * facts.costs.read_us.get(step.source, 0.0) / 1e3
    return (
        f"reading takes {work:.2f} ms of a step, from one file at a time"
        if facts.is_worthwhile(work)
        else None
    )
