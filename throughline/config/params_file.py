"""params.yaml as text: reading it, and setting single values of it. No value is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from throughline.shared.errors import InvalidParams

PARAMS_FILE = Path("params.yaml")
COLON = "found unexpected ':'"
LONGEST_OVERRIDE, MOST_BRACKETS = 20_000, 200  # of one value; more belongs into a file


def read_yaml(path: Path) -> dict[str, Any]:
    """Read params.yaml without checking more than that it is a YAML mapping with unique keys."""
    return parse_yaml(read_yaml_text(path), path.name)


def read_yaml_text(path: Path) -> str:
    """Read the text of params.yaml.

    Raises:
      InvalidParams: it does not exist, or is no UTF-8.
    """
    if not path.exists():
        raise InvalidParams([f"{path} does not exist; run from the folder that holds it"])
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InvalidParams([f"{path.name} is not valid YAML: {error}"]) from error


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse the text of params.yaml, as `read_yaml` does; `name` is the file's, for errors."""
    try:
        document = YAML(typ="safe").load(text)
    except (
        YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # not YAML; a date or number that cannot be; nested without end
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        hint = ". Quote module:name within brackets, which DVC reads no other way"
        raise InvalidParams(
            [f"{name} is not valid YAML: {reason}{hint if COLON in reason else ''}"]
        ) from error
    if not isinstance(document, dict):
        raise InvalidParams(
            [f"{name}: expected a mapping at the top, found {type(document).__name__}"]
        )
    return document


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set dotted keys of the document in place; a part that is missing on the way becomes a
    mapping.
    """
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            problems.append(f"--set {override}: expected KEY=VALUE, such as train.epochs=5")
            continue
        try:
            value = _read_value(text)
        except (YAMLError, ValueError, RecursionError):
            # Not YAML; a date or number that cannot be; nested without end.
            problems.append(f"--set {override[:200]}: {text[:200]} is not a YAML value")
            continue
        target: Any = document
        *parents, last = key.strip().split(".")
        for part in parents:
            if isinstance(target, dict):  # a copy: its YAML anchor may stand elsewhere, too
                target[part] = deepcopy(target.get(part, {}))
            target = target[part] if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[last] = value
        else:
            problems.append(f"--set {override}: {'.'.join(parents)} is not a mapping")
    if problems:
        raise InvalidParams(problems)


def _read_value(text: str) -> Any:
    """Read a YAML value without aliases, which make gigabytes of a few lines, and of bounded depth,
    which the parser pays for dearly; a plain text is all that is written. Ruamel's own parser takes
    module:name in brackets, as YAML 1.2 does; libyaml does not.
    """
    if not text.strip():
        return None
    if len(text) > LONGEST_OVERRIDE or text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError("too long or too deep")
    if any(isinstance(event, AliasEvent) for event in YAML(typ="safe", pure=True).parse(text)):
        raise ValueError("aliases are not expanded here")
    value, written = YAML(typ="safe", pure=True).load(text), text.strip()
    # What YAML takes for a comment is part of a path, such as `my photos #1`.
    is_cut = isinstance(value, str) and value != "" and written.startswith(value)
    return written if is_cut or written.startswith("#") else value
