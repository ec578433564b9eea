"""More pixels decoded, or more bytes moved, than the model needs."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import Change, Effort, rule
from throughline.plan.steps import Gather, Map


@rule(
    params_key="decode.ratio",
    cause="images are decoded at full size and then made smaller",
    change=Change(config={"decode": {"ratio": 2}}, factors={"decode": 0.6}),
    effort=Effort.RESULTS,
)
def _decode_bound(facts: Facts) -> str | None:
    decode = next(
        (
            op
            for step in facts.map_steps
            for op in step.ops
            if op.name == "decode" and hasattr(op, "dct")
        ),
        None,
    )
    resized = any(op.name == "resize" for step in facts.map_steps for op in step.ops)
    if decode is None or not resized or facts.config.decode.ratio > 1 or facts.plan.caches:
        return None
    work = facts.work_ms(decode, batched=False)
    return (
        f"decoding takes {work:.2f} core-ms of a step"
        if facts.is_worthwhile(work / facts.cores)
        else None
    )


@rule(
    params_key="postprocess_on",
    cause="numbers are widened on the host, where they cost cores, memory and the way to the"
    " device",
    change=Change(config={"postprocess_on": "device"}),
)
def _host_widening(facts: Facts) -> str | None:
    if facts.config.postprocess_on == "device" or facts.plan.device_ops:
        return None
    if facts.plan.gathers_on_device:
        return None
    steps = [step for step in facts.warm_steps if isinstance(step, Map | Gather)]
    per_example_map = facts.per_example_map()
    casts = [(op, step) for step in steps for op in step.ops if op.device and not op.random]
    work = sum(facts.work_ms(op, batched=step is not per_example_map) for op, step in casts)
    names = ", ".join(op.name for op, _ in casts)
    evidence = (
        f"{names} on the host takes {work:.2f} core-ms of a step and makes a batch"
        f" {facts.batch_mib:,.1f} MiB"
    )
    return (
        evidence
        if casts
        and (
            facts.is_worthwhile(work)
            or (facts.on_accelerator and facts.is_worthwhile(facts.breakdown.gpu_copy_ms or 0.0))
        )
        else None
    )
