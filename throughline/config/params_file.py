"""params.yaml as text: reads it and sets single values. Values are not checked here."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from throughline.shared.errors import InvalidParams

PARAMS_FILE = Path("params.yaml")
UNREADABLE = (YAMLError, ValueError, RecursionError)  # a wrong date or number; endless nesting
COLON = "found unexpected ':'"
LONGEST_OVERRIDE, MOST_BRACKETS = 20_000, 200  # for one value; larger ones belong in a file


def read_yaml(path: Path) -> dict[str, Any]:
    """Read params.yaml and check only that it is a YAML mapping with unique keys."""
    return parse_yaml(read_yaml_text(path), path.name)


def read_yaml_text(path: Path) -> str:
    """Read params.yaml; InvalidParams if it does not exist, is a folder or is not UTF-8."""
    if not path.exists():
        raise InvalidParams([f"{path} does not exist; run from the folder that holds it"])
    if path.is_dir():
        raise InvalidParams([f"{path} is a folder; expected a YAML file"])
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InvalidParams([f"{path.name} is not valid YAML: {error}"]) from error


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse the text of params.yaml like `read_yaml`; errors contain the file's `name`."""
    try:
        document = YAML(typ="safe").load(text)
    except UNREADABLE as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        if COLON in reason:
            reason += ". Quote module:name within brackets, or DVC cannot read it"
        raise InvalidParams([f"{name} is not valid YAML: {reason}"]) from error
    if isinstance(document, dict):
        return document
    found = type(document).__name__
    raise InvalidParams([f"{name}: expected a mapping at the top, found {found}"])


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply overrides `KEY=VALUE` of dotted keys in place; missing parents become mappings."""
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            problems.append(f"--set {override}: expected KEY=VALUE, such as train.epochs=5")
            continue
        try:
            value = _read_value(text)
        except UNREADABLE:
            problems.append(f"--set {override[:200]}: expected a short YAML value without aliases")
            continue
        target: Any = document
        *parents, last = key.strip().split(".")
        for part in parents:
            if isinstance(target, dict):  # copy it, because a YAML anchor may share it
                target[part] = deepcopy(target.get(part, {}))
            target = target[part] if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[last] = value
        else:
            problems.append(f"--set {override}: {'.'.join(parents)} is not a mapping")
    if problems:
        raise InvalidParams(problems)


def _read_value(text: str) -> Any:
    """Parse a YAML value; "" gives None, and unquoted text keeps all after a #.

    Raises ValueError for aliases, which could expand to gigabytes, and for text too long or deep to
    parse fast. Ruamel's own parser accepts module:name in brackets, as YAML 1.2; libyaml does not.
    """
    if not text.strip():
        return None
    if len(text) > LONGEST_OVERRIDE or text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError("too long or too deep")
    if any(isinstance(event, AliasEvent) for event in YAML(typ="safe", pure=True).parse(text)):
        raise ValueError("aliases are not expanded here")
    value, written = YAML(typ="safe", pure=True).load(text), text.strip()
    # A # that YAML takes for a comment may be part of a path, such as `my photos #1`.
    is_cut = isinstance(value, str) and value != "" and written.startswith(value)
    return written if is_cut or written.startswith("#") else value
