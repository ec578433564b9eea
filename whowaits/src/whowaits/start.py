"""Runs a script as `python SCRIPT` would, or a module as `python -m MODULE`, and watches its
trainings. The command starts this file with the user's interpreter; nothing of the script's
libraries is imported or set here.
"""

import sys

STARTED_WITH = frozenset(sys.modules)

import importlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402


def load_package() -> None:
    """Load this package from its folder, so that nothing joins the script's path."""
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
    """Forget modules of the standard library that were imported here and that a script in this
    folder has as its own: as without this package, it finds those first.
    """
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
        # Of pkg.train, a module, this is the working directory, where it is found.
        forget_siblings(Path(asked["script"]).resolve().parent)
    run(asked, sys.argv[2:])
