"""A project of one's own in a temporary folder: this code, its own params.yaml, git and DVC, small data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
CODE = (
    "tasks",
    "flows",
    "dvc.yaml",
    "prefect.yaml",
    "params.yaml",
    ".gitignore",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvcignore",
    "infra/demo",
    "infra/local",
    "infra/mlflow-auth.ini",
)
SMALL = {
    "data": {
        "source": "arrays",
        "path": "source/data.npz",
        "fetch": "none",
        "max_reject_fraction": 0.01,
        "split": {"validation": 0.2, "test": 0.2, "seed": 0},
    },
    "shard": {"target_size_mib": 1, "min_shards": 2, "compression": "none", "writers": 1},
    "snapshot": {"on_corrupt": "fail", "max_corrupt_fraction": 0.001},
    "preprocess": ["decode"],
    "augment": ["flip"],
    "finish": ["rescale"],
    "window": {"length": 24, "horizon": 1, "stride": 1, "targets": []},
    "batch_size": 32,
    "pipelines": {
        "naive": {"read": "shards"},
        "optimized": {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2, "finish": "device"},
    },
    "model": {"name": "mlp", "options": {"width": 8}},
    "train": {"epochs": 2, "learning_rate": 0.01, "schedule": "constant", "seed": 0, "deterministic": True, "checkpoint_every": "1 epoch"},
    "measure": {"max_seconds": 0.2, "passes": 2, "rounds": 3, "trace_after": 2, "trace_steps": 3},
}


def make_project(folder: Path, array_file: Path, params: dict | None = None) -> Path:
    """Lay out a committed project with the arrays of `array_file`."""
    for name in CODE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    (folder / "source").mkdir()
    shutil.copy(array_file, folder / "source" / "data.npz")
    write_params(folder, params or SMALL)
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "small"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder


def write_params(folder: Path, params: dict) -> None:
    """Write params.yaml."""
    with (folder / "params.yaml").open("w") as file:
        YAML().dump(params, file)


def environment(folder: Path) -> dict[str, str]:
    """An environment of one's own: this interpreter first, no settings of the user's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "PREFECT_", "THROUGHLINE_", "GIT_", "DVC_"))}
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DVC_NO_ANALYTICS": "1",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
    }


def run(folder: Path, *command: str, code: int | None = 0) -> str:
    """Run a command in the project and return what it printed, both streams; fail on another exit code than `code`."""
    done = subprocess.run(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert code is None or done.returncode == code, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def run_quietly(folder: Path, *command: str) -> str:
    """Run a command and return its standard output alone."""
    return subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True).stdout
