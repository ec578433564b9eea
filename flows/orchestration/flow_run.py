"""What every flow does around its stages: open a workspace, know the stages' order and environment,
keep the experiment.
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
from flows.run.experiments import find_experiment, is_saved, save_experiment
from flows.run.fork_server import stage_server
from flows.run.locks import hold_folder
from flows.run.parameters import Changes, derive_name
from flows.run.resolution import resolve
from flows.run.source_check import check_code, check_named_files, check_source, is_large
from flows.run.workspace import (
    Workspace,
    open_workspace,
    remove_workspace,
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

IDENTITIES = "identities"  # what else decides results; all stages depend on what it writes


@dataclass(frozen=True, kw_only=True)
class FinishedStage:
    """A stage that has finished, and whether it or one before it may have `changed`: it ran, came
    from DVC's cache, or was another run's meanwhile. The run's graph has an edge from it to those
    that come after it.
    """

    state: State
    changed: bool


def _run_stage(
    stage: str, stage_env: StageEnvironment, after: Sequence[FinishedStage]
) -> FinishedStage:
    upstream_changed = any(one.changed for one in after)
    state = run_stage(
        stage,
        stage_env,
        upstream_changed=upstream_changed,
        wait_for=[one.state for one in after],
        return_state=True,
    )
    changed = bool(state.result())  # raises what the stage raised
    return FinishedStage(state=state, changed=changed or upstream_changed)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One flow run: its name, where it happens, its checked parameters, and where and how its
    stages run.
    """

    name: str
    workspace: Workspace
    params: Params
    stage_env: StageEnvironment
    progress: StageProgress | None = None
    # What the stages come after: the identities, if they were out of date.
    identified: Sequence[FinishedStage] = ()

    @property
    def tags(self) -> dict[str, str]:
        """Tags by which a run of MLflow leads to this one, as those of configurations do."""
        environment = self.stage_env.environment
        tags = {
            lineage.EXPERIMENT_TAG: environment.get(lineage.EXPERIMENT, ""),
            "prefect.flow_run_id": environment.get(lineage.FLOW_RUN, ""),
        }
        return {tag: value for tag, value in tags.items() if value}

    def with_parent_run(self, parent: str | None) -> Run:
        """The same run with its configurations' MLflow runs below the run `parent`."""
        if parent is None:
            return self
        environment = {**self.stage_env.environment, lineage.PARENT_RUN: parent}
        return replace(self, stage_env=replace(self.stage_env, environment=environment))

    def with_forced(self, stages: Sequence[str]) -> Run:
        """The same run in which these stages run although they are up to date."""
        return replace(self, stage_env=replace(self.stage_env, forced=frozenset(stages)))

    def without_measuring(self) -> Run:
        """The same run whose training waits for no other run that measures on this machine."""
        return replace(self, stage_env=replace(self.stage_env, measures=False))

    def with_progress_bar(self, stages: int) -> Run:
        """The same run with a bar on its page that is full after so many stages."""
        return replace(self, progress=StageProgress(stages))

    def chain(self, stages: Sequence[str], *, after: Sequence[FinishedStage] = ()) -> FinishedStage:
        """Run stages one after another, the first of them after others; once one may have changed,
        the later ones ask DVC. Returns the last.
        """
        for stage in stages:
            after = [_run_stage(stage, self.stage_env, after or self.identified)]
            if stage == "ingest":
                show_data(Layout(self.workspace.root))
            if self.progress:
                self.progress.advance(stage)
        return after[-1]

    @contextmanager
    def hold_results(self) -> Iterator[None]:
        """Let no other run in the same folder change its results, while they are read."""
        with _hold(self.workspace):
            yield

    def check_up_to_date(self, stages: Sequence[str], *, changed: bool, saves: bool = True) -> None:
        """Ask DVC whether all these stages, which the run was to bring up to date, are; only where
        something `changed`, since each stage reads params.yaml and code by itself. `saves`: an
        isolated run is to be an experiment.

        Raises:
          WorkspaceProblem: some are not, so that the run's results may not belong together.
        """
        if not changed:
            return
        # New data since then, as where photos keep arriving, are in none of the run's results, and
        # another run may have measured again; an experiment would still not match its dvc.lock.
        late = set() if self.workspace.isolated and saves else {*PREPARATION, "report"}
        stale = ({*stages} - late) & _identify(self.workspace, self.stage_env)[1].stale
        if stale:
            raise WorkspaceProblem(
                f"{self.name} is not finished: params.yaml, code or data have changed while it was"
                f" at work, and {', '.join(sorted(stale))} out of date again. Its results may not"
                " belong together, and nothing was concluded from them; the same command brings"
                " them up to date"
            )

    def save_experiment(self, *, changed: bool) -> Path | None:
        """Keep an isolated run as a DVC experiment of its name; a run that nobody named leaves only
        its report. One of which nothing `changed` is kept where it was cut before it was.

        Returns where the report has moved to, if it has.

        Raises:
          WorkspaceProblem: DVC could not save it.
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
        instead = f", in place of the one that git has as {earlier[:10]}" if earlier else ""
        get_run_logger().info(
            f"kept as DVC experiment {self.name}{instead}: `dvc exp show`, `dvc exp apply"
            f" {self.name}`"
        )
        return self.cleanup()

    def cleanup(self) -> Path | None:
        """Remove the worktree of a run that nobody named. Returns where the report has moved to, if
        it has.
        """
        return remove_workspace(self.workspace) if self.workspace.ephemeral else None


@contextmanager
def start_run(changes: Changes, name: str, *, only: Sequence[str] = ()) -> Iterator[Run]:
    """Open the workspace of the current flow run, ask DVC once what is out of date there, and hold
    it for the block.

    `only` are the configurations that the run is about; none: all. In a workspace of its own there
    are no others, since an experiment would hold results for them that nobody has made. A run whose
    name another run is using waits for that one.

    Raises:
      InvalidParams: a changed parameter is wrong, a configuration does not exist, or a run from the
        UI reaches out of the project.
      UnreadableSource: DVC could not compare the source's files with those of the last run.
    """
    configure_logging()
    resolved = resolve(Path.cwd(), changes, only)
    run_name = name or str(flow_run.name)
    if resolved.changed and not name:
        run_name = derive_name(run_name, str(flow_run.id))
    for number in changes.numbers(read_yaml(Path.cwd() / PARAMS_FILE)):
        get_run_logger().info(f"{number} is of the form; {PARAMS_FILE} says something else")
    for swept in sweep_workspaces(resolved.request.project):
        get_run_logger().info(f"removed what the run {swept} left more than a day ago")
    opened = open_workspace(
        resolved,
        name=run_name,
        ephemeral=not name,
        on_wait=lambda who: get_run_logger().info(
            f"waits: {who} is using the workspace of that name"
        ),
    )
    with disk_errors(), opened as workspace:
        # MLflow's store stays the project's, for this process and, by its environment, the stages.
        os.environ[STORE_HOME] = str(workspace.project)
        use_store()
        environment = {
            STORE_HOME: str(workspace.project),
            lineage.FLOW_RUN: str(flow_run.id or ""),
        }
        document, listed = parse_yaml(resolved.text, PARAMS_FILE.name), []
        if workspace.isolated:
            environment |= {lineage.EXPERIMENT: run_name, **workspace.environment}
            check_code(workspace.project, find_own_code(document, workspace.project))
            listed = list_watched_files(workspace.root)
        data = resolved.params.data
        check_source(workspace.root, data.path, fetched=data.fetch)
        check_named_files(workspace.root, document, listed)
        if workspace.is_new and not is_address(data.path) and is_large(workspace.root / data.path):
            get_run_logger().info(
                f"DVC reads all of {data.path} now, as once in every new worktree; a later run with"
                f" --name {run_name} reads only what has changed"
            )
        stage_env = StageEnvironment(
            workspace.root,
            _stale_stages(workspace, environment),
            environment,
            lock=workspace.lock,
            lock_fds=workspace.lock_fds,
            owner=workspace.owner,
        )
        try:
            with share_imports(stage_env) as served, say_how_to_resume(run_name, workspace):
                identified, served = _run_identities(workspace, served)
                yield Run(
                    name=run_name,
                    workspace=workspace,
                    params=resolved.params,
                    stage_env=served,
                    identified=identified,
                )
        finally:
            clear_scratch(workspace.root)  # of stages that were ended


@contextmanager
def say_how_to_resume(name: str, workspace: Workspace) -> Iterator[None]:
    """Say in one line how a run that is cut in the block, by Ctrl-C or SIGTERM, goes on, or one
    that fails and was given no name: without one the same command would start another worktree.
    """
    same = f"the same command with --name {name}" if workspace.isolated else "the same command"
    try:
        yield
    except (KeyboardInterrupt, TerminationSignal):
        get_run_logger().warning(f"stopped; {same} resumes it")
        raise
    except Exception:
        if workspace.ephemeral and workspace.root.exists():
            get_run_logger().warning(f"{same} goes on from what is finished")
        raise


@contextmanager
def share_imports(stage_env: StageEnvironment) -> Iterator[StageEnvironment]:
    """Have a server of stages for the length of the block where more than one stage will run, as
    after `identities`, and the environment names none; a single one has imported what it needs as
    soon as the server.
    """
    alone = len(stage_env.stale) < 2 and IDENTITIES not in stage_env.stale  # noqa: PLR2004
    if alone or os.environ.get(STAGE_SERVER):
        yield stage_env
        return
    with stage_server(stage_env.root, stage_env.environment) as address:
        yield replace(stage_env, environment={**stage_env.environment, **address})


def _identify(
    workspace: Workspace, stage_env: StageEnvironment
) -> tuple[Sequence[FinishedStage], StageEnvironment]:
    """As `_run_identities`, once DVC has been asked what is out of date now."""
    stale = _stale_stages(workspace, stage_env.environment)
    return _run_identities(workspace, replace(stage_env, stale=stale))


def _run_identities(
    workspace: Workspace, stage_env: StageEnvironment
) -> tuple[Sequence[FinishedStage], StageEnvironment]:
    """Write the identities where they are out of date, and ask DVC again, so that only stages that
    they concern run.
    """
    if IDENTITIES not in stage_env.stale:
        return [], stage_env
    identified = replace(_run_stage(IDENTITIES, stage_env, []), changed=False)
    stale = _stale_stages(workspace, stage_env.environment)
    return [identified], replace(stage_env, stale=stale)


def _stale_stages(workspace: Workspace, environment: Mapping[str, str]) -> frozenset[str]:
    """Ask DVC, which is to know all own code, in turn with other runs in the same folder."""
    logger = get_run_logger()
    with _hold(workspace) as folder_fds:
        for change in watch_own_code(workspace.root):
            logger.info(change)
        lock_fds = (*workspace.lock_fds, *folder_fds)
        return stale_stages(workspace.root, environment, logger.info, lock_fds)


def _hold(workspace: Workspace) -> AbstractContextManager[tuple[int, ...]]:
    """Hold the folder of a run, in turn with other runs in the same."""
    logger = get_run_logger()
    return hold_folder(
        workspace.lock, workspace.owner, lambda who: logger.info(f"waits: {who} is running here")
    )
