"""The rules' findings about a configuration, and which of the proposed changes can race."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules import RULES, Rule
from throughline.plan.plan import make_plan
from throughline.results.profiling import Effort, Finding
from throughline.settings import PipelineConfig
from throughline.shared.errors import ImpossiblePlan

MOST_TRIED = 3  # per configuration


def find_all(name: str, facts: Facts) -> list[Finding]:
    """Return the findings about configuration `name`, in the order of `RULES`.

    Only the first `MOST_TRIED` changes that can be tried keep a `config` for the race; changes that
    need memory in every run come last.
    """
    found = [each for rule in RULES if (each := _evaluate_rule(rule, name, facts))]
    can_be_tried = [each for each in found if each.config is not None]
    memory = Effort.MEMORY.name.lower()
    left = sorted(can_be_tried, key=lambda each: each.effort == memory)[MOST_TRIED:]
    why = f"not among the first {MOST_TRIED} to try"
    return [replace(each, config=None, untried=why) if each in left else each for each in found]


def _evaluate_rule(rule: Rule, name: str, facts: Facts) -> Finding | None:
    evidence = rule.detect(facts)
    if evidence is None:
        return None
    before, wanted = facts.config.model_dump(), rule.config
    if facts.plan.reads_snapshot and wanted.get("read") == "snapshot":  # only a part of it
        wanted = {"snapshot": wanted["snapshot"]}
    config = PipelineConfig.model_validate({**before, **wanted})
    try:
        plan = make_plan(config, facts.plan.spec)
    except ImpossiblePlan:
        return None
    section = f"pipelines.{name}."
    change = {
        f"{section}{key}": _drop_defaults(key, value)
        for key, value in config.model_dump().items()
        if value != before[key]
    } | {key: value(facts) if callable(value) else value for key, value in rule.other.items()}
    if plan.gather and plan.gather.fraction > facts.stored_fraction:
        change["snapshot.fraction"] = "auto"
    alike = rule.effort != Effort.RESULTS and plan.approximate == facts.plan.approximate
    untried = _find_obstacle(section, change, alike=alike)
    worst = facts.breakdown.worst() if rule.config else None
    return Finding(
        rule=rule.name,
        step=worst.step if worst else rule.params_key,
        params_key=f"{section}{rule.params_key}" if rule.config else rule.params_key,
        evidence=evidence,
        cause=rule.cause,
        fix=", ".join(
            f"{key.removeprefix(section)}: {_to_yaml(value)}" for key, value in change.items()
        )
        or rule.fix,
        change=change,
        effort=rule.effort.name.lower(),
        config=None if untried else config.model_dump(),
        plan=str(plan),
        untried=untried,
    )


def _find_obstacle(section: str, change: Mapping[str, Any], *, alike: bool) -> str:
    if not alike:
        return "it changes the examples, their order or their batches"
    others = [key for key in change if not key.startswith(section)]
    if others:
        return f"it changes {', '.join(others)}, which other stages read"
    return "" if change else "it changes nothing in params.yaml"


def _drop_defaults(key: str, value: Any) -> Any:
    """Drop the parts of a value that are defaults, unless all are."""
    default = PipelineConfig().model_dump()[key]
    if not isinstance(value, dict) or not isinstance(default, dict):
        return value
    return {inner: item for inner, item in value.items() if item != default.get(inner)} or value


def _to_yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_to_yaml(item)}" for key, item in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)
