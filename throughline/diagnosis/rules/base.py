"""The form of a rule: when it holds, what it blames, and the exact change that fixes it.

A detector returns the evidence, with numbers, or None. The change is merged into the configuration,
or into other sections of params.yaml; the race measures its gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from throughline.diagnosis.facts import Facts
from throughline.results.profiling import Effort

Detector = Callable[[Facts], str | None]


@dataclass(frozen=True, kw_only=True)
class Change:
    """Values to merge into the configuration, and values of other sections by dotted keys.

    A value of another section may be a function of the facts.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Something that can be wrong: `params_key` is to blame, `cause` says why it costs time."""

    name: str
    params_key: str
    cause: str
    detect: Detector
    change: Change
    effort: Effort
    fix: str  # in words, if the change is outside params.yaml


SNAPSHOT = Change(
    config={
        "read": "snapshot",
        "snapshot": {},
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
        "vectorize": False,
        "deterministic": True,
        "cache": None,
        "interleave": None,
        "service": None,
        "decode": {},
    }
)


def rule(
    *,
    params_key: str,
    cause: str,
    change: Change,
    effort: Effort = Effort.SETTING,
    fix: str = "nothing to change",
) -> Callable[[Detector], Rule]:
    """Make a rule of a detector, named after it without the underscore."""

    def to_rule(detect: Detector) -> Rule:
        return Rule(
            name=detect.__name__.removeprefix("_"),
            params_key=params_key,
            cause=cause,
            detect=detect,
            change=change,
            effort=effort,
            fix=fix,
        )

    return to_rule


def list_rules(topic: ModuleType) -> list[Rule]:
    return [value for value in vars(topic).values() if isinstance(value, Rule)]
