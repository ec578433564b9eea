"""Quick tests start no process: one that does is to be marked `integration`."""

from __future__ import annotations

import multiprocessing.util
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

MARKS = ("integration", "core", "slow")
_started: list[str] = []


def _recording(function: Callable, name: str) -> Callable:
    def record(*args: Any, **kwargs: Any) -> Any:
        _started.append(name)
        return function(*args, **kwargs)

    return record


def pytest_configure() -> None:
    """Record what starts a process from now on."""
    for owner, name in (
        (subprocess.Popen, "__init__"),
        (os, "fork"),
        (multiprocessing.util, "spawnv_passfds"),
    ):
        setattr(owner, name, _recording(getattr(owner, name), f"{owner.__name__}.{name}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Fail a test of the quick lane that has started a process, itself or by its fixtures."""
    report = yield
    if _started and report.passed and not any(map(item.get_closest_marker, MARKS)):
        report.outcome = "failed"
        report.longrepr = f"starts a process ({_started[0]}): mark it integration"
    _started.clear()
    return report
