"""Time that training loses and that no input pipeline gives back."""

from __future__ import annotations

from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.diagnosis.rules.base import Change, rule
from throughline.results.profiling import GOOD_UTILIZATION_PCT

STEPS_PER_EXECUTION = 8  # the Python of so many steps runs once


@rule(
    params_key="train.steps_per_execution",
    cause="the GPU waits for Python and for kernels to be launched",
    change=Change(other={"train.steps_per_execution": STEPS_PER_EXECUTION}),
)
def _gpu_idle(facts: Facts) -> str | None:
    # NVML's is of the whole training, with what lies between epochs and what compiles kernels; the
    # trace's is of single steps.
    trained, traced = facts.gpu_utilization_pct, facts.gpu_busy_pct
    if facts.steps_per_execution >= STEPS_PER_EXECUTION:
        return None
    if trained is None or traced is None or (facts.wait_pct or 0.0) >= WORTH_PCT:
        return None
    if max(trained, traced) >= GOOD_UTILIZATION_PCT:
        return None
    return (
        f"the GPU is busy {traced:.0f} % of a step, and it is not the input that it waits for"
        f" ({facts.wait_pct or 0.0:.1f} % of a step)"
    )
