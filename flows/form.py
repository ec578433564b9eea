"""What a run can be asked for, as typed values: the Prefect UI's form is made from them, and so is the command line.

The names of configurations and of overlays are those of the project in the current folder, at the moment of deploying or running.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.workspace import NAME_PATTERN
from tasks.errors import UserError
from tasks.params import PARAMS_FILE, read_document

OVERLAYS = ("infra/demo", "infra/presets")


def _configurations() -> tuple[str, ...]:
    """Names below `pipelines:`; none where there is no readable params.yaml, which the run itself then tells."""
    try:
        return tuple(str(name) for name in read_document(Path(PARAMS_FILE)).get("pipelines", {}))
    except (UserError, OSError, AttributeError):
        return ()


def _overlays() -> tuple[str, ...]:
    return tuple(sorted(str(path) for folder in OVERLAYS for path in Path(folder).glob("*.yaml")))


_KNOWN = _configurations()
USUAL = "optimized"  # offered first where there is one of that name

if TYPE_CHECKING:
    Pipeline = str
    SUGGESTED: str
    Overlay = str
else:
    # A preset can bring configurations of its own, so a name that is not known yet is checked when the run has its parameters.
    Pipeline = Literal[_KNOWN] if _KNOWN else str
    Overlay = Literal[names] if (names := _overlays()) else str
    SUGGESTED = USUAL if USUAL in _KNOWN or not _KNOWN else _KNOWN[-1]

RunName = Annotated[str | None, Field(pattern=NAME_PATTERN)]


class Changes(BaseModel):
    """What differs from params.yaml in this run only. With any change the run has a git worktree of its own and becomes a DVC experiment."""

    model_config = ConfigDict(extra="forbid")

    preset: Overlay | None = Field(default=None, description="a file of this project to lay over params.yaml: other data, other configurations")
    epochs: int | None = Field(default=None, ge=1, le=100_000, description="passes over the training split; empty: as in params.yaml")
    batch_size: int | None = Field(default=None, ge=1, le=1_000_000, description="examples per step; empty: as in params.yaml")
    learning_rate: float | None = Field(default=None, gt=0, le=10, description="initial rate of Adam; empty: as in params.yaml")
    overrides: list[Annotated[str, Field(pattern=r"^[\w.]+=.*$")]] = Field(
        default=[], description="any other key as KEY=VALUE, e.g. pipelines.naive.prefetch=2 or data.path=my/photos"
    )
    overlay: dict[str, Any] = Field(default={}, description="mappings to lay over params.yaml, as JSON")

    def overlays(self) -> list[Mapping[str, Any]]:
        """Preset and overlay, in the order in which they are laid over params.yaml."""
        preset = read_document(Path(self.preset)) if self.preset else {}
        return [overlay for overlay in (preset, self.overlay) if overlay]

    def settings(self) -> list[str]:
        """Everything else, as KEY=VALUE."""
        fields = {"train.epochs": self.epochs, "batch_size": self.batch_size, "train.learning_rate": self.learning_rate}
        return [*(f"{key}={value}" for key, value in fields.items() if value is not None), *self.overrides]


UNCHANGED = Changes()
