"""Generates faults: small changes of single expressions and statements of the program.

A comparison takes the other bound or its opposite, `and` becomes `or`, a `not` is dropped, a small
number grows by one, a call whose result nobody uses is left out.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.mutations.faults import Fault, find_file

OTHERS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
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
        place = path.relative_to(root).with_suffix("")
        package, _, last = ".".join(place.parts).rpartition(".")
        using = re.compile(rf"\b{package}\.{last}\b|from {package} import .*\b{last}\b")
        folder = Path("tests") / place.parts[-2 if len(place.parts) > 1 else 0]
        tests = [str(one.relative_to(root)) for one, text in imports.items() if using.search(text)]
        tests = tests or ([str(folder)] if (root / folder).is_dir() else [])
        tests = sorted(tests, key=lambda test: not test.startswith(str(folder)))[:MOST_FILES]
        name = " ".join(f"{place}: {before} -> {after}".split())
        fault = Fault(name=name, before=before, after=after, tests=tuple(tests))
        if tests and find_file(sources, fault) == path:
            faults.append(fault)
        if len(faults) == count:
            break
    return faults


def _change(text: str) -> Iterator[tuple[str, str]]:
    """Yield the source of statements, or of conditions, and what takes its place."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    source = text.encode()

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.If | ast.While):
            whole = statement.test
        elif isinstance(statement, ast.Assign | ast.AugAssign | ast.Return | ast.Expr | ast.Raise):
            whole = statement
        else:
            continue
        first, last = span(whole)
        before = source[first:last].decode()
        if isinstance(whole, ast.Expr):
            if isinstance(whole.value, ast.Call) and not SAID.match(before):
                yield before, "pass"
            continue
        for begin, end, after in _replace(whole, span):
            changed = source[first:begin] + after.encode() + source[end:last]
            yield before, changed.decode()


def _replace(
    whole: ast.AST, span: Callable[[ast.expr], tuple[int, int]]
) -> Iterator[tuple[int, int, str]]:
    """Yield the bytes from and to which a part of a statement is replaced, and by what."""
    for node in ast.walk(whole):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            (_, begin), (end, _) = span(node.left), span(node.comparators[0])
            yield begin, end, f" {OTHERS[type(node.ops[0])]} "
        elif isinstance(node, ast.BoolOp):
            (_, begin), (end, _) = span(node.values[0]), span(node.values[1])
            yield begin, end, " or " if isinstance(node.op, ast.And) else " and "
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            begin, _ = span(node)
            yield begin, span(node.operand)[0], ""
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value <= LARGEST:
            yield *span(node), str(node.value + 1)
