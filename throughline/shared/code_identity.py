"""Digests of Python code: modules and all project modules that they import, without running them.

Comments, docstrings and formatting do not count. Imports of every kind are followed, but not a
module that only a string names (`importlib.import_module(name)`). Installed packages count by their
versions (`libraries.py`).
"""

import ast
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from throughline.shared.errors import InvalidCode
from throughline.shared.files import digest_blake2b
from throughline.shared.gc_pause import no_garbage_collection

HERE = Path(__file__).resolve().parents[2]
PROGRAM = ("flows", "tasks", "throughline")  # packages of this program, not of its user
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_digest(
    *modules: str, roots: Sequence[Path] | None = None, without: Sequence[str] = ()
) -> str:
    """Return a digest of `modules` and all modules below `roots` that they import.

    Modules in `without` are left out. If one of `modules` is in `without` or outside `roots`, only
    its own file counts, or its name if it has no Python file. By default, `roots` are the current
    folder and the folder that holds this program.
    """
    files = project_files(*modules, roots=roots, without=without)
    others = [(name, find_source(name)) for name in modules if name not in files]
    parts = [
        f"{name}\n{_read(path)[0] if path else ''}" for name, path in (*files.items(), *others)
    ]
    return digest_blake2b(*(part.encode() for part in sorted(parts)))


def project_files(
    *modules: str, roots: Sequence[Path] | None = None, without: Sequence[str] = ()
) -> dict[str, Path]:
    """Return the files of `modules` and of all that they import below `roots`, by module name.

    Includes packages' `__init__.py`, but leaves out the modules and packages in `without`.
    """
    searched = [Path.cwd(), HERE] if roots is None else list(roots)
    files: dict[str, Path] = {}
    pending, seen = list(modules), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        left_out = any(name == other or name.startswith(f"{other}.") for other in without)
        path = None if left_out else _find_file(name, searched)
        if path is None:
            continue
        files[name] = path
        parts = name.split(".")
        pending += [".".join(parts[:count]) for count in range(1, len(parts))]
        pending += _imports(name, path)
    return files


def computation_digest(files: Iterable[Path]) -> str:
    """Return the digest of the computations in the modules `files`.

    It covers the modules' functions, and the constants and classes in them that the functions use,
    also indirectly. Docstrings and fields of classes, which only hold values, do not count.
    """
    trees = [_without_fields(parse_source(file)) for file in files]
    definitions: defaultdict[str, list[ast.stmt]] = defaultdict(list)
    for statement in (statement for tree in trees for statement in tree.body):
        for name in _defined_names(statement):
            definitions[name].append(statement)
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    pending: list[ast.AST] = [*functions]
    used: list[ast.stmt] = []
    while pending:
        names = [node.id for node in ast.walk(pending.pop()) if isinstance(node, ast.Name)]
        for name in names:
            used += (found := definitions.pop(name, []))
            pending += found
    return digest_blake2b(*(ast.dump(node).encode() for node in [*functions, *used]))


def imported_packages(*modules: str, roots: Sequence[Path]) -> set[str]:
    """Return the top-level names of the third-party packages that a user's modules import."""
    files = project_files(*modules, roots=roots, without=PROGRAM)
    imports = (one for name, path in files.items() for one in _imports(name, path))
    own = {name.partition(".")[0] for name in files} | {*PROGRAM, ""}
    return {one.partition(".")[0] for one in imports} - own - sys.stdlib_module_names


Import = tuple[int, str, str]  # dots, module, name


def _read(path: Path) -> tuple[str, list[Import]]:
    """Return the digest of a file's syntax tree without docstrings, and its imports."""
    state = path.stat()
    return _read_state(path, state.st_mtime_ns, state.st_size)


@cache
def _read_state(path: Path, _mtime_ns: int, _size: int) -> tuple[str, list[Import]]:
    tree, imports = parse_source(path), list[Import]()
    for node in _walk_statements(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [(node.level, node.module or "", alias.name) for alias in node.names]
    return digest_blake2b(ast.dump(_without_docstrings(tree)).encode()), imports


def _imports(module: str, path: Path) -> Iterator[str]:
    """Yield the names of possible modules that a file imports: `from a import b` may mean a.b."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for dots, base, name in _read(path)[1]:
        if dots:
            above = package.split(".")[: len(package.split(".")) - dots + 1]
            base = ".".join([*above, *([base] if base else [])])
        yield base
        if name:
            yield f"{base}.{name}"


def _find_file(module: str, roots: Sequence[Path]) -> Path | None:
    if not module or not all(part.isidentifier() for part in module.split(".")):
        return None
    for root in roots:
        stem = root.joinpath(*module.split("."))
        for path in (stem / "__init__.py", stem.with_suffix(".py")):
            if path.is_file():
                return path
    return None


def find_source(module: str) -> Path | None:
    """Find a module's .py file, importing only its parent packages; None if there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def parse_source(path: Path) -> ast.Module:
    try:
        with no_garbage_collection():
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line, reason = getattr(error, "lineno", "?"), getattr(error, "msg", error)
        raise InvalidCode(
            f"{path}, line {line}: {reason}; correct it and run the same command again"
        ) from error


def _walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all statements in it, skipping the far more numerous expressions."""
    yield node
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for statement in getattr(node, part, ()):
            yield from _walk_statements(statement)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in _walk_statements(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _without_fields(tree: ast.Module) -> ast.Module:
    for node in ast.walk(_without_docstrings(tree)):
        if isinstance(node, ast.ClassDef):
            node.body = [
                statement
                for statement in node.body
                if not isinstance(statement, ast.AnnAssign)
                or ast.unparse(statement.annotation).startswith("ClassVar")
            ]
    return tree


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef):
        return [statement.name]
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else []
    targets += statement.targets if isinstance(statement, ast.Assign) else []
    nodes = (node for target in targets for node in ast.walk(target))
    return [node.id for node in nodes if isinstance(node, ast.Name)]
