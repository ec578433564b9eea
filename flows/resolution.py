"""The parameters of a run, resolved and checked once: those of params.yaml with the changes of the
run, if it may make them.

A command resolves them before it starts a flow, so that what is wrong is said at once, and hands
them on; a flow that was started from the UI resolves them itself.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from flows.access_policy import AccessPolicy, is_confined, load_limits
from flows.parameters import Changes
from tasks.errors import InvalidParams, did_you_mean
from tasks.params import Params, check
from tasks.params_checks import RAW
from tasks.params_file import PARAMS_FILE, apply_overrides, parse_yaml, read_yaml_text


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a run asks for: changes in a project's params.yaml; `only` these configurations, or all
    where there are none.
    """

    project: Path
    changes: Changes
    only: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ResolvedParams:
    """The parameters of a run: its params.yaml, whose values are `params`, and whether it differs
    from the project's.

    A changed one holds the configurations asked for alone, since an experiment would hold results
    for the others that nobody has made; `complete` holds all, for whoever applies the experiment.
    """

    request: Request
    text: str
    complete: str
    params: Params
    changed: bool


# Words and paths: plain text wherever they stand.
_PLAIN = re.compile(r"\w[\w/. -]*(?<! )")
_SHARED: ContextVar[ResolvedParams | None] = ContextVar("shared", default=None)


@contextmanager
def share_resolved(resolved: ResolvedParams) -> Iterator[None]:
    """Let flows that are started in the block have these parameters where they ask for the same."""
    token = _SHARED.set(resolved)
    try:
        yield
    finally:
        _SHARED.reset(token)


def resolve(project: Path, changes: Changes, only: Sequence[str] = ()) -> ResolvedParams:
    """Merge changes into a project's params.yaml, overlays first, and check the result, unless this
    has been done and handed on.

    Raises:
      InvalidParams: all problems at once; a configuration of `only` does not exist, or a run from
      the UI reaches out of the project.
    """
    request = Request(project=project, changes=changes, only=tuple(only))
    shared = _SHARED.get()
    if shared and shared.request == request:
        return shared
    text = read_yaml_text(project / PARAMS_FILE)
    own = parse_yaml(text, PARAMS_FILE.name)
    overlays, overrides = changes.overlays(), changes.settings(own)
    changed = bool(overlays or overrides)
    merged = _merge(text, overlays, overrides) if changed else None
    document = own if merged is None else parse_yaml(_dump(merged), PARAMS_FILE.name)
    if is_confined():  # before the check below, which imports what the parameters name
        AccessPolicy(project=project, own=own, limits=load_limits(project)).check(document)
    params = check(document)
    _check_pipelines_exist(params, only)
    complete = text
    if merged is not None:
        params = _select(params, project, only)
        merged["data"]["path"] = params.data.path
        complete = _dump(merged)
        text = drop_pipelines(complete, merged["pipelines"].keys() - params.pipelines.keys())
    return ResolvedParams(
        request=request, text=text, complete=complete, params=params, changed=changed
    )


def _merge(text: str, overlays: Sequence[Mapping[str, Any]], overrides: Sequence[str]) -> Any:
    """A document that keeps order and comments, with overlays and overrides merged into it."""
    document = YAML().load(text)
    for overlay in overlays:
        merge(document, overlay)
    apply_overrides(document, overrides)
    return document


def merge(document: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Merge nested mappings into a document; everything but mappings is replaced, and so is a
    mapping that ends in `!`.
    """
    for key, value in overlay.items():
        if key.endswith("!"):
            document[key.removesuffix("!")] = value
        elif isinstance(value, Mapping) and isinstance(document.get(key), dict):
            merge(document[key], value)
        else:
            document[key] = value


def drop_pipelines(text: str, names: Collection[str]) -> str:
    """The text of params.yaml without these configurations."""
    document = YAML().load(text)
    for name in names:
        del document["pipelines"][name]
    return _dump(document)


def join_overlays(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The overlay that changes what two change one after the other.

    >>> join_overlays({"pipelines!": {"a": {}}}, {"pipelines": {"b": {}}, "batch_size": 8})
    {'pipelines!': {'a': {}, 'b': {}}, 'batch_size': 8}
    """
    joined = deepcopy(dict(first))
    for key, value in second.items():
        name = key.removesuffix("!")
        replaces = f"{name}!" in joined
        before = joined.pop(f"{name}!", None) or joined.pop(name, None)
        if key.endswith("!") or not isinstance(value, Mapping) or before is None:
            joined[key] = value
        elif not isinstance(before, Mapping):
            joined[f"{name}!"] = value
        elif replaces:
            merge(before := dict(before), value)
            joined[f"{name}!"] = before
        else:
            joined[name] = join_overlays(before, value)
    return joined


def _dump(document: Any) -> str:
    """The text of a document, with its comments, that any parser reads as the same values."""
    yaml = YAML()
    yaml.width = 160
    text = StringIO()
    yaml.dump(_quoted(document), text)
    return text.getvalue()


def _quoted(value: Any) -> Any:
    """A document in which texts are quoted that are more than words or paths: what a plain one may
    hold depends on where it stands, and on the parser.
    """
    if isinstance(value, dict):
        for key in list(value):
            if _quoted(key) is not key:
                value[_quoted(key)] = value.pop(key)
            value[key] = _quoted(value[key])
    elif isinstance(value, list):
        value[:] = [_quoted(item) for item in value]
    elif type(value) is str and not _PLAIN.fullmatch(value):
        return DoubleQuotedScalarString(value)
    return value


def _select(params: Params, project: Path, only: Sequence[str]) -> Params:
    """The parameters for a worktree: the configurations `only`, if any are given; data that it
    cannot have at the same relative path, by its absolute one.
    """
    chosen = {name: config for name, config in params.pipelines.items() if name in only}
    path = Path(params.data.path)
    own_data = not path.is_absolute() and not path.is_relative_to(RAW) and (project / path).exists()
    same_path = own_data and (project / path).resolve() == project.resolve() / path
    absolute = (
        {"path": str((project / path).resolve())}
        if own_data and not (same_path and not _is_mixed(project, path))
        else {}
    )
    return replace(
        params,
        pipelines=chosen or params.pipelines,
        data=params.data.model_copy(update=absolute),
    )


def _is_mixed(project: Path, path: Path) -> bool:
    """Whether git tracks some of the files at a path, and others not: a worktree has the former
    alone.
    """
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z"]
    tracked, others = (
        subprocess.run(
            [*command, *which, "--", str(path)], cwd=project, capture_output=True, check=False
        ).stdout
        for which in ((), ("--others",))
    )
    return bool(tracked and others)


def _check_pipelines_exist(params: Params, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in params.pipelines]
    if unknown:
        raise InvalidParams(
            [
                f"{PARAMS_FILE}: pipelines.{name} does not exist;"
                f" {did_you_mean(name, list(params.pipelines))}"
                for name in unknown
            ]
        )
