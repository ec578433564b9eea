"""Generates faults: small changes of single expressions and statements of the program.

A comparison takes the other bound or its opposite, `and` becomes `or`, a `not` is undone, a small
number grows by one, a call whose result nobody uses is left out.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.mutations.faults import Fault, find_file

PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or)),
)
CHANGED = (ast.If, ast.While, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Expr)
OTHERS = {one: other for pair in PAIRS for one, other in (pair, reversed(pair))}
LARGEST = 9  # numbers up to here are bounds and places, larger ones mostly sizes and times
MOST_FILES = 5  # of tests, those in the folder of the package first
SAID = re.compile(r"^(echo\w*|print|logger|\w*\.(debug|info|warning))\b")  # nothing depends on it


def generate_faults(
    root: Path, sources: Mapping[Path, str], *, count: int, seed: int, within: str
) -> list[Fault]:
    """Return `count` faults, or as many as there are, in files whose path begins with `within`.

    Each has the files of tests that import the module, else those of its package.
    """
    imports = {path: path.read_text() for path in sorted((root / "tests").rglob("test_*.py"))}
    possible = [
        (path, before, after)
        for path, text in sources.items()
        if str(path.relative_to(root)).startswith(within)
        for before, after in _change(text)
    ]
    random.Random(seed).shuffle(possible)
    faults: list[Fault] = []
    for path, before, after in possible:
        if len(faults) == count:
            break
        place = path.relative_to(root).with_suffix("")
        package, _, last = ".".join(place.parts).rpartition(".")
        using = re.compile(rf"\b{package}\.{last}\b|from {package} import .*\b{last}\b")
        folder = Path("tests") / place.parent.name
        tests = [str(one.relative_to(root)) for one, text in imports.items() if using.search(text)]
        tests = tests or ([str(folder)] if (root / folder).is_dir() else [])
        tests = sorted(tests, key=lambda test: not test.startswith(str(folder)))[:MOST_FILES]
        name = " ".join(f"{place}: {before} -> {after}".split())
        fault = Fault(name=name, before=before, after=after, tests=tuple(tests))
        if tests and find_file(sources, fault) == path:
            faults.append(fault)
    return faults


def _change(text: str) -> Iterator[tuple[str, str]]:
    """Yield the source of statements, or of conditions, and what takes its place."""
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, CHANGED):
            continue
        whole = getattr(statement, "test", statement)  # of a condition, which has a body, too
        before = ast.get_source_segment(text, whole) or ""
        if isinstance(statement, ast.Expr):
            if isinstance(statement.value, ast.Call) and not SAID.match(before):
                yield before, "pass"
            continue
        for node in ast.walk(whole):
            for field, other in _replace(node):
                own = getattr(node, field)
                setattr(node, field, other)
                yield before, ast.unparse(whole)
                setattr(node, field, own)


def _replace(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield the field of a node that is changed, and its other value."""
    match node:
        case ast.Compare(ops=[operator]):
            yield "ops", [OTHERS[type(operator)]()]
        case ast.BoolOp(op=operator):
            yield "op", OTHERS[type(operator)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.Constant(value=int(number)) if type(number) is int and number <= LARGEST:
            yield "value", number + 1
