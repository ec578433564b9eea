"""Writes a change into the script's source, and returns the difference as a patch.

Edits only the call at the change's line. Unless only a constant is replaced, the result is
compared as a syntax tree with the intended one, and refused if anything else differs.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whowaits.callers import name_from_here

from .advice import Edit

# Positional arguments that a call may have before the one that a change adds.
MOST_POSITIONAL = {
    "DataLoader": 5, "map": 1, "flat_map": 1, "interleave": 3, "batch": 2,
    "TFRecordDataset": 3, "TextLineDataset": 3, "FixedLengthRecordDataset": 6,
}  # fmt: skip
LOADER_ARGUMENTS = ("dataset", "batch_size", "shuffle", "sampler")  # by position


class CannotBeWritten(ValueError):
    """A change that cannot be made by editing a line."""


def edit_source(source: bytes, script: str, edits: Sequence[Edit]) -> bytes:
    """Return a script's source with the edits; no line moves.

    Raises:
      CannotBeWritten: a call is not found or cannot be edited so, or the script cannot be parsed.
    """
    name = name_from_here(str(Path(script).absolute()))
    # In reverse order: of two additions after the same call, the later one stays last.
    for edit in reversed(edits):
        source = _edit(source, name, edit)
    return source


def diff(source: bytes, edited: bytes, script: str) -> str:
    """Return a `patch -p1` diff for the current folder, or for the script's if it is outside."""
    path = os.path.relpath(script)
    path = Path(script).name if path.startswith(os.pardir) else path
    before, after = (
        io.StringIO(text.decode(), newline="\n").readlines() for text in (source, edited)
    )
    path += "\t" if " " in path else ""  # otherwise `patch` ends the name at the blank
    lines = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    unended = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + unended for line in lines)


def _edit(source: bytes, name: str, edit: Edit) -> bytes:
    file, _, line = edit.where.rpartition(":")
    if file != name:
        raise CannotBeWritten(
            f"{edit.called} is called at {edit.where or 'a line that was not seen'}, not in {name}"
        )
    try:
        tree = ast.parse(source)
        source.decode()
    except (SyntaxError, ValueError) as error:
        raise CannotBeWritten(f"{name} cannot be read as Python in UTF-8: {error}") from error
    call = _find_call(tree, int(line), edit)
    adds = edit.adds
    if adds.startswith("sampler="):
        torch = _imported("torch", tree, name)
        return _give_whole_batches(source, call, adds.partition("=")[2], torch)
    if "tf." in adds:
        adds = adds.replace("tf.", f"{_imported('tensorflow', tree, name)}.")
    becomes, added = _split(adds)
    given = _given(call, added)
    if given is not None:
        return _replace(source, given.value, added.partition("=")[2])
    candidates = list(_candidates(call, added))
    _change(call, adds)
    meant = ast.dump(tree)
    for line_of, column, text in candidates:
        edited = _insert(source, line_of, column, text)
        if becomes:  # before the added text, so the position is still right
            end = call.func.end_lineno or 0, call.func.end_col_offset or 0
            edited = _insert(edited, *end, becomes, instead_of=len(edit.called))
        try:
            if ast.dump(ast.parse(edited)) == meant:
                return edited
        except SyntaxError:
            continue
    raise CannotBeWritten(f"cannot edit the call of {edit.called} at {edit.where} as it is written")


def find_calls(tree: ast.Module, line: int, name: str, exact: bool = Edit.exact) -> list[ast.Call]:
    """Return the calls of `name` that include a line; if `exact`, with the name in that line."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and name_of(node.func) == name
        and node.lineno <= line <= (node.end_lineno or line)
        and (node.func.end_lineno == line or not exact)
    ]


def _find_call(tree: ast.Module, line: int, edit: Edit) -> ast.Call:
    calls = find_calls(tree, line, edit.called, exact=edit.exact)
    if edit.given and len(calls) > 1:
        calls = [call for call in calls if _may_be_given(call, edit.given)]
    elif edit.given:
        calls = [call for call in calls if not _is_given_another(tree, call, edit.given)]
    if len(calls) != 1:
        count = f"{len(calls)} calls" if calls else "no call"
        raise CannotBeWritten(f"{edit.where} has {count} of {edit.called} to edit, but needs one")
    (call,) = calls
    keyword = _split(edit.adds)[1].partition("=")[0]
    most = 1 if keyword == "cycle_length" else MOST_POSITIONAL.get(edit.called, 1)
    taken = any(each.arg is None for each in call.keywords) or len(call.args) > most
    if not edit.adds.startswith(".") and (
        taken or any(isinstance(each, ast.Starred) for each in call.args)
    ):
        why = "already, by position or in an unpacked argument"
        raise CannotBeWritten(f"{edit.called} at {edit.where} may have {keyword} {why}")
    given = _given(call, keyword)
    if given is not None and not isinstance(given.value, ast.Constant):
        raise CannotBeWritten(
            f"{edit.called} at {edit.where} has {keyword}={ast.unparse(given.value)}, which the"
            " script computes: change that value by hand"
        )
    return call


def _given(call: ast.Call, adds: str) -> ast.keyword | None:
    """Return the keyword that would be added, if the call has it already, else None."""
    keyword = "" if adds.startswith(".") else adds.partition("=")[0]
    return next((each for each in call.keywords if each.arg == keyword), None)


def _replace(source: bytes, value: ast.expr, text: str) -> bytes:
    """Replace a keyword's value, which must be on one line, with `text`."""
    line, end = value.end_lineno or 0, value.end_col_offset or 0
    if value.lineno != line:
        raise CannotBeWritten(f"the value that ends in line {line} must be written on one line")
    return _insert(source, line, end, text, instead_of=end - value.col_offset)


def _may_be_given(call: ast.Call, name: str) -> bool:
    """Return whether a call is given the function `name`, or the result of another call."""
    return any(isinstance(each, ast.Call) or name_of(each) == name for each in _functions(call))


def _is_given_another(tree: ast.Module, call: ast.Call, name: str) -> bool:
    """Return whether a call is given a lambda, or a function of the script with another name."""
    defined = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)} - {name}
    given = _functions(call)
    return any(isinstance(each, ast.Lambda) or name_of(each) in defined for each in given)


def _functions(call: ast.Call) -> list[ast.expr]:
    return [*call.args[:1], *(each.value for each in call.keywords if each.arg == "map_func")]


def name_of(function: ast.expr) -> str:
    """Return x for x and y.x, "" for other expressions."""
    return getattr(function, "attr", getattr(function, "id", ""))


def _imported(module: str, tree: ast.Module, name: str) -> str:
    """Return the name under which the script imports a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == module:
                    return alias.asname or module
    raise CannotBeWritten(f"{name} has no `import {module}`, which the change needs")


def _give_whole_batches(source: bytes, call: ast.Call, whole: str, torch: str) -> bytes:
    """Replace the call of a DataLoader by one whose sampler gives the indices of whole batches."""
    given: dict[str | None, ast.expr] = dict(zip(LOADER_ARGUMENTS, call.args))
    given.update((each.arg, each.value) for each in call.keywords)
    dataset, size = given.get("dataset"), given.get("batch_size")
    named = isinstance(dataset, (ast.Name, ast.Attribute)) and "sampler" not in given
    if dataset is None or size is None or not named or call.lineno != call.end_lineno:
        raise CannotBeWritten(
            "DataLoader must be called in one line, with a dataset that has a name, a batch_size"
            " and no sampler"
        )
    outer = _parse_call(whole)
    inner: Any = outer.args[0]
    inner.args, outer.args[1] = [dataset], size
    for each in (outer, inner):
        each.func = ast.Name(f"{torch}.utils.data.{name_of(each.func)}")
    replaced = (*LOADER_ARGUMENTS, "drop_last")
    kept = [each for each in call.keywords if each.arg not in replaced]
    sampled = [ast.keyword("batch_size", ast.Constant(None)), ast.keyword("sampler", outer)]
    text = ast.unparse(ast.Call(call.func, [dataset], sampled + kept))
    end = call.end_col_offset or 0
    return _insert(source, call.lineno, end, text, instead_of=end - call.col_offset)


def _change(call: ast.Call, adds: str) -> None:
    """Change a call within its tree."""
    if adds.startswith("."):
        chain: Any = _parse_call(f"_{adds}")
        ending = chain
        while not isinstance(ending.func.value, ast.Name):
            ending = ending.func.value
        ending.func.value = ast.Call(call.func, call.args, call.keywords)
        call.func, call.args, call.keywords = chain.func, chain.args, chain.keywords
        return
    becomes, added = _split(adds)
    call.keywords += _parse_call(f"_({added})").keywords
    if becomes and isinstance(call.func, ast.Attribute):
        call.func.attr = becomes


def _split(adds: str) -> tuple[str, str]:
    """Split an addition into the method that replaces the called one, or "", and the rest."""
    match = re.fullmatch(r"(\w+)\((.*)\)", adds)
    return (match[1], match[2]) if match else ("", adds)


def _parse_call(text: str) -> ast.Call:
    (statement,) = ast.parse(text).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)  # noqa: S101
    return statement.value


def _candidates(call: ast.Call, adds: str) -> Iterator[tuple[int, int, str]]:
    """Yield where to try an addition: line (from 1), column (from 0, in bytes), text to insert."""
    line, column = call.end_lineno or 0, call.end_col_offset or 0
    if adds.startswith("."):
        yield line, column, adds
        return
    given = [*call.args, *(each.value for each in call.keywords)]
    if given:
        yield (
            *max((each.end_lineno or 0, each.end_col_offset or 0) for each in given),
            f", {adds}",
        )
    yield line, column - 1, f", {adds}"
    yield line, column - 1, adds


def _insert(source: bytes, line: int, column: int, text: str, *, instead_of: int = 0) -> bytes:
    lines = source.splitlines(keepends=True)
    changed = lines[line - 1]
    lines[line - 1] = changed[: column - instead_of] + text.encode() + changed[column:]
    return b"".join(lines)
