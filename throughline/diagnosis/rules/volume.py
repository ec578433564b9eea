"""More pixels decoded, or more bytes moved, than the model needs."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import Change, Effort, rule
from throughline.plan.steps import Gather, Map


@rule(
    params_key="decode.ratio",
    cause="images are decoded at full size and then made smaller",
    change=Change(config={"decode": {"ratio": 2}}),
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
    work = facts.work_ms(Map)
    return (
        f"decoding and what follows take {work:.2f} core-ms of a step"
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
    casts = [op.name for step in steps for op in step.ops if op.device and not op.random]
    return (
        f"{', '.join(casts)} on the host makes a batch {facts.batch_mib:,.1f} MiB"
        if casts and facts.is_worthwhile(facts.work_ms(Map, Gather))
        else None
    )
