"""A storm of kill -9 at random instants, then one undisturbed run: the same bytes and losses as of
stages that ran one after another elsewhere, and nothing left.

    python tests/faults/storm.py --kills 100 --seed 7 [--served | --no-measure]

Kills the flow, its process group, a stage, one of the supervisors, DVC, or Prefect's temporary
server. With --served, runs are taken by the worker of a `make ui`: that, its servers, its worker
and the runs' processes are killed. It prints its seed, which draws targets and instants; the
machine's speed has its part in what is hit.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import numpy as np
import psutil
import requests

from flows.servers.services import find_free_port
from tests.support.project import SMALL, environment, make_project, run_stages
from tests.support.stack import ENDED, Stack
from throughline.shared.files import digest_file

NAME = "storm"
EPOCHS = 20
FLOW = (
    sys.executable,
    "-m",
    "flows.training",
    "--pipeline",
    "optimized",
    "--set",
    f"train.epochs={EPOCHS}",
    "--name",
    NAME,
)
LONGEST_S = 600.0
LEFTOVERS = ("*.partial", ".*.old", ".*.tmp", "*.lock")
ENDING_S = 30.0


def is_word(*words: str) -> Callable[[list[str]], bool]:
    """Whether one of the words is on a command line, that of a supervisor excepted."""
    return lambda line: any(word in " ".join(line) for word in words) and not is_supervisor(line)


def is_supervisor(line: list[str]) -> bool:
    """Whether a command line is that of a supervisor."""
    return any(word.endswith("supervise.py") for word in line)


TARGETS: dict[str, Callable[[list[str]], bool]] = {
    "stage": is_word("-m tasks."),
    "supervisor": is_supervisor,
    "dvc": is_word("-m dvc"),
    "server": is_word("uvicorn"),
    "git": is_word("git "),
}


class Storm:
    """A project, its flow that is started whenever there is none, and the kills so far."""

    targets = TARGETS
    kinds: tuple[str, ...] = ("flow", "group", *TARGETS, "stage", "supervisor")

    def __init__(self, folder: Path, seed: int, *, measures: bool = True) -> None:
        self.command = FLOW if measures else (*FLOW, "--no-measure")
        draw = np.random.default_rng(7)
        np.savez(
            folder / "data.npz",
            x=draw.integers(0, 256, (200, 12, 10), np.uint8),
            y=np.arange(200) % 4,
        )
        self.folder, self.random, self.kills = folder, random.Random(seed), Counter()
        self.completed = 0
        (folder / "tmp").mkdir()
        self.project = make_project(folder / "project", folder / "data.npz")
        self.flow: subprocess.Popen | None = None

    def start(self) -> subprocess.Popen:
        """Start the flow, in a process group of its own."""
        with (self.folder / "log").open("a") as log:
            log.write("\n=== start\n")
            log.flush()
            return subprocess.Popen(
                self.command,
                cwd=self.project,
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        """Of what is started in the project."""
        return environment(self.project) | {"TMPDIR": str(self.folder / "tmp"), "GIT_PAGER": ""}

    def run_calmly(self) -> None:
        """Run the flow to its end."""
        code = self.start().wait(LONGEST_S)
        assert code == 0, f"an undisturbed run ended with {code}; see {self.folder / 'log'}"

    def prepare(self) -> None:
        """See to it that a run is there."""
        if self.flow is None or self.flow.poll() is not None:
            if self.flow is not None and self.flow.returncode == 0:
                self.completed += 1
                self.forget()
            self.flow = self.start()

    def strike(self) -> None:
        """Let a run go on for a while, then kill something of it."""
        self.prepare()
        assert self.flow
        deadline = time.monotonic() + self.random.uniform(0.0, 14.0)
        while time.monotonic() < deadline and self.flow.poll() is None:
            time.sleep(0.01)
        kind = self.random.choice(self.kinds)
        if self.flow.poll() is not None:
            return
        if kind == "group":
            os.killpg(self.flow.pid, signal.SIGKILL)
        elif kind == "flow":
            self.flow.kill()
        else:
            below = psutil.Process(self.flow.pid).children(recursive=True)
            hit = [process for process in below if self.targets[kind](_line(process))]
            if not hit:
                return
            with contextlib.suppress(psutil.NoSuchProcess):
                self.random.choice(hit).kill()
        if kind in ("flow", "group"):
            self.flow.wait()
        self.kills[kind] += 1

    def forget(self) -> None:
        """Take back what a completed run has made, so that there is something to disturb."""
        shutil.rmtree(self.project / ".throughline" / "workspaces", ignore_errors=True)
        shutil.rmtree(self.project / ".dvc" / "cache", ignore_errors=True)

    def end(self) -> None:
        """Wait for what is running: flows that survived, supervisors that are ending the rest."""
        if self.flow is not None:
            self.flow.wait(LONGEST_S)
        deadline = time.monotonic() + ENDING_S
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.2)

    def living(self) -> list[str]:
        """Command lines of processes that work below the folder."""
        lines = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    Path(process.cwd()).is_relative_to(self.folder)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    lines.append(" ".join(process.cmdline()))
        return lines

    def leftovers(self) -> list[str]:
        """What should not be there any more."""
        found = [
            *(self.folder / "tmp").iterdir(),
            *(self.project / ".throughline").glob("scratch/*"),
        ]
        for place in (self.project, self.project / ".throughline" / "workspaces" / NAME):
            found += [
                path
                for folder in ("data", "data/*", "runs/**", ".throughline/*")
                for pattern in LEFTOVERS
                for path in place.glob(f"{folder}/{pattern}")
                if path.parent.name != "ui"  # whose lock stays
            ]
        return [str(path.relative_to(self.folder)) for path in found]


SERVED = {
    "ui": is_word("flows.ui"),
    "server": is_word("flows.servers.prefect_server"),
    "tracking": is_word("flows.servers.tracking_server"),
    "worker": is_word("flows.worker"),
    "run": is_word("prefect.engine"),
    "stage": TARGETS["stage"],
    "supervisor": is_supervisor,
    "dvc": TARGETS["dvc"],
}


class ServedStorm(Storm):
    """A project whose runs the worker of a `make ui` takes, which is started again whenever it has
    ended.
    """

    targets = SERVED
    kinds = (*SERVED, "worker", "run", "stage")

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.ports = find_free_port(), find_free_port()
        self.stack: Stack | None = None
        self.run = ""  # the flow run that was started last

    def serve(self) -> None:
        """Have a `make ui` that answers."""
        while self.flow is None or self.flow.poll() is not None or self.stack is None:
            said = self.folder / "said"
            prefect, mlflow = map(str, self.ports)
            ports = ("--prefect-port", prefect, "--mlflow-port", mlflow)
            command = (sys.executable, "-m", "flows.ui", *ports)
            with said.open("w") as out:
                self.flow = subprocess.Popen(
                    command,
                    cwd=self.project,
                    env=self.environment(),
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            deadline = time.monotonic() + LONGEST_S
            while (
                "Ctrl-C stops all" not in said.read_text()
                and self.flow.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.3)
            if found := re.search(r"MLflow asks for user (\S+), password (\S+)", said.read_text()):
                prefect, mlflow = (f"http://127.0.0.1:{port}" for port in self.ports)
                self.stack = Stack(self.project, prefect, mlflow, (found[1], found[2]))

    def started(self) -> str:
        """Start a run through the server; returns it."""
        self.serve()
        assert self.stack
        return self.stack.start(
            "training", pipeline="optimized", name=NAME, changes={"epochs": EPOCHS}
        )

    def prepare(self) -> None:
        """See to it that `make ui` and a run are there."""
        self.serve()
        assert self.stack
        # The server may just have been killed.
        with contextlib.suppress(requests.RequestException, AssertionError):
            state = self.stack.state(self.run)["state_type"] if self.run else "CRASHED"
            if state == "COMPLETED":
                self.completed += 1
                self.forget()
            if state in ENDED or not self.living_runs():
                self.run = self.started()

    def living_runs(self) -> list[str]:
        """Command lines of processes of runs."""
        return [line for line in self.living() if "prefect.engine" in line or "-m tasks." in line]

    def end(self) -> None:
        """Stop `make ui` as a person would, and whatever it runs with it."""
        if self.flow is not None and self.flow.poll() is None:
            self.flow.send_signal(signal.SIGINT)
        super().end()

    def run_calmly(self) -> None:
        """Start a run and wait for its end."""
        run = self.started()
        assert self.stack
        self.stack.completed(run, LONGEST_S)
        self.end()


def _line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def run_stages_alone(folder: Path, data: Path) -> Path:
    """What the run is to give, in a project of its own: its stages, without flow, DVC or kills, in
    this process, whose children are none of the storm's.
    """
    params = copy.deepcopy(SMALL)
    params["train"] |= {"epochs": EPOCHS}
    project = make_project(folder / "project", data, params)
    with contextlib.redirect_stdout(io.StringIO()):
        run_stages(project, "identities", "fetch", "ingest", "shard", "snapshot")
        run_stages(project, "build@optimized", "train@optimized")
    return project


def results(root: Path) -> dict[str, str]:
    """Digests of shards and snapshot, and the losses, of what was trained in a folder."""
    files = [
        path
        for name in ("shards", "snapshot")
        for path in sorted((root / "data" / name).rglob("*"))
        if path.is_file()
    ]
    history = (root / "runs" / "optimized" / "history.csv").read_text().splitlines()
    losses = json.dumps(
        [
            [
                cell
                for name, cell in zip(history[0].split(","), row.split(","), strict=True)
                if "per_s" not in name
            ]
            for row in history[1:]
        ]
    )
    return {str(path.relative_to(root)): digest_file(path) for path in files} | {"losses": losses}


def main() -> None:
    """Let it storm and exit with 1 if anything differs or is left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument(
        "--served", action="store_true", help="runs are taken by the worker of a `make ui`"
    )
    parser.add_argument(
        "--no-measure", action="store_true", help="runs train alone: more kills in an hour"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="storm-")).resolve()
    storm = (
        ServedStorm(folder, options.seed)
        if options.served
        else Storm(folder, options.seed, measures=not options.no_measure)
    )
    problems: list[str] = ["it did not come to its end"]
    try:
        with tempfile.TemporaryDirectory(prefix="calm-") as calm:
            expected = results(run_stages_alone(Path(calm), folder / "data.npz"))
        started_at = time.monotonic()
        while storm.kills.total() < options.kills:
            storm.strike()
        storm.end()
        problems = [f"still running: {line}" for line in storm.living()]
        storm.run_calmly()
        actual = results(storm.project / ".throughline" / "workspaces" / NAME)
        problems += [
            f"differs: {name}"
            for name in sorted(expected | actual)
            if expected.get(name) != actual.get(name)
        ]
        problems += [f"still running: {line}" for line in storm.living()]
        problems += [f"left: {name}" for name in storm.leftovers()]
        minutes = (time.monotonic() - started_at) / 60
        print(
            f"{storm.kills.total()} kills in {minutes:.0f} min: {dict(storm.kills)};"
            f" {storm.completed} runs completed between them"
        )
    finally:
        if storm.flow is not None and storm.flow.poll() is None:
            storm.flow.kill()
        print(
            "\n".join(problems) or "the same bytes and losses, nothing running, nothing left",
            flush=True,
        )
        if problems:
            print(f"see {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
