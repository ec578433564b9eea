"""The planted faults of tests/mutations/faults.yaml, read and checked."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

FILE = Path(__file__).with_suffix(".yaml")


class Fault(BaseModel):
    """A snippet of source, what takes its place, and the tests that are expected to catch that."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    before: str
    after: str
    tests: tuple[str, ...] = Field(default=())


def read_faults() -> tuple[Fault, ...]:
    """All faults of the list."""
    groups = YAML(typ="safe").load(FILE.read_text())
    return tuple(
        Fault(name=name, **{**fault, "tests": _as_list(fault.get("tests", []))})
        for group in groups.values()
        for name, fault in group.items()
    )


def _as_list(tests: str | list[str]) -> list[str]:
    return [tests] if isinstance(tests, str) else tests


FAULTS = read_faults()
