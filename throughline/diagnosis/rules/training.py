"""Time that training loses and that no input pipeline gives back."""

from __future__ import annotations

from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.diagnosis.rules.base import Change, rule
from throughline.results.profiling import GOOD_UTILIZATION_PCT


@rule(
    params_key="train.epochs",
    cause="only the first epoch is slow",
    change=Change(),
)
def _cold_start(facts: Facts) -> str | None:
    slower = facts.cold_examples_per_s < 0.7 * facts.input_examples_per_s
    return (
        f"{facts.cold_examples_per_s:,.0f} examples/s in the first pass,"
        f" {facts.input_examples_per_s:,.0f} later; a longer training does not feel it"
        if slower and facts.wait_or_stall_pct < WORTH_PCT
        else None
    )


@rule(
    params_key="train.steps_per_execution",
    cause="the GPU waits for Python and for kernels to be launched",
    change=Change(other={"train.steps_per_execution": 8, "train.jit_compile": True}),
)
def _gpu_idle(facts: Facts) -> str | None:
    used = facts.gpu_utilization_pct
    if used is None or used >= GOOD_UTILIZATION_PCT or facts.wait_or_stall_pct >= WORTH_PCT:
        return None
    return (
        f"the GPU is busy {used:.0f} % of the time, and it is not the input that it waits for"
        f" ({facts.wait_or_stall_pct:.1f} % of a step)"
    )
