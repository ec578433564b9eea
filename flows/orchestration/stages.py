"""Prefect tasks that run one DVC stage each, if DVC says so, as a subprocess, and stream its log.

Canceling a task ends its process tree.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.orchestration.terminal import LOG_ONLY, RAN, STAGE_EVENT, STAGE_OUTPUT, STARTED
from flows.run.dvc_calls import BUSY, DVC, attempts, dvc_environment, find_site_problem
from flows.run.locks import hold_machine_and_folder
from flows.run.processes import supervised
from flows.run.workspace import Workspace, hold_folder
from throughline.config.params import check_pipelines_exist
from throughline.shared.errors import StageFailed
from throughline.shared.failures import FAILURE_FILE, Failure
from throughline.shared.machine_lock import MACHINE_HELD
from throughline.shared.scratch import Scratch

LAST_LINES = 25
OF_EACH = ("build", "train", "profile")  # once for each configuration
MEASURED = ("train", "profile", "race")  # one at a time on a machine
TIMEOUT_S = "THROUGHLINE_STAGE_TIMEOUT_S"  # for one stage; the worker sets it
# These use networks and shared disks, so they are retried; measured stages are not.
PREPARATION = ("fetch", "ingest", "shard", "snapshot")
# DVC's advice for people at a terminal, and its report of a failure that the stage has reported.
_NOISE = re.compile(
    r"To track the changes|\s+git add|To enable auto staging|\s+dvc config|Use `dvc push`"
    r"|Updating lock file|Generating lock file"
    r"|ERROR: failed to reproduce .*: failed to run: .* exited with [12]$"
)


@dataclass(frozen=True)
class StageEnvironment:
    """The place where stages run, the stages `stale` at the start, and those `forced` to run.

    Unless the run `measures`, its training does not wait for runs that do.
    """

    workspace: Workspace
    stale: frozenset[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    forced: frozenset[str] = frozenset()
    measures: bool = True


def list_again(names: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return the stages that measure `names` again; UnknownPipeline if one is not in `chosen`."""
    check_pipelines_exist(chosen, names, option="--measure-again")
    return ["race"] if names else []


@task(
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=[5, 30],
    retry_condition_fn=lambda task, run, state: _should_retry(run.name, state.data),
)
def run_stage(stage: str, stage_env: StageEnvironment, *, upstream_changed: bool) -> State:
    """Bring one DVC stage up to date; StageFailed if the stage or DVC fails or takes too long.

    The returned state is named Cached if the command did not run; its data is False if DVC was not
    asked because the stage was up to date.
    """
    if not upstream_changed and stage not in stage_env.stale | stage_env.forced:
        said = _log_event(stage, "is up to date", "up to date")
        return Completed(name="Cached", message=said, data=False)
    _log_event(stage, "starts", STARTED)
    force = ["--force"] if stage in stage_env.forced else []
    if _run(stage, [*DVC, "repro", *force, "--single-item", stage], stage_env):
        return Completed(message=_log_event(stage, "ran", RAN), data=True)
    said = _log_event(stage, "came from DVC's cache", "from DVC's cache")
    return Completed(name="Cached", message=said, data=True)


def _log_event(stage: str, what: str, event: str) -> str:
    get_run_logger().info(f"{stage} {what}", extra={STAGE_EVENT: event})
    return f"{stage} {what}"


@contextmanager
def measurement_lock(stage: str, stage_env: StageEnvironment) -> Iterator[tuple[int, ...]]:
    """Hold the folder, and the machine if the stage measures; yield the locks' file descriptors.

    The kernel's locks are free once no process of the stage is left, even after kill -9.
    """
    workspace, log = stage_env.workspace, get_run_logger().info

    def on_wait(why: str) -> None:
        log(f"{stage} waits: {why}")

    if _measures(stage, stage_env):
        with hold_machine_and_folder(workspace.lock, workspace.owner, on_wait) as lock_fds:
            yield (*workspace.lock_fds, *lock_fds)
    else:
        with hold_folder(workspace, on_wait) as lock_fd:
            yield (*workspace.lock_fds, lock_fd)


def _measures(stage: str, stage_env: StageEnvironment) -> bool:
    return stage.partition("@")[0] in MEASURED and stage_env.measures


def run_command(name: str, arguments: Sequence[str], stage_env: StageEnvironment) -> None:
    """Run `python -m tasks.NAME` like a stage, supervised and alone; raises StageFailed, too."""
    _log_event(name, "starts", STARTED)
    _run(name, [sys.executable, "-m", f"tasks.{name}", *arguments], stage_env)
    _log_event(name, "ran", RAN)


def _run(stage: str, command: Sequence[str], stage_env: StageEnvironment) -> bool:
    """Run a command, log its output, and return whether the output says that DVC ran a stage.

    Tries again while another DVC process uses the same files.
    """
    tail: deque[str] = deque(maxlen=LAST_LINES)
    root, code, scratch = stage_env.workspace.root, 0, Scratch(stage_env.workspace.root)
    failure_file = scratch.folder / "failure.json"  # the stage writes there why it failed
    held = {MACHINE_HELD: "1"} if _measures(stage, stage_env) else {}
    own = {**stage_env.environment, FAILURE_FILE: str(failure_file), **held}
    environment = dvc_environment(own)
    with measurement_lock(stage, stage_env) as lock_fds:
        for _ in attempts(root, get_run_logger().info):
            tail.clear()
            started = supervised(command, folder=root, environment=environment, lock_fds=lock_fds)
            code, ran = _run_once(stage, started, tail)
            if code == 0:
                return ran
            if ran or not BUSY.search("\n".join(tail)):
                break
    raise _describe_failure(stage, code, tail, failure_file)


def _describe_failure(
    stage: str, code: int, tail: Iterable[str], failure_file: Path
) -> StageFailed:
    try:  # in the stage's own words
        failure = Failure(**json.loads(failure_file.read_text()))
    except (OSError, ValueError, TypeError):  # no file, or cut short by a full disk or a kill
        last_lines = "\n".join(tail)
        said = f"{stage} ended with exit code {code}. Its last lines:\n{last_lines}"
        if problem := find_site_problem(Path.cwd(), last_lines):
            said = f"DVC cannot run {stage}: {problem}"
        return StageFailed(said, stage=stage)
    if failure.traceback:
        get_run_logger().error(failure.traceback, extra={LOG_ONLY: True})
    return StageFailed(f"{stage}: {failure.first_line}", stage=stage, failure=failure)


def _run_once(
    stage: str, started: AbstractContextManager[subprocess.Popen], tail: deque[str]
) -> tuple[int, bool]:
    logger, ran = get_run_logger(), False
    with started as process, with_timeout(process) as timed_out:
        # Until no process is left that could write: if a supervisor is killed, another takes over.
        for line in process.stdout or ():
            text = line.rstrip()
            if not text or _NOISE.match(text):
                continue
            ran = ran or text.startswith("Running stage")
            tail.append(text)
            logger.info(text, extra={STAGE_OUTPUT: True})
        code = process.wait()
    if timed_out.is_set():
        reason = f"ended after {os.environ[TIMEOUT_S]} s, the `stage_timeout_s` of worker.yaml"
        failure = Failure(kind="StageTimeout", message=f"{reason}; finished work is kept")
        raise StageFailed(f"{stage}: {failure.message}", stage=stage, failure=failure)
    return code, ran


@contextmanager
def with_timeout(process: subprocess.Popen) -> Iterator[threading.Event]:
    """End a process that exceeds THROUGHLINE_STAGE_TIMEOUT_S, after setting the yielded event."""
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        process.terminate()

    allowed = os.environ.get(TIMEOUT_S)
    timer = threading.Timer(float(allowed or 0), end)
    if allowed:
        timer.start()
    try:
        yield timed_out
    finally:
        timer.cancel()


def _should_retry(stage: str, error: object) -> bool:
    # After a failure that is no bug, the user must act first.
    known = isinstance(error, StageFailed) and error.failure
    return stage in PREPARATION and not (known and not known.traceback)
