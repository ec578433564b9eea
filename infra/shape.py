"""Print each package's level, modules, lines and imports of others: `python infra/shape.py`."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PACKAGES = ("throughline", "tasks", "flows")
FURTHER = ("whowaits", "tests", "benchmarks", "infra")


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


def levels(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Return the height of each package: one above the highest package that it imports."""

    def height(package: str, above: tuple[str, ...] = ()) -> int:
        below = arrows[package] - {package, *above}
        return 1 + max((height(each, (*above, package)) for each in below), default=-1)

    return {package: height(package) for package in list(arrows)}


def main() -> None:
    counts, lines, arrows = Counter(), Counter(), defaultdict(set)
    for name, text, tree in modules():
        package = package_of(name)
        counts[package] += 1
        lines[package] += text.count("\n")
        arrows[package] |= {package_of(other) for other in imported(tree)} - {package}
    table = Table("package", "level", "modules", "lines", "imports", box=None)
    height = levels(arrows)
    for package in sorted(counts, key=lambda package: (-height[package], package)):
        others = ", ".join(sorted(one.removeprefix("throughline.") for one in arrows[package]))
        figures = (f"{number:,}" for number in (height[package], counts[package], lines[package]))
        table.add_row(package.removeprefix("throughline."), *figures, others)
    console = Console(width=98)
    console.print(table)
    others = {
        folder: sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py"))
        for folder in FURTHER
    }
    shown = ", ".join(f"{folder} {count:,}" for folder, count in others.items())
    total = sum(lines.values())
    console.print(f"\n{sum(counts.values())} modules, {total:,} lines")
    console.print(f"further lines: {shown}; in all {total + sum(others.values()):,}")


if __name__ == "__main__":
    main()
