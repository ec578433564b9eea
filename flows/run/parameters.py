"""Flow parameters as typed values, from which the Prefect UI's form and the command line are made.

A form shows the values of params.yaml at the time of deploying; a run with an unchanged form is a
run without changes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.run.access_policy import as_mapping, is_confined
from throughline.config.params import ParamsDocument
from throughline.config.params_file import PARAMS_FILE, read_yaml
from throughline.shared.errors import UserError, WorkspaceProblem

LONGEST_NAME = 64
NAME_PATTERN = (  # for a run's name, which becomes a folder and a git reference
    rf"^[A-Za-z0-9][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}$"
)
OVERRIDE = re.compile(r"^[A-Za-z_][\w-]*(\.[\w-]+)*=[^\n\r]*$")  # KEY=VALUE with a dotted key
OVERLAYS = ("infra/demo", "infra/presets")


NO_PRESET = "none"
LARGEST_NUMBER = 1e15
NUMBERS = {  # fields of the form, and their keys in params.yaml
    "epochs": "train.epochs",
    "batch_size": "batch_size",
    "learning_rate": "train.learning_rate",
}


def _read(file: str | Path) -> dict[str, Any]:
    """Read a document; empty if it cannot be read, which the run itself reports."""
    try:
        return read_yaml(Path(file))
    except (UserError, OSError):
        return {}


def _configurations(*documents: Mapping[str, Any]) -> list[str]:
    sections = [one.get(key) for one in documents for key in ("pipelines", "pipelines!")]
    return list(dict.fromkeys(str(name) for one in sections for name in as_mapping(one)))


def find_numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form's numbers; defaults replace those missing, not numeric or too large."""
    defaults = {name: field.default for name, field in ParamsDocument.model_fields.items()}
    numbers = {}
    for name, key in NUMBERS.items():
        *section, last = key.split(".")
        given = as_mapping(document.get(section[0])) if section else document
        default = getattr(defaults[section[0]], last) if section else defaults[last]
        value = given.get(last)
        is_shown = isinstance(value, int | float) and abs(value) < LARGEST_NUMBER
        numbers[name] = value if is_shown else default
    return numbers


def _overlays() -> list[str]:
    return sorted(str(path) for folder in OVERLAYS for path in Path(folder).glob("*.yaml"))


def form_sources() -> dict[Path, int]:
    """Return the files that the forms are made from, and when each was changed [ns since 1970]."""
    changed_at = {}
    for file in (PARAMS_FILE, *map(Path, _overlays())):
        with contextlib.suppress(FileNotFoundError):  # missing for a moment during a checkout
            changed_at[file] = file.stat().st_mtime_ns
    return changed_at


_OWN = _read(PARAMS_FILE)
_OWN_NUMBERS = find_numbers(_OWN)
OWN_PIPELINES = _configurations(_OWN)
NO_PIPELINES: list[str] = []
_PIPELINE_NAMES = _configurations(_OWN, *map(_read, _overlays()))
PREFERRED = "optimized"  # the form's default if it exists

# The form offers the names and the server checks them, but they are not part of the type: an
# overlay can add configurations, so only the run knows all of them.
Pipeline = Annotated[
    str, Field(json_schema_extra={"enum": [*_PIPELINE_NAMES]} if _PIPELINE_NAMES else None)
]

if TYPE_CHECKING:
    DEFAULT_PIPELINE: str
    Overlay = str
else:
    Overlay = Literal[(NO_PRESET, *_overlays())]
    DEFAULT_PIPELINE = PREFERRED if PREFERRED in OWN_PIPELINES else (PREFERRED, *OWN_PIPELINES)[-1]

# Empty: the flow run's own name.
RunName = Annotated[str, Field(pattern=rf"^$|{NAME_PATTERN}")]


class Changes(BaseModel):
    """Changes to params.yaml for this run only. With any change the run has a git worktree of its
    own and becomes a DVC experiment; unchanged fields have no effect.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    preset: Overlay = NO_PRESET
    """a file of this project to merge into params.yaml: other data, other configurations"""
    epochs: int = Field(default=_OWN_NUMBERS["epochs"], ge=1, le=100_000)
    """passes over the training split"""
    batch_size: int = Field(default=_OWN_NUMBERS["batch_size"], ge=1, le=1_000_000)
    """examples per step"""
    learning_rate: float = Field(default=_OWN_NUMBERS["learning_rate"], gt=0, le=10)
    """highest learning rate"""
    overrides: list[Annotated[str, Field(pattern=OVERRIDE.pattern)]] = Field(default=[])
    """any other key as KEY=VALUE, e.g. pipelines.naive.prefetch=2 or data.path=my/photos"""
    overlay: dict[str, Any] = Field(default={})
    """mappings to merge into params.yaml, as JSON"""

    def overlays(self) -> dict[str, Mapping[str, Any]]:
        """Return preset and overlay by name, in the order in which they are merged."""
        preset = {} if self.preset == NO_PRESET else read_yaml(Path(self.preset))
        named = {self.preset: preset, "overlay": self.overlay}
        return {name: overlay for name, overlay in named.items() if overlay}

    def numbers(self, own: Mapping[str, Any]) -> list[str]:
        """Return the given numbers that differ from `own`, params.yaml's document, as KEY=VALUE."""
        present = find_numbers(own)
        given = self.model_dump(exclude_unset=True, include={*NUMBERS})
        changed = {name: value for name, value in given.items() if value != present[name]}
        return [f"{NUMBERS[name]}={value}" for name, value in changed.items()]


UNCHANGED = Changes()


def select_pipelines(names: Sequence[str]) -> list[str]:
    """Return a run's configurations; empty (all of them) if the UI's form was left unchanged."""
    as_they_are = is_confined() and set(names) == set(OWN_PIPELINES)
    return [] if as_they_are else list(names)


def check_name(name: str) -> None:
    """Raise WorkspaceProblem if a run's name could not be that of a folder and a git reference."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise WorkspaceProblem(
            f"{name!r} cannot be the name of a run: use at most {LONGEST_NAME} letters, digits, -"
            " and _, and begin with a letter or digit"
        )


def derive_name(called: str, flow_run_id: str) -> str:
    """Make a valid name for a run out of Prefect's; a changed one ends in part of the run's id.

    >>> derive_name("proud-owl", "1f2e3d4c-5b6a"), derive_name("Nightly #3", "1f2e3d4c-5b6a")
    ('proud-owl', 'Nightly-3-1f2e3d4c')
    """
    if re.fullmatch(NAME_PATTERN, called):
        return called
    unique = flow_run_id[:8]
    kept = re.sub("[^A-Za-z0-9_]+", "-", called).strip("-_")[: LONGEST_NAME - len(unique) - 1]
    return f"{kept}-{unique}" if kept else unique
