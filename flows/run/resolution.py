"""Resolves and checks a run's parameters once: params.yaml with the changes that the run may make.

Commands do so before their flow starts, so that mistakes show at once; runs from the UI later.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from flows.run.access_policy import find_policy
from flows.run.changed_params import NamedChanges, drop_pipelines, dump_params, join_overlays
from flows.run.git_calls import list_files, list_submodules
from flows.run.parameters import OVERRIDE, Changes, check_name
from flows.run.source_check import check_exists
from throughline.config.params import (
    OP_SECTIONS,
    Params,
    check,
    check_pipelines_exist,
    find_read_fraction,
    parse_document,
)
from throughline.config.params_checks import RAW
from throughline.config.params_file import PARAMS_FILE, parse_yaml, read_yaml, read_yaml_text
from throughline.config.table_check import check_table
from throughline.shared.errors import InvalidParams, WorkspaceProblem
from throughline.shared.failures import report_user_errors
from throughline.shared.store_address import check_store_address


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run's request: changes to params.yaml, whose text is `own`, and the configurations `only`;
    empty for all.
    """

    project: Path
    changes: Changes
    only: tuple[str, ...]
    own: str


@dataclass(frozen=True, kw_only=True)
class ResolvedParams:
    """The parameters of a run, and whether they differ from the project's.

    `text` is the run's params.yaml; if changed, only with the selected configurations, so that the
    experiment lists none without results. `complete` has all, for users who apply the experiment.
    """

    request: Request
    text: str
    complete: str
    params: Params
    changed: bool


# The parameters that this process's command has resolved, for its flow to use again.
_OF_COMMAND: ContextVar[ResolvedParams | None] = ContextVar("of_command", default=None)


def resolve_command(
    overrides: list[str] | None,
    overlays: Sequence[Path] | None,
    name: str | None,
    pipelines: Sequence[str],
) -> tuple[Changes, ResolvedParams]:
    """Resolve a command's parameters; the flow that it starts uses the result again.

    Raises InvalidParams and UnknownPipeline as `resolve` does, and WorkspaceProblem if the name is
    not valid, or is given although nothing changes.
    """
    wrong = [text for text in overrides or [] if not OVERRIDE.fullmatch(text)]
    if problems := [f"--set: {one!r} is not KEY=VALUE, such as train.epochs=5" for one in wrong]:
        raise InvalidParams(problems)
    if name is not None:
        check_name(name)
    files = [(str(path), read_yaml(path)) for path in overlays or []]
    overlay = reduce(join_overlays, (content for _, content in files), {})
    changes = Changes(overrides=overrides or [], overlay=overlay)
    try:
        resolved = resolve(Path.cwd(), changes, pipelines)
    except InvalidParams as error:
        named, problems = NamedChanges(overlays=dict(files), overrides=[]), [*error.problems]
        for place, problem in enumerate(problems):
            if problem.startswith("overlay:"):
                of_file = f"{PARAMS_FILE.name}{problem.removeprefix('overlay')}"
                problems[place] = named.name_origin(of_file)
        raise InvalidParams(problems) from error
    if name is not None and not resolved.changed:
        raise WorkspaceProblem(
            f"--name {name} is for a run with changes, which has a worktree of that name: give its"
            " --overlay and --set, or leave out --name"
        )
    _OF_COMMAND.set(resolved)
    return changes, resolved


def check_started_command() -> None:
    """Check this process's command line, as far as it parses here, before Prefect is imported."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--pipeline", "--set", "--overlay"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--name")
    with suppress(argparse.ArgumentError):
        options, others = parser.parse_known_args(sys.argv[1:])
        if "--help" in others:
            return
        with report_user_errors():
            overlays = [Path(file) for file in options.overlay]
            _, resolved = resolve_command(options.set, overlays, options.name, options.pipeline)
            if "--show" not in others:
                params = resolved.params
                check_store_address()
                check_exists(Path.cwd(), params.data.path, fetched=params.data.fetch)
                check_table(Path.cwd(), params.data, changed=resolved.changed, window=params.window)


def resolve(project: Path, changes: Changes, only: Sequence[str] = ()) -> ResolvedParams:
    """Merge changes into params.yaml, overlays first, and check it, or reuse the command's result.

    InvalidParams lists all problems, or what a run from the UI may not access; UnknownPipeline
    names a configuration of `only` that does not exist.
    """
    text = read_yaml_text(project / PARAMS_FILE)
    request = Request(project=project, changes=changes, only=tuple(only), own=text)
    known = _OF_COMMAND.get()
    if known and known.request == request:
        return known
    own = parse_yaml(text, PARAMS_FILE.name)
    overrides = [*changes.numbers(own), *changes.overrides]
    named = NamedChanges(overlays=changes.overlays(), overrides=overrides)
    changed = bool(named.overlays or named.overrides)
    policy = find_policy(project, own)
    merged = named.apply(text, policy) if changed else None
    document = own if merged is None else parse_yaml(dump_params(merged), PARAMS_FILE.name)
    if policy:  # before `check`, which imports code that the parameters name
        policy.check(document)
    try:
        params = check(document)
    except InvalidParams as error:
        raise InvalidParams([named.name_origin(problem) for problem in error.problems]) from error
    if merged is None and "fetch" not in document["data"]:
        said = f"{PARAMS_FILE.name}: data.fetch is missing, and dvc.yaml names a folder by it"
        raise InvalidParams([f"{said}: write `fetch: {params.data.fetch}` below `data:`"])
    check_pipelines_exist(params.pipelines, only)
    complete = text
    if merged is not None:
        params = _select(params, project, only)
        if policy and not policy.grants_links(document):
            data = params.data.model_copy(update={"follow_links": False})
            params, merged["data"]["follow_links"] = replace(params, data=data), False
        merged["data"] |= {"path": params.data.path, "fetch": params.data.fetch}
        chosen = parse_document(document)
        for section in OP_SECTIONS:
            if merged.get(section, "auto") == "auto":
                merged[section] = getattr(chosen, section)
        if params.snapshot.stored_fraction != find_read_fraction(params.pipelines.values()):
            # Without the left-out configurations, `auto` could resolve to another fraction.
            merged.setdefault("snapshot", {})["fraction"] = params.snapshot.stored_fraction
        complete = dump_params(merged)
        text = drop_pipelines(complete, merged["pipelines"].keys() - params.pipelines.keys())
    return ResolvedParams(
        request=request, text=text, complete=complete, params=params, changed=changed
    )


def _select(params: Params, project: Path, only: Sequence[str]) -> Params:
    """Keep the configurations `only`, if any, and adapt the data to a worktree.

    `data.path` becomes absolute unless the worktree can have the data at the same relative path.
    `data.fetch` becomes `none` if `data.path` is outside of its folder.
    """
    chosen = {name: config for name, config in params.pipelines.items() if name in only}
    path, changed = Path(params.data.path), {}
    target = (project / path).resolve()
    own_data = not path.is_absolute() and not path.is_relative_to(RAW) and target.exists()
    if own_data and (target != project.resolve() / path or _is_partial(project, path)):
        changed["path"] = str(target)
    if not target.is_relative_to((project / RAW / params.data.fetch).resolve()):
        changed["fetch"] = "none"
    data = params.data.model_copy(update=changed)
    return replace(params, pipelines=chosen or params.pipelines, data=data)


def _is_partial(project: Path, path: Path) -> bool:
    """Return whether a worktree lacks files at a path: some, but not all, are untracked, or some
    are in a submodule, which is empty there.
    """
    mixed = all(list_files(project, *which, "--", str(path)) for which in ((), ("--others",)))
    return mixed or any(
        path.is_relative_to(one) or one.is_relative_to(path) for one in list_submodules(project)
    )
