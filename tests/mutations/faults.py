"""The planted faults of the YAML files next to this one, read and checked."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

FOLDER = Path(__file__).parent


class Fault(BaseModel):
    """A snippet of source, what takes its place, and the tests that are expected to catch that."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    before: str
    after: str
    tests: tuple[str, ...] = Field(default=())


def read_faults(listed: str = "") -> tuple[Fault, ...]:
    """The faults of the list of this file name, or of all."""
    return tuple(
        Fault(name=name, **{**fault, "tests": _as_list(fault.get("tests", []))})
        for file in sorted(FOLDER.glob(listed or "*.yaml"))
        for group in YAML(typ="safe").load(file.read_text()).values()
        for name, fault in group.items()
    )


def _as_list(tests: str | list[str]) -> list[str]:
    return [tests] if isinstance(tests, str) else tests
