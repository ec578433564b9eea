"""Where the outputs of the stages are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

WORKSPACES = Path(".throughline") / "workspaces"  # a worktree per run with changes, by its name
GLANCE, SHEET = "glance.md", "glance.png"
MODEL_FILE = "model.keras"
MODEL_SPEC = "throughline/inference.json"  # in that file: how the model is used
DVC_COPIES = (".dvc", "tmp", "exps")  # below a project: DVC's copies of it, which it removes
ORIGIN = "origin.json"  # the note of the fetch stage on what it wrote
STORE_HOME = "THROUGHLINE_HOME"  # variable: the project whose MLflow store serves without a server


def from_here(path: Path) -> Path:
    """A path as it opens from where one stands: in the project, of whose worktrees this process may
    be in one.
    """
    project = Layout().project.absolute()
    absolute = path.absolute()
    return absolute.relative_to(project) if absolute.is_relative_to(project) else absolute


def _find_started_in(root: Path) -> Path:
    """The project of a copy that `dvc exp run --temp`, or DVC's queue, has made; else `root`."""
    for folder in root.absolute().parents:
        if folder.parts[-len(DVC_COPIES) :] == DVC_COPIES:
            return folder.parents[len(DVC_COPIES) - 1]
    return root


@dataclass(frozen=True)
class Layout:
    """Where the stages' outputs are, relative to the folder of params.yaml."""

    root: Path = Path()

    @property
    def manifest(self) -> Path:
        """Folder of the manifest, written by ingest."""
        return self.root / "data" / "manifest"

    @property
    def glance(self) -> Path:
        """What each class has in each split and what was left out, as Markdown, within it."""
        return self.manifest / GLANCE

    @property
    def sheet(self) -> Path:
        """Sample pictures of each class, of images, within it."""
        return self.manifest / SHEET

    @property
    def at_a_glance(self) -> list[Path]:
        """Both of them that there are."""
        return [path for path in (self.glance, self.sheet) if path.exists()]

    @property
    def shards(self) -> Path:
        """Folder of the TFRecord shards, written by shard."""
        return self.root / "data" / "shards"

    @property
    def snapshot(self) -> Path:
        """Folder of the mapped columns, written by snapshot."""
        return self.root / "data" / "snapshot"

    @property
    def identities(self) -> Path:
        """Folder of what decides results besides the program's files, written by identities."""
        return self.root / "data" / "identities"

    @property
    def raw(self) -> Path:
        """Folder of known datasets, written by fetch."""
        return self.root / "data" / "raw"

    @property
    def inspections(self) -> Path:
        """Folder of what ingest has found in files, of the project and its runs with changes."""
        return self.project / ".throughline" / "inspections"

    @property
    def project(self) -> Path:
        """Folder of the project, also of its runs with changes, which have worktrees of it, and of
        the copies in which DVC runs experiments.
        """
        home = os.environ.get(STORE_HOME)
        return Path(home) if home else _find_started_in(self.root)

    def run(self, name: str) -> Layout:
        """Where the outputs of a run with changes are."""
        return Layout(self.root / WORKSPACES / name)

    @property
    def run_names(self) -> list[str]:
        """Names of the runs with changes that there are."""
        return sorted(path.parent.name for path in self.root.glob(f"{WORKSPACES}/*/params.yaml"))

    def results(self, pipeline: str) -> Path:
        """Folder of one configuration's results."""
        return self.root / "runs" / pipeline

    @property
    def race(self) -> Path:
        """Folder of the race of all configurations."""
        return self.root / "race"

    @property
    def report(self) -> Path:
        """Folder of the comparison."""
        return self.root / "report"
