"""Thin Prefect tasks: run one DVC stage as a subprocess, stream its log, say whether it ran or was
up to date.

DVC decides whether a stage must run; TensorFlow gets a fresh process; cancelling the task ends the
process tree.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.dvc_calls import BUSY, DVC, SUPERVISE, attempts, dvc_environment
from flows.locks import hold, hold_machine
from tasks.errors import StageFailed

LAST_LINES = 25
MEASURED = ("build", "train", "profile")
TIMEOUT_S = "THROUGHLINE_STAGE_TIMEOUT_S"  # of one stage; a deployment sets it in its job variables
# They touch networks and shared disks; measured stages are not retried.
RETRIED = ("fetch", "ingest", "shard", "snapshot")
# TensorFlow's start-up chatter, which no setting silences, and DVC's advice for people at a
# terminal.
_NOISE = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:|WARNING: All log messages before absl|To enable the following"
    r" instructions"
    r"|To track the changes|\s+git add|To enable auto staging|\s+dvc config|Use `dvc push`|Updating"
    r" lock file|Generating lock file"
)


@dataclass(frozen=True)
class StageEnvironment:
    """Where stages run and with which environment; `stale` are the stages that DVC held for out of
    date at the start.

    `lock`: the file to lock around each call of DVC, where runs share the folder; `held`: file
    descriptors of locks that are held for the run's whole length. `holder` is what others are shown
    who wait.
    """

    root: Path
    stale: frozenset[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    lock: Path | None = None
    held: tuple[int, ...] = ()
    holder: str = "a run"


@task(
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=[5, 30],
    retry_condition_fn=lambda task, run, state: _should_retry(run.name, state.message or ""),
)
def run_stage(stage: str, stage_env: StageEnvironment, *, upstream_ran: bool) -> State:
    """Bring one DVC stage up to date. The state is named Cached when it already was.

    Raises:
      StageFailed: the stage ended with an error; the last lines of its log are repeated.
    """
    if not upstream_ran and stage not in stage_env.stale:
        return Completed(name="Cached", message=f"{stage} is up to date", data=False)
    ran = run_dvc(stage, stage_env)
    return (
        Completed(message=f"{stage} ran", data=True)
        if ran
        else Completed(name="Cached", message=f"{stage} came from DVC's cache", data=False)
    )


@contextmanager
def measurement_lock(stage: str, stage_env: StageEnvironment) -> Iterator[tuple[int, ...]]:
    """Wait until the stage may run: no other run on this machine measures, if it does, and none is
    at work in the folder.

    Yields the file descriptors of all locks; they are the kernel's, so they hold without a server,
    too, and are free when nothing of the stage is left, even by kill -9.
    """
    logger = get_run_logger()
    held = list(stage_env.held)
    with ExitStack() as locks:
        # First the machine's: the folder is then not locked in vain while another folder's run
        # measures.
        if stage.partition("@")[0] in MEASURED:
            held.append(
                locks.enter_context(
                    hold_machine(
                        lambda who: logger.info(
                            f"{stage} waits: {who} is measuring on this machine"
                        )
                    )
                )
            )
        if stage_env.lock:
            held.append(
                locks.enter_context(
                    hold(
                        stage_env.lock,
                        stage_env.holder,
                        lambda who: logger.info(f"{stage} waits: {who} is at work here"),
                    )
                )
            )
        yield tuple(held)


def run_dvc(stage: str, stage_env: StageEnvironment) -> bool:
    """Run `dvc repro --single-item` and stream its output to the task's log; returns whether the
    stage's command ran.

    Tried again for as long as another DVC process, such as one started by hand, is at work on the
    same files.

    Raises:
      StageFailed: the stage ended with an error, or took longer than is allowed.
    """
    tail: deque[str] = deque(maxlen=LAST_LINES)
    code = 0
    with measurement_lock(stage, stage_env) as held:
        for _ in attempts(stage_env.root, get_run_logger().info):
            tail.clear()
            code, ran = _run_once(stage, stage_env, held, tail)
            if code == 0:
                return ran
            if ran or not BUSY.search("\n".join(tail)):
                break
    raise StageFailed(f"{stage} ended with exit code {code}. Its last lines:\n" + "\n".join(tail))


def _run_once(
    stage: str, stage_env: StageEnvironment, held: tuple[int, ...], tail: deque[str]
) -> tuple[int, bool]:
    logger = get_run_logger()
    ran = False
    with (
        supervised([*DVC, "repro", "--single-item", stage], stage_env, held) as process,
        with_timeout(process) as timed_out,
    ):
        # Ends when no process is left that could write, not already with the supervisor: a killed
        # one leaves that to another.
        for line in process.stdout or ():
            text = line.rstrip()
            if not text or _NOISE.match(text):
                continue
            ran = ran or text.startswith("Running stage")
            tail.append(text)
            logger.info(text)
        code = process.wait()
    if timed_out.is_set():
        raise StageFailed(
            f"{stage} was ended after {os.environ[TIMEOUT_S]} s, which {TIMEOUT_S} allows; what it"
            " has finished is kept"
        )
    return code, ran


@contextmanager
def with_timeout(process: subprocess.Popen) -> Iterator[threading.Event]:
    """End a supervised process that takes longer than THROUGHLINE_STAGE_TIMEOUT_S; yields what is
    set when that has happened.
    """
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        process.terminate()

    allowed = os.environ.get(TIMEOUT_S)
    timer = threading.Timer(float(allowed), end) if allowed else None
    if timer:
        timer.start()
    try:
        yield timed_out
    finally:
        if timer:
            timer.cancel()


@contextmanager
def supervised(
    command: list[str], stage_env: StageEnvironment, held: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen]:
    """Start a command under the supervisors; however the block is left, nothing of it stays.

    `held` are file descriptors of locks that stay locked for as long as anything of the command is
    left.
    """
    process = subprocess.Popen(
        [*SUPERVISE, *command],
        cwd=stage_env.root,
        env=dvc_environment(stage_env.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        start_new_session=True,
        pass_fds=held,
    )
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()  # the supervisor takes this for our death
        if process.stdout:
            while process.stdout.read(1 << 16):  # until the last process that could write is gone
                pass
        process.wait()


def _should_retry(stage: str, message: str) -> bool:
    """Whether trying again can help: not where a user must act first (exit code 2), nor where a
    measurement would be repeated.
    """
    return stage in RETRIED and "exited with 2" not in message
