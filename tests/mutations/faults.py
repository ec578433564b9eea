"""The planted faults of the YAML files next to this one, read and checked."""

import re
from collections.abc import Mapping
from operator import add
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


def read_sources(root: Path) -> dict[Path, str]:
    """The text of every file in which faults are planted."""
    return {
        path: path.read_text()
        for folder in ("throughline", "tasks", "flows", "whowaits")
        for path in sorted((root / folder).rglob("*.py"))
    }


def pattern(snippet: str) -> re.Pattern:
    """What a snippet looks like wherever its lines are broken, with a comma after the last item."""
    first, *others = re.findall(r"\w+|[^\w\s]", snippet)
    gaps = (r",?\s*" if token in ")]}" else r"\s*" for token in others)
    return re.compile(re.escape(first) + "".join(map(add, gaps, map(re.escape, others))))


def find_file(sources: Mapping[Path, str], fault: Fault) -> Path | None:
    """The file in which a fault can be planted; None unless its snippet occurs once in all."""
    snippet = pattern(fault.before)
    longest = max(re.findall(r"\w+", fault.before), key=len)  # found sooner than the whole
    texts = {path: text for path, text in sources.items() if longest in text}
    files = [path for path, text in texts.items() for _ in snippet.finditer(text)]
    return files[0] if len(files) == 1 else None


def plant(text: str, fault: Fault) -> str:
    """The source with the fault in it."""
    return pattern(fault.before).sub(lambda _: fault.after, text)
