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

    Only the first `MOST_TRIED` changes that can be tried keep a `config` for the race.
    """
    found = [each for rule in RULES if (each := _evaluate_rule(rule, name, facts))]
    can_be_tried = [each for each in found if each.config is not None]
    # Changes that need memory in every run come last.
    memory = Effort.MEMORY.name.lower()
    left = sorted(can_be_tried, key=lambda each: each.effort == memory)[MOST_TRIED:]
    why = f"not among the first {MOST_TRIED} to try"
    return [replace(each, config=None, untried=why) if each in left else each for each in found]


def change_config(config: PipelineConfig, values: Mapping[str, Any]) -> PipelineConfig:
    """Replace fields of a configuration; the result is validated as in params.yaml."""
    return PipelineConfig.model_validate({**config.model_dump(), **values})


def _evaluate_rule(rule: Rule, name: str, facts: Facts) -> Finding | None:
    evidence = rule.detect(facts)
    if evidence is None:
        return None
    before, wanted = facts.config.model_dump(), rule.config
    if facts.plan.reads_snapshot and wanted.get("read") == "snapshot":  # only a part of it
        wanted = {"snapshot": wanted["snapshot"]}
    values = {
        key: value
        for key, value in change_config(facts.config, wanted).model_dump().items()
        if value != before[key]
    }
    config = change_config(facts.config, values)
    try:
        plan = make_plan(config, facts.plan.spec)
    except ImpossiblePlan:
        return None
    change = {f"pipelines.{name}.{key}": value for key, value in _drop_defaults(values).items()} | {
        key: value(facts) if callable(value) else value for key, value in rule.other.items()
    }
    if plan.gather and plan.gather.fraction > facts.stored_fraction:
        change["snapshot.fraction"] = "auto"
    alike = rule.effort != Effort.RESULTS and plan.approximate == facts.plan.approximate
    untried = _find_obstacle(name, change, alike=alike)
    worst = facts.breakdown.worst() if rule.config else None
    return Finding(
        rule=rule.name,
        step=worst.step if worst else rule.params_key,
        params_key=f"pipelines.{name}.{rule.params_key}" if rule.config else rule.params_key,
        evidence=evidence,
        cause=rule.cause,
        fix=", ".join(
            f"{key.removeprefix(f'pipelines.{name}.')}: {_to_yaml(value)}"
            for key, value in change.items()
        )
        or rule.fix,
        change=change,
        effort=rule.effort.name.lower(),
        config=None if untried else config.model_dump(),
        plan=str(plan),
        untried=untried,
    )


def _find_obstacle(name: str, change: Mapping[str, Any], *, alike: bool) -> str:
    if not alike:
        return "it changes the examples, their order or their batches"
    others = [key for key in change if not key.startswith(f"pipelines.{name}.")]
    if others:
        return f"it changes {', '.join(others)}, which other stages read"
    return "" if change else "it changes nothing in params.yaml"


def _drop_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
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
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_to_yaml(item)}" for key, item in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)
