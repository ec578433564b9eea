"""Print figures of the shape of this program: `python infra/shape.py`.

Packages with modules, lines and imports of each other, the longest functions and files, and the
width of lines.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PACKAGES = ("throughline", "tasks", "flows")
FURTHER = ("whowaits", "tests", "benchmarks", "infra")
WIDE = 100


def package_of(module: str) -> str:
    """Return a module's package, with a subpackage if there is one."""
    parts = module.split(".")
    return ".".join(parts[:2]) if (ROOT / Path(*parts[:2])).is_dir() else parts[0]


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        yield name, text, ast.parse(text)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


def functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the number of lines and the name of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield (node.end_lineno or 0) - node.lineno + 1, node.name


def levels(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Return the height of each package: one above the highest package that it imports."""

    def height(package: str, above: tuple[str, ...] = ()) -> int:
        below = arrows[package] - {package, *above}
        return 1 + max((height(each, (*above, package)) for each in below), default=-1)

    return {package: height(package) for package in list(arrows)}


def shorten(package: str) -> str:
    return package.removeprefix("throughline.")


def count_lines(folder: Path) -> int:
    return sum(path.read_text().count("\n") for path in folder.rglob("*.py"))


def main() -> None:
    counts, lines, arrows = Counter(), Counter(), defaultdict(set)
    longest: list[tuple[int, str]] = []
    files: list[tuple[int, str]] = []
    wide = total = 0
    for name, text, tree in modules():
        package = package_of(name)
        counts[package] += 1
        lines[package] += text.count("\n")
        arrows[package] |= {package_of(other) for other in imported(tree)} - {package}
        longest += [(length, f"{name}.{function}") for length, function in functions(tree)]
        files.append((text.count("\n"), name))
        total += text.count("\n")
        wide += sum(len(line) > WIDE for line in text.splitlines())
    table = Table("package", "level", "modules", "lines", "imports", box=None)
    height = levels(arrows)
    for package in sorted(counts, key=lambda package: (-height[package], package)):
        others = ", ".join(sorted(map(shorten, arrows[package])))
        table.add_row(
            shorten(package),
            str(height[package]),
            str(counts[package]),
            f"{lines[package]:,}",
            others,
        )
    console = Console(width=WIDE - 2)
    console.print(table)
    console.print(f"\n{sum(counts.values())} modules, {total:,} lines, {wide} wider than {WIDE}")
    others = {folder: count_lines(ROOT / folder) for folder in FURTHER}
    shown = ", ".join(f"{folder} {count:,}" for folder, count in others.items())
    console.print(f"further lines: {shown}; in all {total + sum(others.values()):,}")
    for label, found in (("functions", longest), ("files", files)):
        three = ", ".join(f"{name} {length}" for length, name in sorted(found, reverse=True)[:3])
        console.print(f"longest {label} [lines]: {three}", highlight=False)


if __name__ == "__main__":
    main()
