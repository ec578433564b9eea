"""Merges overlays and single values into params.yaml, and keeps its order and comments."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from io import StringIO
from operator import getitem
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from flows.run.access_policy import AccessPolicy, as_mapping
from throughline.config.params import OP_SECTIONS
from throughline.config.params_file import PARAMS_FILE, apply_overrides
from throughline.config.source_guess import name_source
from throughline.shared.errors import InvalidParams

# Words and paths: YAML reads them as plain text anywhere.
_PLAIN = re.compile(r"\w[\w/. -]*(?<! )")
_PROBLEM = re.compile(rf"{re.escape(PARAMS_FILE.name)}: (?P<path>[\w-]+(?:\.[\w-]+)*)")


@dataclass(frozen=True, kw_only=True)
class NamedChanges:
    """The changes of a run: overlays by name, merged in order, then `KEY=VALUE` overrides."""

    overlays: Mapping[str, Mapping[str, Any]]
    overrides: Sequence[str]

    def apply(self, text: str, policy: AccessPolicy | None = None) -> Any:
        """Apply the changes to the text of params.yaml, and return the parsed document.

        If they change the kind of data, sections of ops that they do not name are dropped.
        InvalidParams if an override cannot be applied, `policy` forbids a look at the data, or
        `data.source: auto` does not know their kind.
        """
        document = YAML().load(text)
        source = _find_source(document)
        for overlay in self.overlays.values():
            merge(document, overlay)
        apply_overrides(document, self.overrides)
        data = as_mapping(document.get("data"))
        if isinstance(data, dict) and data.get("source") == "auto":
            if policy:
                policy.check_data(document)
            data["source"] = name_source(document)["data"]["source"]
        if source not in ("auto", data.get("source")):
            named = {_split_key(override)[0] for override in self.overrides}
            for section in {*OP_SECTIONS} - named:  # ops in params.yaml suit its own data
                if not any(_reaches(overlay, [section]) for overlay in self.overlays.values()):
                    document.pop(section, None)
        for override in self.overrides:
            *parents, key = _split_key(override)
            with suppress(KeyError, TypeError):  # a later change has replaced the parent
                _drop_comment(reduce(getitem, parents, document), key)
        return document

    def name_origin(self, problem: str) -> str:
        """Name the change that caused a problem, if one did: an override without its value, which
        may be a secret.
        """
        found = _PROBLEM.match(problem)
        path = found["path"].split(".") if found else []
        for override in reversed(self.overrides):
            key = _split_key(override)
            if path and all(one == other for one, other in zip(path, key, strict=False)):
                said = problem.removeprefix(f"{PARAMS_FILE.name}: ")
                return f"--set {said}" if key == path else f"--set {'.'.join(key)}: {said}"
        for name, overlay in reversed(list(self.overlays.items())):
            if path and _reaches(overlay, path):
                return f"{name}{problem.removeprefix(PARAMS_FILE.name)}"
        return problem


def _find_source(document: Mapping[str, Any]) -> Any:
    """Return the kind of input; `auto` if the path does not determine it."""
    with suppress(InvalidParams):
        document = name_source(document)
    return as_mapping(document.get("data")).get("source")


def _split_key(override: str) -> list[str]:
    return override.partition("=")[0].strip().split(".")


def _reaches(overlay: Any, path: Sequence[str]) -> bool:
    """Return whether an overlay sets the value at a path, or a parent of it."""
    for part in path:
        if not isinstance(overlay, Mapping):
            break
        key = next((key for key in (part, f"{part}!") if key in overlay), None)
        if key is None:
            return False
        overlay = overlay[key]
    return True


def merge(document: dict[Any, Any], overlay: Mapping[str, Any]) -> None:
    """Merge nested mappings into a document; replace other values, and those of keys ending in `!`.

    Drops comments next to replaced values. Other uses of a YAML anchor stay as they are.
    """
    for key, value in overlay.items():
        replaces = isinstance(key, str) and key.endswith("!")
        name = key.removesuffix("!") if replaces else key
        before = None if replaces else document.get(name)
        merges = isinstance(value, Mapping) and isinstance(before, dict)
        if not merges and before != value:
            _drop_comment(document, name)
        if isinstance(value, Mapping):
            document[name] = deepcopy(before) if merges else {}
            merge(document[name], value)
        else:
            document[name] = value


def _drop_comment(document: dict[Any, Any], key: Any) -> None:
    """Drop the comment on the line of a key, and keep comments on the lines below it."""
    comments = document.ca.items.get(key) if isinstance(document, CommentedMap) else None
    if comments and (after := comments[2]) and after.value.startswith("#"):
        after.value = "\n" + after.value.partition("\n")[2]


def drop_pipelines(text: str, names: Collection[str]) -> str:
    document = YAML().load(text)
    for name in names:
        del document["pipelines"][name]
    return dump_params(document)


def join_overlays(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return one overlay that does what two overlays do one after the other.

    >>> join_overlays({"pipelines!": {"a": {}}}, {"pipelines": {"b": {}}, "batch_size": 8})
    {'pipelines!': {'a': {}, 'b': {}}, 'batch_size': 8}
    """
    joined = deepcopy(dict(first))
    for key, value in second.items():
        marked = isinstance(key, str) and key.endswith("!")
        name = key.removesuffix("!") if marked else key
        replaces, is_new = f"{name}!" in joined, not {name, f"{name}!"} & joined.keys()
        before = joined.pop(f"{name}!" if replaces else name, None)
        if is_new or marked or not isinstance(value, Mapping):
            joined[key] = value
        elif not isinstance(before, Mapping):
            joined[f"{name}!"] = value
        elif replaces:
            merge(before := dict(before), value)
            joined[f"{name}!"] = before
        else:
            joined[name] = join_overlays(before, value)
    return joined


def dump_params(document: Any) -> str:
    """Dump a document with its comments, so that every parser reads the same values."""
    yaml = YAML()
    yaml.width = 160
    text = StringIO()
    yaml.dump(_quoted(document), text)
    return text.getvalue()


def _quoted(value: Any) -> Any:
    """Quote all strings except words and paths, which parsers read alike in every place."""
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
