"""From numbers to a verdict: is training held up by its input, by how much, what is the cause, what
to change, what that gains.

The cost of input is the stall: the time of a step beyond the model alone, whether it waits or input
and model share the cores. Whether that is a verdict is `verdict.py`'s; what can be wrong is
in `rules/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from throughline.diagnosis.cost_model import (
    MIN_CALIBRATION,
    ModelStepCost,
    OpCost,
    calibration_factor,
    estimate_load,
    predict_step_ms,
)
from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.diagnosis.rules import RULES, Effort, Rule
from throughline.measurement.verdict import judge
from throughline.plan.plan import Plan, make_plan
from throughline.results.profiling import GOOD_UTILIZATION_PCT, Diagnosis, Finding
from throughline.settings import PipelineConfig
from throughline.shared.errors import ImpossiblePlan
from whowaits.timing.verdict import COMPUTE_BOUND, UNDECIDED

# Rules that explain a wait whose end nothing here can predict.
GPU_IDLE = "gpu_idle"  # which a training can be that waits for nothing
UNPREDICTABLE_RULES = ("slow_service", GPU_IDLE)
TIE_FACTOR = 1.05  # predictions within this factor are alike: then the smaller change comes first
# Calibration factors up to which a prediction has high and medium confidence.
HIGH_CONFIDENCE_MAX, MEDIUM_CONFIDENCE_MAX = 1.3, 2.0
FIX_WHEN_COMPUTE_BOUND = (
    "stop tuning the input: a larger batch_size, train.steps_per_execution, train.mixed_precision,"
    " train.jit_compile or a faster accelerator help now"
)
FIX_WHEN_CORES_ARE_SHARED = (
    "no change of this configuration gains much: less work in its ops, more cores, or an"
    " accelerator for the model help now"
)
FIX_WHEN_UNKNOWN = (
    "look at the timeline, and at what else uses the disk, the memory and the cores of this machine"
)


def attainable_rate(input_rate: float, model_rate: float, *, on_accelerator: bool) -> float:
    """The most that training can reach [examples/s], by what the input alone and the model alone
    do: the lower ceiling or, on a CPU, where both share the cores, their sum of work.
    """
    if on_accelerator:
        return min(input_rate, model_rate)
    return 1 / (1 / input_rate + 1 / model_rate)


def diagnose(
    name: str, facts: Facts, model_step: ModelStepCost, *, model_examples_per_s: float
) -> Diagnosis:
    """Judge the configuration `name` from what was measured, of the model alone its rate, too;
    findings come with the one to act on first.
    """
    verdict = judge(facts.stall, facts.cross_check, on_accelerator=facts.on_accelerator)
    findings = rank_findings(
        [finding for rule in RULES if (finding := _evaluate_rule(rule, name, facts, model_step))]
    )
    bound = verdict.name != COMPUTE_BOUND
    first = _find_first(findings, bound=bound)
    if verdict.name == UNDECIDED:
        cause, fix = verdict.cause, verdict.fix
    elif first:
        cause, fix = f"{first.step}: {first.cause} ({first.evidence})", first.fix
    else:
        cause, fix = _describe_unknown(facts, bound=bound)
    return Diagnosis(
        verdict=verdict.name,
        utilization_pct=100 - facts.stall_pct,
        stall_pct=facts.stall_pct,
        wait_pct=facts.wait_pct,
        attainable_examples_per_s=attainable_rate(
            facts.input_examples_per_s, model_examples_per_s, on_accelerator=facts.on_accelerator
        ),
        cause=cause,
        fix=fix,
        evidence=_describe_step(facts),
        predicted_gain=first.predicted_gain if first and verdict.name != UNDECIDED else None,
        findings=tuple(findings),
    )


def _find_first(findings: Sequence[Finding], *, bound: bool) -> Finding | None:
    """What to act on first: where the input holds training up (`bound`), what gains most; else
    what explains a wait whose end cannot be predicted.
    """
    worth = 1 + WORTH_PCT / 100
    gaining = (each for each in findings if bound and (each.predicted_gain or 0) > worth)
    unexplained = UNPREDICTABLE_RULES if bound else (GPU_IDLE,)
    unpredictable = (each for each in findings if each.rule in unexplained)
    return next(gaining, None) or next(unpredictable, None)


def _describe_unknown(facts: Facts, *, bound: bool) -> tuple[str, str]:
    """Cause and fix where no rule names one."""
    if not bound:
        return "none in the input", FIX_WHEN_COMPUTE_BOUND
    if facts.on_accelerator:
        return "no rule explains it", FIX_WHEN_UNKNOWN
    return "input and model compete for the same cores", FIX_WHEN_CORES_ARE_SHARED


def _describe_step(facts: Facts) -> str:
    """What was measured of a step."""
    wait = facts.breakdown.wait_ms_mean
    sentences = [
        f"a step takes {facts.train_step_ms:.2f} ms, the model alone {facts.model_step_ms:.2f} ms",
        "the trace shows no wait"
        if wait is None
        else f"{wait:.2f} ms of a step, on average, are spent waiting for input",
    ]
    if facts.stall_pct > 100 - GOOD_UTILIZATION_PCT:
        sentences.append(f"utilization is below {GOOD_UTILIZATION_PCT:.0f} %")
    if not facts.on_accelerator:
        sentences.append(
            "input and model share the cores, so the attainable rate is that of their added work"
        )
    return "; ".join(sentences)


def rank_findings(findings: list[Finding]) -> list[Finding]:
    """The smallest change among those that gain as much as the best, then the rest by gain; what
    gains nothing known comes last.
    """
    most = max((finding.predicted_gain or 1.0 for finding in findings), default=1.0)

    def order(finding: Finding) -> tuple[bool, int, float]:
        gain = finding.predicted_gain or 1.0
        enough = gain * TIE_FACTOR >= most
        return not enough, Effort[finding.effort.upper()] if enough else 0, -gain

    return sorted(findings, key=order)


def change_config(config: PipelineConfig, values: Mapping[str, Any]) -> PipelineConfig:
    """The configuration with some fields replaced, checked as if it stood in params.yaml."""
    return PipelineConfig.model_validate({**config.model_dump(), **values})


def _evaluate_rule(
    rule: Rule, name: str, facts: Facts, model_step: ModelStepCost
) -> Finding | None:
    """The rule's finding, if it holds and its change is possible."""
    evidence = rule.detect(facts)
    if evidence is None:
        return None
    before, wanted = facts.config.model_dump(), rule.change.config
    if facts.plan.reads_snapshot and wanted.get("read") == "snapshot":  # the rest of it is wanted
        wanted = {"snapshot": wanted["snapshot"]}
    values = {
        key: value
        for key, value in change_config(facts.config, wanted).model_dump().items()
        if value != before[key]
    }
    try:
        plan = make_plan(change_config(facts.config, values), facts.plan.spec)
    except ImpossiblePlan:
        return None
    gain = _gain(rule, facts, model_step, plan)
    change = {f"pipelines.{name}.{key}": value for key, value in _drop_defaults(values).items()} | {
        key: value(facts) if callable(value) else value for key, value in rule.change.other.items()
    }
    if plan.gather and plan.gather.fraction > facts.stored_fraction:
        change["snapshot.fraction"] = "auto"
    worst = facts.breakdown.worst() if rule.change.config else None
    return Finding(
        rule=rule.name,
        step=worst.step if worst else rule.params_key,
        params_key=f"pipelines.{name}.{rule.params_key}" if rule.change.config else rule.params_key,
        evidence=evidence,
        cause=rule.cause,
        fix=", ".join(
            f"{key.removeprefix(f'pipelines.{name}.')}: {_to_yaml(value)}"
            for key, value in change.items()
        )
        or rule.fix,
        change=change,
        effort=rule.effort.name.lower(),
        predicted_gain=gain,
        confidence=_confidence(facts, model_step) if gain is not None else "unknown",
    )


def _gain(rule: Rule, facts: Facts, model_step: ModelStepCost, plan: Plan) -> float | None:
    """Predicted training throughput after the change, as a factor; from the measured step where the
    model does not know the plan as it is.
    """
    if rule.change.saved_ms is not None:
        saved_ms = rule.change.saved_ms(facts)
        return facts.train_step_ms / max(facts.model_step_ms, facts.train_step_ms - saved_ms)
    if not rule.change.config:
        return None
    cheaper = {
        op: OpCost(
            example_us=cost.example_us * rule.change.factors.get(op, 1), batch_us=cost.batch_us
        )
        for op, cost in facts.costs.ops.items()
    }
    after = estimate_load(
        plan,
        replace(facts.costs, ops=cheaper),
        cores=facts.cores,
        examples_per_step=facts.examples_per_step if plan.batching else None,
    )
    model_after = _predict_model_step(plan, facts, model_step)
    if rule.change.model_factor is not None:
        model_after = model_after.scale(rule.change.model_factor(facts))
    if after is None or (after, model_after) == (facts.load, model_step):
        return None  # the cost model does not see what such a change does
    calibration, before = 1.0, facts.train_step_ms
    if facts.load:
        calibration = calibration_factor(
            facts.load, model_step, facts.cores, measured_ms=facts.train_step_ms
        )
        before = predict_step_ms(facts.load.scale(calibration), model_step, facts.cores)
    return before / predict_step_ms(after.scale(calibration), model_after, facts.cores)


def _predict_model_step(plan: Plan, facts: Facts, model_step: ModelStepCost) -> ModelStepCost:
    """The model's step with what the plan moves into it or out of it; an accelerator does that in
    no time.
    """
    if facts.on_accelerator:
        return model_step
    moved = sum(facts.work_ms(op, batched=True) for op in plan.device_ops) - sum(
        facts.work_ms(op, batched=True) for op in facts.plan.device_ops
    )
    return replace(
        model_step,
        step_ms=model_step.step_ms + moved / facts.cores,
        core_ms=model_step.core_ms + moved,
    )


def _confidence(facts: Facts, model_step: ModelStepCost) -> str:
    """How well the model explains the step as it is: by how far its calibration is from 1; not at
    all where not even the least factor gives a step as short.
    """
    if facts.load is None:
        return "low"
    calibration = calibration_factor(
        facts.load, model_step, facts.cores, measured_ms=facts.train_step_ms
    )
    shortest = predict_step_ms(facts.load.scale(MIN_CALIBRATION), model_step, facts.cores)
    if calibration > MEDIUM_CONFIDENCE_MAX or shortest > TIE_FACTOR * facts.train_step_ms:
        return "low"
    return "high" if calibration <= HIGH_CONFIDENCE_MAX else "medium"


def _drop_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values without what is a default anyway."""
    defaults = PipelineConfig().model_dump()
    return {
        key: (
            {
                inner: item
                for inner, item in value.items()
                if not isinstance(defaults[key], dict) or item != defaults[key].get(inner)
            }
            or value
            if isinstance(value, dict)
            else value
        )
        for key, value in values.items()
    }


def _to_yaml(value: Any) -> str:
    """A value as it is in params.yaml."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_to_yaml(item)}" for key, item in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)
