"""Thin Prefect tasks: run one DVC stage as a subprocess, stream its log, say whether it ran or was up to date.

DVC decides whether a stage must run; TensorFlow gets a fresh process; cancelling the task ends the process tree.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from tasks.errors import StageFailed

LAST_LINES = 25
MEASURED = ("build", "train", "profile")
MACHINE_LOCK = Path(tempfile.gettempdir()) / "throughline-measuring.lock"
TIMEOUT_S = "THROUGHLINE_STAGE_TIMEOUT_S"  # of one stage; a deployment sets it in its job variables
RETRIED = ("fetch", "ingest", "shard", "snapshot")  # they touch networks and shared disks; measured stages are not retried
# TensorFlow's start-up chatter, which no setting silences, and DVC's advice for people at a terminal.
_NOISE = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:|WARNING: All log messages before absl|To enable the following instructions"
    r"|To track the changes|\s+git add|To enable auto staging|\s+dvc config|Use `dvc push`|Updating lock file|Generating lock file"
)


@dataclass(frozen=True)
class Workplace:
    """Where stages run and with which environment; `stale` are the stages that DVC held for out of date at the start."""

    root: Path
    stale: frozenset[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@task(
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=[5, 30],
    retry_condition_fn=lambda task, run, state: _may_help(run.name, state.message or ""),
)
def run_stage(stage: str, place: Workplace, *, upstream_ran: bool) -> State:
    """Bring one DVC stage up to date. The state is named Cached when it already was.

    Raises:
      StageFailed: the stage ended with an error; the last lines of its log are repeated.
    """
    if not upstream_ran and stage not in place.stale:
        return Completed(name="Cached", message=f"{stage} is up to date", data=False)
    with turn(stage):
        ran = run_dvc(stage, place)
    return Completed(message=f"{stage} ran", data=True) if ran else Completed(name="Cached", message=f"{stage} came from DVC's cache", data=False)


@contextmanager
def turn(stage: str) -> Iterator[None]:
    """Wait until no other run on this machine measures, if this stage does; others run side by side.

    A lock of the operating system, not a limit of the Prefect server: it holds for runs without a server, too, and is free the
    moment its holder is gone, even by kill -9.
    """
    if stage.partition("@")[0] not in MEASURED:
        yield
        return
    lock = FileLock(MACHINE_LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        get_run_logger().info(f"{stage} waits: another run is measuring on this machine")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def run_dvc(stage: str, place: Workplace) -> bool:
    """Run `dvc repro --single-item` and stream its output to the task's log; returns whether the stage's command ran."""
    logger = get_run_logger()
    tail: deque[str] = deque(maxlen=LAST_LINES)
    ran = False
    # --wait-for-lock stands before the subcommand; after it, DVC would not know it.
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", stage]
    with supervised(command, place) as process, limited(process) as overdue:
        for line in process.stdout or ():
            text = line.rstrip()
            if not text or _NOISE.match(text):
                continue
            ran = ran or text.startswith("Running stage")
            tail.append(text)
            logger.info(text)
        code = process.wait()
    if overdue.is_set():
        raise StageFailed(f"{stage} was ended after {os.environ[TIMEOUT_S]} s, which {TIMEOUT_S} allows; what it has finished is kept")
    if code != 0:
        raise StageFailed(f"{stage} ended with exit code {code}. Its last lines:\n" + "\n".join(tail))
    return ran


@contextmanager
def limited(process: subprocess.Popen) -> Iterator[threading.Event]:
    """End a supervised process that takes longer than THROUGHLINE_STAGE_TIMEOUT_S; yields what is set when that has happened."""
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        process.terminate()

    allowed = os.environ.get(TIMEOUT_S)
    timer = threading.Timer(float(allowed), end) if allowed else None
    if timer:
        timer.start()
    try:
        yield overdue
    finally:
        if timer:
            timer.cancel()


def stale_stages(root: Path, environment: Mapping[str, str]) -> frozenset[str]:
    """Ask DVC once which stages are out of date.

    Raises:
      StageFailed: DVC cannot read the project.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "status", "--json"]
    done = subprocess.run(command, cwd=root, env=_environment(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StageFailed(f"`dvc status` failed in {root}:\n{done.stderr.strip()}")
    return frozenset(name.removeprefix("./dvc.yaml:") for name in json.loads(done.stdout or "{}"))


@contextmanager
def supervised(command: list[str], place: Workplace) -> Iterator[subprocess.Popen]:
    """Start a command under the supervisor; however the block is left, nothing of it stays behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.supervise", *command],
        cwd=place.root,
        env=_environment(place.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()  # the supervisor takes this for our death
        process.wait()


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment with this interpreter first on the path, since dvc.yaml says plainly `python`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **extra}


def _may_help(stage: str, message: str) -> bool:
    """Whether trying again can help: not where a user must act first (exit code 2), nor where a measurement would be repeated."""
    return stage in RETRIED and "exited with 2" not in message
