"""Adds a configuration to params.yaml as lines of text. All other bytes stay, comments included."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from throughline.config.params_file import parse_yaml
from throughline.shared.errors import InvalidParams, Untunable
from throughline.shared.files import atomic_file

SECTION = "pipelines"


def write_yaml(name: str, config: Mapping[str, Any], *, indent: int = 2) -> str:
    lines = [f"{' ' * indent}{name}:"]
    lines += [f"{' ' * 2 * indent}{key}: {_flow(value)}" for key, value in config.items()]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value)


def insert_pipeline(path: Path, name: str, config: Mapping[str, Any]) -> bool:
    """Add a configuration to a params.yaml atomically; return False if it is there already.

    Raises:
      Untunable: Another configuration has that name, or the file's style allows no added lines.
        The message gives the lines to add by hand.
    """
    with path.open(newline="") as file:
        text = file.read()
    before = parse_yaml(text, path.name)
    present = before[SECTION].get(name)
    if present == dict(config):
        return False
    by_hand = f"Add it by hand, below `{SECTION}:`:\n{write_yaml(name, config)}"
    if present is not None:
        raise Untunable(
            f"{path.name}: {SECTION}.{name} exists with other settings; rename or remove it."
            f" {by_hand}"
        )
    changed, after = _insert(text, name, config), None
    with suppress(InvalidParams):
        after = parse_yaml(changed, path.name)
    if after != {**before, SECTION: {**before[SECTION], name: dict(config)}}:
        raise Untunable(f"{path.name}: no lines can be added to `{SECTION}:` as written. {by_hand}")
    with atomic_file(path.resolve()) as temporary, temporary.open("w", newline="") as file:
        shutil.copymode(path, temporary)
        file.write(changed)
    return True


def _insert(text: str, name: str, config: Mapping[str, Any]) -> str:
    """Return the text with added lines; empty if its style allows none."""
    root: Any = YAML(pure=True).compose(text)  # a mapping: it has been parsed
    section = next(value for name, value in root.value if name.value == SECTION)
    if not isinstance(section, MappingNode) or section.flow_style or not section.value:
        return ""
    lines = text.splitlines(keepends=True)
    ending = "\r\n" if lines[0].endswith("\r\n") else "\n"
    added = write_yaml(name, config, indent=section.value[0][0].start_mark.column)
    last = _last_line(section)
    if not lines[last].endswith("\n"):
        lines[last] += ending
    lines.insert(last + 1, added.replace("\n", ending))
    return "".join(lines)


def _last_line(node: Node) -> int:
    """Return the index of a node's last line, without comments and blank lines after it."""
    if node.start_mark.index == node.end_mark.index:  # an empty value: its key's line counts
        return 0
    if isinstance(node, CollectionNode) and not node.flow_style:
        pairs = [each for pair in node.value for each in (pair if type(pair) is tuple else (pair,))]
        return max(map(_last_line, pairs), default=node.start_mark.line)
    end = node.end_mark
    return end.line if end.column else max(node.start_mark.line, end.line - 1)
