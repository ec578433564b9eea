"""A storm of kills, then one undisturbed run: the same bytes and losses as of stages that ran one
after another elsewhere, and nothing left.

A kill comes when a run has said so many lines, and hits the run, its process group, or one of the
processes below it: a supervisor, DVC, a stage, Prefect's temporary server. A seed draws both.
`STORM_KILLS=100 STORM_SEED=7 python -m pytest tests/faults/test_storm.py` is a longer storm.
"""

import copy
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.project import SMALL, make_project, run_stages, start
from tests.support.stack import processes_of
from throughline.shared.files import digest_file

KILLS = int(os.environ.get("STORM_KILLS", "4"))
SEED = int(os.environ.get("STORM_SEED", "7"))
MOST_LINES = 30  # of what a run says before it is hit
NAME, EPOCHS = "storm", 4
FLOW = (
    *("setsid", sys.executable, "-m", "flows.training", "--no-measure", "--verbose"),
    *("--pipeline", "optimized", "--set", f"train.epochs={EPOCHS}", "--name", NAME),
)
LEFTOVERS = ("*.partial", ".*.old", ".*.tmp", "*.lock")


@pytest.mark.slow
@pytest.mark.timeout(300 * (KILLS + 4))
def test_after_a_storm_of_kills_a_run_gives_what_an_undisturbed_one_does(array_file, tmp_path):
    expected = read_results(run_stages_alone(tmp_path / "calm" / "project", array_file))
    folder, draw = tmp_path / "storm", random.Random(SEED)
    (folder / "tmp").mkdir(parents=True)
    project = make_project(folder / "project", array_file)
    worktree = project / ".throughline" / "workspaces" / NAME

    def begin() -> subprocess.Popen[str]:
        return start(project, *FLOW, shared={"TMPDIR": str(folder / "tmp")})

    kills = 0
    while kills < KILLS:
        flow = begin()
        for _ in zip(range(draw.randrange(MOST_LINES)), flow.stdout, strict=False):
            pass
        hit = strike(flow, draw)
        said = flow.stdout.read()  # ends when the last process that could write is gone
        assert flow.wait() == 0 or hit, said
        kills += hit
        if flow.returncode == 0:  # a run that has come to its end leaves nothing to disturb
            shutil.rmtree(worktree)
            shutil.rmtree(project / ".dvc" / "cache")
    flow = begin()
    said = flow.communicate()[0]
    assert flow.returncode == 0, said
    assert read_results(worktree) == expected
    assert processes_of(folder, "") == []
    assert find_leftovers(project, worktree) == [] == [*(folder / "tmp").iterdir()]


def strike(flow: subprocess.Popen[str], draw: random.Random) -> bool:
    """Kill a run, its group, or one of the processes below it; returns whether it was there."""
    if flow.poll() is not None:
        return False
    below = psutil.Process(flow.pid).children(recursive=True)
    victim = draw.choice([None, flow, *below])
    with suppress(psutil.NoSuchProcess):
        if victim is None:
            os.killpg(flow.pid, signal.SIGKILL)
        else:
            victim.kill()
        return True
    return False


def run_stages_alone(folder: Path, data: Path) -> Path:
    """What the run is to give, in a project of its own: its stages, without flow, DVC or kills."""
    params = copy.deepcopy(SMALL)
    params["train"] |= {"epochs": EPOCHS}
    project = make_project(folder, data, params)
    run_stages(project, "identities", "fetch", "ingest", "shard", "snapshot")
    run_stages(project, "build@optimized", "train@optimized")
    return project


def read_results(root: Path) -> dict[str, object]:
    """Digests of shards and snapshot, and the history of the training but for its speed."""
    with (root / "runs" / "optimized" / "history.csv").open() as file:
        rows = csv.DictReader(file)
        history = [{name: it for name, it in row.items() if "per_s" not in name} for row in rows]
    found = [path for name in ("shards", "snapshot") for path in (root / "data" / name).rglob("*")]
    files = [path for path in found if path.is_file()]
    return {str(path.relative_to(root)): digest_file(path) for path in files} | {"rows": history}


def find_leftovers(*places: Path) -> list[Path]:
    found = [
        path
        for place in places
        for folder in ("data", "data/*", "runs/**", ".throughline/*")
        for pattern in LEFTOVERS
        for path in place.glob(f"{folder}/{pattern}")
    ]
    return found + [path for place in places for path in place.glob(".throughline/scratch/*")]
