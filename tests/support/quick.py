"""Quick tests start no process and import no TensorFlow: others are to be marked `integration`."""

import multiprocessing.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MARKS = ("integration", "core", "slow")
_MARKED = re.compile(rf"^pytestmark = (?:.*|\[[^]]*)\bmark\.({'|'.join(MARKS)})\b", re.MULTILINE)
_started: list[str] = []


def _recording(function: Callable, name: str) -> Callable:
    def record(*args: Any, **kwargs: Any) -> Any:
        _started.append(name)
        return function(*args, **kwargs)

    return record


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--quick`, for the lane of quick tests alone."""
    parser.addoption("--quick", action="store_true", help="import no file without quick tests")


class _NoTensorFlow:
    def find_spec(self, name: str, *_: Any) -> None:
        if name == "tensorflow":
            raise ImportError("a quick test imports no TensorFlow: mark it integration")


def pytest_configure(config: pytest.Config) -> None:
    """Record what starts a process from now on, and keep TensorFlow out of the quick lane."""
    if config.getoption("quick"):
        sys.meta_path.insert(0, _NoTensorFlow())
    starts = {subprocess.Popen: "__init__", os: "fork", multiprocessing.util: "spawnv_passfds"}
    for owner, name in starts.items():
        setattr(owner, name, _recording(getattr(owner, name), f"{owner.__name__}.{name}"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that are marked as a whole, and with them the libraries that they import."""
    if not config.getoption("quick"):
        return None
    files = collection_path.glob("test_*.py") if collection_path.is_dir() else [collection_path]
    texts = [file.read_text() for file in files if file.suffix == ".py"]
    return True if texts and all(map(_MARKED.search, texts)) else None


def pytest_collection_finish() -> None:
    """What a library starts while it is imported counts for no test."""
    _started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Fail a test of the quick lane that has started a process, itself or by its fixtures."""
    report = yield
    if _started and report.passed and not any(map(item.get_closest_marker, MARKS)):
        report.outcome = "failed"
        report.longrepr = f"starts a process ({_started[0]}): mark it integration"
    _started.clear()
    return report
