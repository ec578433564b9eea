"""Runs a script as `python SCRIPT` would, and watches its trainings. The command starts this file
with the user's interpreter; nothing of the script's libraries is imported or set here.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path


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


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = ""  # this folder is not for the script
    load_package()
    run = importlib.import_module("whowaits.running").run
    run(json.loads(sys.argv[1]), sys.argv[2:])
