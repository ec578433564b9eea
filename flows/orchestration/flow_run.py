"""The common work of all flows: opens a workspace, asks DVC which stages are out of date, runs them
in order, and keeps the experiment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run

from flows.orchestration.artifacts import StageProgress, show_data
from flows.orchestration.cli import configure_logging
from flows.orchestration.stages import PREPARATION, StageEnvironment, run_stage
from flows.run.dvc_calls import stale_stages
from flows.run.fork_server import stage_server
from flows.run.parameters import Changes, derive_name
from flows.run.resolution import ResolvedParams, resolve
from flows.run.source_check import check_code, check_named_files, check_source, is_large
from flows.run.workspace import (
    Workspace,
    find_experiment,
    hold_folder,
    is_saved,
    open_workspace,
    remove_workspace,
    save_experiment,
    sweep_workspaces,
)
from tasks.own_code import find_own_code, list_watched_files, watch_own_code
from throughline.config.params import Params
from throughline.config.params_file import PARAMS_FILE, parse_yaml, read_yaml
from throughline.shared.data_url import is_address
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.failures import disk_errors
from throughline.shared.fork_client import STAGE_SERVER
from throughline.shared.layout import STORE_HOME, Layout
from throughline.shared.scratch import clear_scratch
from throughline.tracking import lineage
from throughline.tracking.store import use_store

IDENTITIES = "identities"  # the stage that all others depend on


@dataclass(frozen=True, kw_only=True)
class FinishedStage:
    """A stage that has finished; the run's graph has edges from it to the stages after it.

    `changed`: it or an earlier one ran, here or by another run, or came from DVC's cache.
    """

    state: State
    changed: bool


def _run_stage(
    stage: str, stage_env: StageEnvironment, after: Sequence[FinishedStage]
) -> FinishedStage:
    changed, states = any(one.changed for one in after), [one.state for one in after]
    state = run_stage(
        stage, stage_env, upstream_changed=changed, wait_for=states, return_state=True
    )
    ran = bool(state.result())  # raises the stage's error, if any
    return FinishedStage(state=state, changed=ran or changed)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One flow run with its checked parameters, and the environment of its stages.

    All stages come after `identified`: the stage `identities`, if it was out of date.
    """

    name: str
    params: Params
    stage_env: StageEnvironment
    progress: StageProgress | None = None
    identified: Sequence[FinishedStage] = ()

    @property
    def workspace(self) -> Workspace:
        return self.stage_env.workspace

    @property
    def tags(self) -> dict[str, str]:
        """Tags of MLflow runs that name this run's DVC experiment and Prefect flow run."""
        environment = self.stage_env.environment
        tags = {
            lineage.EXPERIMENT_TAG: environment.get(lineage.EXPERIMENT, ""),
            "prefect.flow_run_id": environment.get(lineage.FLOW_RUN, ""),
        }
        return {tag: value for tag, value in tags.items() if value}

    def with_parent_run(self, parent: str | None) -> Run:
        """Return a copy whose configurations' MLflow runs are children of `parent`, if given."""
        if parent is None:
            return self
        environment = {**self.stage_env.environment, lineage.PARENT_RUN: parent}
        return replace(self, stage_env=replace(self.stage_env, environment=environment))

    def with_forced(self, stages: Sequence[str]) -> Run:
        """Return a copy in which these stages run although they are up to date."""
        return replace(self, stage_env=replace(self.stage_env, forced=frozenset(stages)))

    def with_progress_bar(self, stages: int) -> Run:
        return replace(self, progress=StageProgress(stages))

    def chain(self, stages: Sequence[str], *, after: Sequence[FinishedStage] = ()) -> FinishedStage:
        """Run stages in order, the first one after `after`; return the last.

        Once a stage's outputs may have changed, DVC is asked about each later stage.
        """
        for stage in stages:
            after = [_run_stage(stage, self.stage_env, after or self.identified)]
            if stage == "ingest":
                show_data(Layout(self.workspace.root))
            if self.progress:
                self.progress.advance(stage)
        return after[-1]

    def hold_results(self) -> AbstractContextManager[int]:
        """Prevent other runs in the same folder from changing its results during the block."""
        return _hold(self.workspace)

    def check_up_to_date(self, stages: Sequence[str], *, changed: bool, saves: bool = True) -> None:
        """Raise WorkspaceProblem if stages went out of date while something `changed`.

        Preparation and report are checked only if an isolated run `saves` an experiment.
        """
        if not changed:
            return
        # Newer data does not affect the run's results, and another run may have raced again; but
        # an experiment must match its dvc.lock.
        late = set() if self.workspace.isolated and saves else {*PREPARATION, "report"}
        stale = ({*stages} - late) & _find_stale(self.stage_env)
        if stale:
            raise WorkspaceProblem(
                f"{self.name} is not finished: params.yaml, code or data changed during the run, so"
                f" these stages are out of date again: {', '.join(sorted(stale))}. Its results may"
                " not belong together, and nothing was concluded; repeat the same command"
            )

    def save_experiment(self, *, changed: bool) -> Path | None:
        """Keep an isolated run as a DVC experiment; return where its report moved to, if anywhere.

        Removes the worktree of a run without a name. Does nothing if the run is an experiment
        already and nothing `changed`. Raises WorkspaceProblem if DVC cannot save it.
        """
        if not self.workspace.isolated or (not changed and is_saved(self.workspace, self.name)):
            return None
        earlier = find_experiment(self.workspace, self.name)
        failure = save_experiment(self.workspace, self.name)
        if failure is not None:
            raise WorkspaceProblem(
                f"{self.name} could not be kept as an experiment: {failure}; its worktree"
                f" {self.workspace.root} stays"
            )
        instead = f", in place of the earlier one (commit {earlier[:10]})" if earlier else ""
        get_run_logger().info(
            f"kept as DVC experiment {self.name}{instead}: `dvc exp show`, `dvc exp apply"
            f" {self.name}`"
        )
        return self.cleanup()

    def cleanup(self) -> Path | None:
        """Remove the worktree of a run without a name; return where its report moved to, if any."""
        return remove_workspace(self.workspace) if self.workspace.ephemeral else None


@contextmanager
def start_run(
    changes: Changes, name: str, *, only: Sequence[str] = (), measures: bool = True
) -> Iterator[Run]:
    """Open and hold the workspace of the current flow run, and ask DVC once what is out of date.

    `only` are the run's configurations; empty means all. With changes, its params.yaml leaves out
    the others, because the experiment has no results for them. A run waits while another
    uses the worktree of its name. Unless it `measures`, its training waits for no measurement.

    Raises:
      InvalidParams, UnknownPipeline, DataNotFound, UnreadableSource, WorkspaceProblem, StageFailed:
        parameters, name, files, git or DVC do not allow the run, or the stage `identities` failed.
    """
    configure_logging()
    resolved, logger = resolve(Path.cwd(), changes, only), get_run_logger()
    run_name = name or str(flow_run.name)
    if resolved.changed and not name:
        run_name = derive_name(run_name, str(flow_run.id))
    for number in changes.numbers(read_yaml(Path.cwd() / PARAMS_FILE)):
        logger.info(f"{number} comes from the form; {PARAMS_FILE} has another value")
    for swept in sweep_workspaces(resolved.request.project):
        logger.info(f"removed the worktree that run {swept} left more than a day ago")
    opened = open_workspace(
        resolved,
        name=run_name,
        ephemeral=not name,
        on_wait=lambda who: logger.info(f"waits: {who} is using the workspace of that name"),
    )
    with disk_errors(), opened as workspace:
        environment = _keep_store_of_project(workspace, run_name)
        _check_files(workspace, resolved)
        data = resolved.params.data.path
        if workspace.is_new and not is_address(data) and is_large(workspace.root / data):
            logger.info(
                f"DVC reads all of {data}, as once in every new worktree; a later run with --name"
                f" {run_name} reads only changed data"
            )
        stale = _stale_stages(workspace, environment)
        stage_env = StageEnvironment(workspace, stale, environment, measures=measures)
        try:
            with share_imports(stage_env) as served, say_how_to_resume(run_name, workspace):
                done, served = _run_identities(served)
                yield Run(name=run_name, params=resolved.params, stage_env=served, identified=done)
        finally:
            clear_scratch(workspace.root)  # files that stopped stages left


def _keep_store_of_project(workspace: Workspace, run_name: str) -> dict[str, str]:
    """Let this process use the project's MLflow store; return the environment of the stages."""
    os.environ[STORE_HOME] = str(workspace.project)
    use_store()
    environment = {STORE_HOME: str(workspace.project), lineage.FLOW_RUN: str(flow_run.id or "")}
    if workspace.isolated:
        environment |= {lineage.EXPERIMENT: run_name, **workspace.environment}
    return environment


def _check_files(workspace: Workspace, resolved: ResolvedParams) -> None:
    document, listed = parse_yaml(resolved.text, PARAMS_FILE.name), []
    if workspace.isolated:
        check_code(workspace.project, find_own_code(document, workspace.project))
        listed = list_watched_files(workspace.root)
    data = resolved.params.data
    check_source(workspace.root, data.path, fetched=data.fetch)
    check_named_files(workspace.root, document, listed)


@contextmanager
def say_how_to_resume(name: str, workspace: Workspace) -> Iterator[None]:
    """Log how to resume a run that is stopped, or an unnamed run with changes that fails."""
    same = f"the same command with --name {name}" if workspace.isolated else "the same command"
    try:
        yield
    except (KeyboardInterrupt, TerminationSignal):
        get_run_logger().warning(f"stopped; {same} resumes it")
        raise
    except Exception:
        if workspace.ephemeral and workspace.root.exists():
            get_run_logger().warning(f"{same} continues from the finished stages")
        raise


@contextmanager
def share_imports(stage_env: StageEnvironment) -> Iterator[StageEnvironment]:
    """Run an import server for stages, unless one exists or at most one stage is out of date."""
    # A single stage imports as fast as the server would.
    alone = len(stage_env.stale) < 2 and IDENTITIES not in stage_env.stale  # noqa: PLR2004
    if alone or os.environ.get(STAGE_SERVER):
        yield stage_env
        return
    with stage_server(stage_env.workspace.root, stage_env.environment) as address:
        yield replace(stage_env, environment={**stage_env.environment, **address})


def _find_stale(stage_env: StageEnvironment) -> frozenset[str]:
    """Update the identities if needed, and return the stages that are out of date now."""
    stale = _stale_stages(stage_env.workspace, stage_env.environment)
    return _run_identities(replace(stage_env, stale=stale))[1].stale


def _run_identities(
    stage_env: StageEnvironment,
) -> tuple[Sequence[FinishedStage], StageEnvironment]:
    """Update the identities if needed, and ask DVC again, so that only affected stages run."""
    if IDENTITIES not in stage_env.stale:
        return [], stage_env
    identified = replace(_run_stage(IDENTITIES, stage_env, []), changed=False)
    stale = _stale_stages(stage_env.workspace, stage_env.environment)
    return [identified], replace(stage_env, stale=stale)


def _stale_stages(workspace: Workspace, environment: Mapping[str, str]) -> frozenset[str]:
    """Update dvc.yaml's list of own code and ask DVC for stale stages, in turn with other runs."""
    log = get_run_logger().info
    with _hold(workspace) as folder_fd:
        for change in watch_own_code(workspace.root):
            log(change)
        return stale_stages(workspace.root, environment, log, (*workspace.lock_fds, folder_fd))


def _hold(workspace: Workspace) -> AbstractContextManager[int]:
    log = get_run_logger().info
    return hold_folder(workspace, lambda why: log(f"waits: {why}"))
