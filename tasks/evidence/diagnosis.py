"""From numbers to a verdict: is training held up by its input, by how much, which step is the cause, what to change.

With an accelerator, input costs a step what the step waits for it. Without one, input and model share the cores, so
input also slows the model that it never keeps waiting: there the cost is the stall, what a step takes beyond the model
alone. Thresholds follow xprof's input-pipeline analysis (5 % and 20 % of a step); on shared cores the lower one is 15 %,
since two runs of the same step differ by up to 10 % there. Rules are data: cause, the steps it blames, the change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evidence.xspace import Breakdown, IteratorTime

NOT_BOUND_PCT = {"accelerator": 5.0, "shared cores": 15.0}
HIGHLY_BOUND_PCT = 20.0


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The three throughputs [examples/s] and how many cores share the work; `accelerator` is false on a CPU."""

    input_examples_per_s: float
    model_examples_per_s: float
    train_examples_per_s: float
    accelerator: bool

    @property
    def attainable_examples_per_s(self) -> float:
        """The most that training can reach: the lower ceiling, or, where input and model share the cores, their sum of work."""
        if self.accelerator:
            return min(self.input_examples_per_s, self.model_examples_per_s)
        return 1 / (1 / self.input_examples_per_s + 1 / self.model_examples_per_s)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The verdict on one configuration. Utilisation = model-only step time / real step time; stall is the rest."""

    verdict: str
    utilization_pct: float
    stall_pct: float
    wait_pct: float
    binding: str
    attainable_examples_per_s: float
    cause: str
    fix: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """If the costliest blocking step's name contains one of `steps` (or always, when empty), this is the cause and the fix."""

    steps: Sequence[str]
    cause: str
    fix: str


RULES = (
    Rule(
        steps=("decode", "parse", "load"),
        cause="deterministic preprocessing is repeated in every epoch, on the training's critical path",
        fix="read: snapshot (once, then a gather), or cache: {after: …}; without either map: {parallel: cores} and prefetch: 2",
    ),
    Rule(
        steps=("flip", "brightness", "rescale", "gather"),
        cause="augmentation or widening to float holds up the step",
        fix="finish: device, map: {parallel: cores}, prefetch: 2",
    ),
    Rule(steps=("read", "interleave", "shards"), cause="reading holds up the step", fix="interleave: {cycle_length: 4, parallel: auto}, prefetch: 2"),
    Rule(steps=("batch",), cause="stacking single examples holds up the step", fix="vectorize: true"),
    Rule(steps=(), cause="the input pipeline does not keep ahead of training", fix="prefetch: 2"),
)


def diagnose(breakdown: Breakdown, ceilings: Ceilings, *, model_step_ms: float, train_step_ms: float) -> Diagnosis:
    """Judge one configuration from its trace and its three throughputs.

    `train_step_ms` is the real step, `model_step_ms` the same step on a batch that is already there, both from one process.
    """
    utilization = min(100.0, 100 * model_step_ms / train_step_ms)
    stall = 100 - utilization
    wait = 100 * breakdown.wait_ms_mean / train_step_ms if math.isfinite(breakdown.wait_ms_mean) else stall
    cost, least = (wait, NOT_BOUND_PCT["accelerator"]) if ceilings.accelerator else (stall, NOT_BOUND_PCT["shared cores"])
    verdict = "compute-bound" if cost < least else "input-bound" if cost >= HIGHLY_BOUND_PCT else "slightly input-bound"
    worst = costliest(breakdown.iterators, blocking_only=ceilings.accelerator)
    rule = next(rule for rule in RULES if not rule.steps or (worst and any(word in worst.step for word in rule.steps)))
    bound = verdict != "compute-bound"
    shared = "" if ceilings.accelerator else "; input and model share the cores, so the attainable rate is that of their added work"
    return Diagnosis(
        verdict=verdict,
        utilization_pct=utilization,
        stall_pct=stall,
        wait_pct=wait,
        binding="input" if ceilings.input_examples_per_s < ceilings.model_examples_per_s else "model",
        attainable_examples_per_s=ceilings.attainable_examples_per_s,
        cause=f"{worst.step or worst.path.rpartition('::')[2]}: {rule.cause}" if bound and worst else rule.cause if bound else "none in the input",
        fix=rule.fix if bound else "stop tuning the input; a larger batch, steps_per_execution, mixed precision or a faster accelerator help now",
        evidence=f"a step takes {train_step_ms:.2f} ms, the model alone {model_step_ms:.2f} ms; {breakdown.wait_ms_p50:.2f} ms (median) are spent "
        f"waiting for input{shared}",
    )


def costliest(iterators: Sequence[IteratorTime], *, blocking_only: bool) -> IteratorTime | None:
    """The iterator with the largest self time; with `blocking_only`, among those the consumer waits for, if there are any."""
    named = [item for item in iterators if item.step and "Dataset:" not in item.step and not item.path.endswith("::Prefetch")]
    blocking = [item for item in named if item.blocking]
    return max(blocking if blocking_only and blocking else named, key=lambda item: item.self_ms, default=None)
