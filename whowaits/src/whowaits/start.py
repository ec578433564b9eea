"""Runs a script or module as Python would, and watches its trainings. The command starts this file
with the user's interpreter; it imports and sets nothing of the script's libraries.
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
        raise ImportError(f"{folder} is not complete")
    package = importlib.util.module_from_spec(spec)
    sys.modules["whowaits"] = package
    spec.loader.exec_module(package)


def forget_siblings(folder: Path) -> None:
    """Forget standard modules that the script's folder replaces by its own."""
    for name in set(sys.modules) - STARTED_WITH - {"whowaits"}:
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            del sys.modules[name]


if __name__ == "__main__":
    if sys.version_info < (3, 9):  # noqa: UP036 - the user's, not the one of this package
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"whowaits: {sys.executable} is Python {version}, and 3.9 is the least")
    safe = getattr(sys.flags, "safe_path", False)
    if not safe:
        del sys.path[0]  # this folder is not for the script, nor the script's for this package
    load_package()
    run = importlib.import_module("whowaits.running").run
    asked = json.loads(sys.argv[1])
    if not safe:
        sys.path.insert(0, "")
        # For a module, pkg.train, this is the working directory.
        forget_siblings(Path(asked["script"]).resolve().parent)
    run(asked, sys.argv[2:])
