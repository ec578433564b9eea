"""Paths of the stages' outputs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

WORKSPACES = Path(".throughline") / "workspaces"  # a worktree per run with changes, by its name
GLANCE, SHEET = "glance.md", "glance.png"
MODEL_FILE = "model.keras"
MODEL_SPEC = "throughline/inference.json"  # in the model's file: how to use the model
DVC_COPIES = (".dvc", "tmp", "exps")  # below a project: copies that DVC makes and removes
ORIGIN = "origin.json"  # the fetch stage's note about its files
STORE_HOME = "THROUGHLINE_HOME"  # variable: the project whose MLflow store is used without a server


def from_here(path: Path) -> Path:
    """Return a path relative to the project, where users work; absolute if it is elsewhere."""
    project = Layout().project.absolute()
    absolute = path.absolute()
    return absolute.relative_to(project) if absolute.is_relative_to(project) else absolute


class _Below:
    """An attribute of a layout: the path below its root."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, layout: Layout, kind: type[Layout]) -> Path:
        return layout.root.joinpath(*self._parts)


@dataclass(frozen=True)
class Layout:
    """Paths of the stages' outputs, relative to the folder of params.yaml."""

    root: Path = Path()
    manifest = _Below("data", "manifest")
    shards = _Below("data", "shards")
    snapshot = _Below("data", "snapshot")
    identities = _Below("data", "identities")
    raw = _Below("data", "raw")
    race = _Below("race")
    report = _Below("report")

    @property
    def glance(self) -> Path:
        """Markdown: the number of examples by class and split, and the data left out."""
        return self.manifest / GLANCE

    @property
    def sheet(self) -> Path:
        """Sample pictures of each class, for images."""
        return self.manifest / SHEET

    @property
    def at_a_glance(self) -> list[Path]:
        return [path for path in (self.glance, self.sheet) if path.exists()]

    @property
    def inspections(self) -> Path:
        """Folder of ingest's cached inspections, shared by all runs of the project."""
        return self.project / ".throughline" / "inspections"

    @property
    def project(self) -> Path:
        """Folder of the project, also for its worktrees and for DVC's copies of it."""
        if home := os.environ.get(STORE_HOME):
            return Path(home)
        for folder in self.root.absolute().parents:
            if folder.parts[-len(DVC_COPIES) :] == DVC_COPIES:
                return folder.parents[len(DVC_COPIES) - 1]
        return self.root

    def run(self, name: str) -> Layout:
        return Layout(self.root / WORKSPACES / name)

    @property
    def run_names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob(f"{WORKSPACES}/*/params.yaml"))

    def results(self, pipeline: str) -> Path:
        return self.root / "runs" / pipeline
