"""Time that training loses but no input pipeline can recover."""

from __future__ import annotations

from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.diagnosis.rules.base import Change, rule
from throughline.results.profiling import GOOD_UTILIZATION_PCT

STEPS_PER_EXECUTION = 8  # for which Python runs once


@rule(
    params_key="train.steps_per_execution",
    cause="the GPU waits for Python and for kernels to be launched",
    change=Change(other={"train.steps_per_execution": STEPS_PER_EXECUTION}),
)
def _gpu_idle(facts: Facts) -> str | None:
    # NVML covers the whole training, with the time between epochs and for compiling kernels; the
    # trace covers single steps.
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
