"""Flow parameters as typed values: the Prefect UI's form is made from them, and so is the command
line.

The names of configurations and of overlays are those of the project in the current folder, at the
moment of deploying or running.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import UserError, WorkspaceProblem
from tasks.params import PARAMS_FILE, read_document

NAME_PATTERN = (  # of a run: it becomes a folder and a git reference
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
)
OVERLAYS = ("infra/demo", "infra/presets")


def _configurations(*files: str | Path) -> tuple[str, ...]:
    """Names below `pipelines:` in any of the files; those that cannot be read have none; the run
    itself then reports them.
    """
    names: dict[str, None] = {}
    for file in files:
        try:
            document = read_document(Path(file))
            for key in ("pipelines", "pipelines!"):
                names |= dict.fromkeys(str(name) for name in document.get(key) or {})
        except (UserError, OSError, AttributeError, TypeError):
            continue
    return tuple(names)


def _overlays() -> tuple[str, ...]:
    return tuple(sorted(str(path) for folder in OVERLAYS for path in Path(folder).glob("*.yaml")))


_OWN = _configurations(PARAMS_FILE)
_PIPELINE_NAMES = _configurations(PARAMS_FILE, *_overlays())
PREFERRED = "optimized"  # offered first where there is one of that name

# The names are offered by the form, and checked by the server, but no part of the type: an overlay
# can bring configurations of its own, so that the run alone, when it has its parameters, knows them
# all.
Pipeline = Annotated[
    str, Field(json_schema_extra={"enum": list(_PIPELINE_NAMES)} if _PIPELINE_NAMES else None)
]

if TYPE_CHECKING:
    DEFAULT_PIPELINE: str
    Overlay = str
else:
    Overlay = Literal[names] if (names := _overlays()) else str
    DEFAULT_PIPELINE = PREFERRED if PREFERRED in _OWN or not _OWN else _OWN[-1]

RunName = Annotated[str | None, Field(pattern=NAME_PATTERN)]


class Changes(BaseModel):
    """What differs from params.yaml in this run only. With any change the run has a git worktree of
    its own and becomes a DVC experiment.
    """

    model_config = ConfigDict(extra="forbid")

    preset: Overlay | None = Field(
        default=None,
        description=(
            "a file of this project to merge into params.yaml: other data, other configurations"
        ),
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="passes over the training split; empty: as in params.yaml",
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=1_000_000, description="examples per step; empty: as in params.yaml"
    )
    learning_rate: float | None = Field(
        default=None, gt=0, le=10, description="initial rate of Adam; empty: as in params.yaml"
    )
    overrides: list[Annotated[str, Field(pattern=r"^[\w.]+=.*$")]] = Field(
        default=[],
        description=(
            "any other key as KEY=VALUE, e.g. pipelines.naive.prefetch=2 or data.path=my/photos"
        ),
    )
    overlay: dict[str, Any] = Field(
        default={}, description="mappings to merge into params.yaml, as JSON"
    )

    def overlays(self) -> list[Mapping[str, Any]]:
        """Preset and overlay, in the order in which they are merged into params.yaml."""
        preset = read_document(Path(self.preset)) if self.preset else {}
        return [overlay for overlay in (preset, self.overlay) if overlay]

    def settings(self) -> list[str]:
        """Everything else, as KEY=VALUE."""
        fields = {
            "train.epochs": self.epochs,
            "batch_size": self.batch_size,
            "train.learning_rate": self.learning_rate,
        }
        return [
            *(f"{key}={value}" for key, value in fields.items() if value is not None),
            *self.overrides,
        ]


UNCHANGED = Changes()


def check_name(name: str) -> None:
    """Refuse a run's name that is no plain word.

    Raises:
      WorkspaceProblem: it could lead out of the workspaces, or is no git reference.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise WorkspaceProblem(
            f"{name!r} cannot be the name of a run: letters, digits, - and _ only, 64 at most"
        )
