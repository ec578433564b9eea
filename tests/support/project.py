"""A project of one's own in a temporary folder: this code, git, DVC, small data."""

import importlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.shared_servers import ROOT, prefect_template, shared_libraries, shared_prefect

Started = subprocess.Popen[str]
TOGETHER = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}  # both streams
CODE = (
    *("throughline", "tasks", "flows", "whowaits", "infra/demo", "infra/local", "infra/store.py"),
    *("dvc.yaml", "prefect.yaml", "worker.yaml", "params.yaml", "uv.lock", "infra/mlflow-auth.ini"),
    *(".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore"),
)
SMALL = YAML(typ="safe").load("""
data:
  {source: arrays, path: source/data.npz, fetch: none, max_reject_fraction: 0.01,
   split: {validation: 0.2, test: 0.2, seed: 0}}
shard: {target_size_mib: 1, min_shards: 2, compression: none, writers: 1}
snapshot: {on_corrupt: fail, max_corrupt_fraction: 0.001}
preprocess: [decode]
augment: [flip]
postprocess: [rescale]
window: {length: 24, horizon: 1, stride: 1, targets: []}
batch_size: 32
pipelines:
  naive: {read: shards}
  optimized: {read: snapshot, shuffle: {kind: global}, prefetch: 2, postprocess_on: device}
model: {name: mlp, options: {width: 8}}
train:
  {epochs: 2, learning_rate: 0.01, schedule: constant, seed: 0, deterministic: true,
   checkpoint_every: 1 epoch}
measure: {seconds: 1, trace_steps: 3}
""")


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
    return commit_all(folder)


def git(folder: Path, *arguments: str) -> str:
    """What a command of git prints in a folder."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_all(folder: Path) -> Path:
    """Commit all files of a folder, in a repository that is made if there is none."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return folder


def copy_project(source: Path, folder: Path) -> Path:
    """Copy a project with all that it has; its MLflow store leads to the copy's artifacts."""
    shutil.copytree(source, folder, symlinks=True)
    with closing(sqlite3.connect(folder / "mlflow.db")) as store, store:
        moved = (source.as_uri(), folder.as_uri())
        for table in ("experiments", "runs", "logged_models"):
            column = "artifact_uri" if table == "runs" else "artifact_location"
            store.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", moved)
    return folder


@contextmanager
def find_changes(folder: Path) -> Iterator[None]:
    """Fail at the end if a file of a project that tests share has changed meanwhile."""

    def files() -> dict[str, tuple[int, int]]:
        temporary = folder / ".dvc" / "tmp"
        return {
            str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".pyc" and temporary not in path.parents
        }

    before = files()
    yield
    changed = sorted(dict(before.items() ^ files().items()))
    assert not changed, f"tests have changed {changed} of a project that they share"


def write_params(folder: Path, params: dict) -> None:
    with (folder / "params.yaml").open("w") as file:
        YAML().dump(params, file)


def environment(folder: Path) -> dict[str, str]:
    """An environment of one's own: this interpreter first, no settings of the user's."""
    theirs = ("MLFLOW_", "PREFECT_", "THROUGHLINE_", "GIT_", "DVC_", "PYTHONDONTWRITE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    home = folder.parent / "home"
    if not home.exists():
        home.mkdir()
        prefect_template.copy(home / "prefect", kept)
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


def share_servers(command: Sequence[str]) -> dict[str, str]:
    """The variables by which a command finds the servers of libraries and of Prefect."""
    return shared_libraries.environment() | shared_prefect.environment(command)


def start(folder: Path, *command: str, shared: Mapping[str, str] = MappingProxyType({})) -> Started:
    """Start a command in the project, with servers of its own unless variables name shared ones."""
    return subprocess.Popen(command, cwd=folder, env=environment(folder) | shared, **TOGETHER)


def run(folder: Path, *command: str, code: int | None = 0) -> str:
    """Run a command in the project with shared servers; returns what it printed, both streams."""
    variables = environment(folder) | share_servers(command)
    done = subprocess.run(command, cwd=folder, env=variables, check=False, **TOGETHER)
    assert code is None or done.returncode == code, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    )
    return done.stdout


def run_python(
    code: str,
    *arguments: str,
    folder: Path = ROOT,
    without: tuple[str, ...] = (),
    ends_with: int = 0,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run code of this checkout, without variables whose names begin as one of `without`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    path = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    command = [sys.executable, "-c", code, *arguments]
    options = {"cwd": folder, "env": {**inherited, "PYTHONPATH": path, **variables}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == ends_with, done.stdout + done.stderr
    return done


def run_stages(folder: Path, *stages: str) -> None:
    """Run stages, each a module's name and perhaps `@` and a configuration, in this process."""
    for stage in stages:
        name, _, pipeline = stage.partition("@")
        module = importlib.import_module(f"tasks.{name}")
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(folder)
            patched.delenv("MLFLOW_TRACKING_URI", raising=False)
            options = ["--pipeline", pipeline] if pipeline else []
            patched.setattr(sys, "argv", [f"python -m tasks.{name}", *options])
            module.main()


def run_quietly(folder: Path, *command: str) -> str:
    """Run a command and return its standard output alone."""
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True
    ).stdout


def runs_of(folder: Path, **wanted: Any) -> list[Any]:
    """MLflow's runs, the latest first, of a project whose data is source/data.npz."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    (found,) = mlflow.search_experiments(filter_string="name LIKE 'throughline/data-%'")
    names = [found.name]
    return mlflow.search_runs(experiment_names=names, output_format="list", **wanted)
