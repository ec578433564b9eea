"""Runs a script or module as Python would, and watches its trainings. The command starts this file
with the user's interpreter; it neither imports nor configures the script's libraries.
"""

import sys

STARTED_WITH = frozenset(sys.modules)

import importlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402


def load_package() -> None:
    """Load this package from its folder, without adding to the script's import path."""
    if "whowaits" in sys.modules:
        return
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        "whowaits", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is incomplete; install whowaits again")
    package = importlib.util.module_from_spec(spec)
    sys.modules["whowaits"] = package
    spec.loader.exec_module(package)


def forget_siblings(folder: Path) -> None:
    """Forget standard modules that the script's folder replaces by its own."""
    for name in set(sys.modules) - STARTED_WITH - {"whowaits"}:
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            del sys.modules[name]


if __name__ == "__main__":
    if sys.version_info < (3, 9):  # noqa: UP036 - the user's Python, not this package's
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"whowaits: {sys.executable} is Python {version}, but 3.9 or later is needed")
    safe = getattr(sys.flags, "safe_path", False)
    if not safe:
        del sys.path[0]  # the script must not import from here, nor this package from its folder
    load_package()
    run = importlib.import_module("whowaits.running").run
    asked = json.loads(sys.argv[1])
    if not safe:
        sys.path.insert(0, "")
        # For a module, pkg.train, this is the working directory.
        forget_siblings(Path(asked["script"]).resolve().parent)
    run(asked, sys.argv[2:])
