"""What a machine may lack, and what is not tested there: the only skips there are.

A test calls `need("chromium")`. Any other skip fails its test. Where the environment says CI=true,
these fail, too; elsewhere the run ends with what was not tested and how to have it tested.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.local.postgres import installed
from throughline.shared.limits import MEMORY_FILES, list_cgroups

TORCH = os.environ.get("TORCH_PYTHON", "")


@dataclass(frozen=True)
class Need:
    """Something that tests need of the machine: what goes untested without, and how to get it."""

    untested: str
    remedy: str
    met: Callable[[], bool]


def _does(*command: str) -> bool:
    """Whether a command is there and does what it is to do."""
    there = shutil.which(command[0])
    return bool(there) and not subprocess.run(command, capture_output=True, check=False).returncode


def _mounts() -> bool:
    mount = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    with tempfile.TemporaryDirectory() as folder:
        return _does(*mount, folder) and _does("umount", folder)


def _namespaces() -> bool:
    name = f"throughline{os.getpid() % 10_000}"
    return _does("ip", "netns", "add", name) and _does("ip", "netns", "del", name)


def make_memory_cgroup() -> Path | None:
    """Make a cgroup in which memory is limited; returns its limit file, which is in its folder, or
    None where none can be made.

    It is below this process's own, or below one further up: version 2 has no limits below a cgroup
    with processes.
    """
    for kind, levels in list_cgroups(Path("/proc/self"), "memory"):
        limit = MEMORY_FILES[kind][0]
        for parent in levels:
            made = parent / f"throughline-{os.getpid()}"
            try:
                made.mkdir()
            except OSError:
                continue
            if (made / limit).exists():
                return made / limit
            made.rmdir()
    return None


def _cgroups() -> bool:
    limit = make_memory_cgroup()
    if limit:
        limit.parent.rmdir()
    return limit is not None


NEEDS = {
    "cgroup": Need(
        "memory within the limits of a container",
        "run the tests as a user who may make cgroups, such as root",
        _cgroups,
    ),
    "chromium": Need(
        "everything that people see: the pages of Prefect and MLflow",
        "apt-get install chromium",
        lambda: shutil.which("chromium") is not None,
    ),
    "curl": Need(
        "the commands of docs/prediction.md that ask a served model",
        "apt-get install curl",
        lambda: shutil.which("curl") is not None,
    ),
    "postgres": Need(
        "the whole stack: Postgres, object store, passwords, backups",
        "apt-get install postgresql",
        installed,
    ),
    "compiler": Need(
        "readings of NVIDIA GPUs, whose libraries are compiled for the test",
        "apt-get install gcc libc6-dev",
        lambda: shutil.which("cc") is not None,
    ),
    "torch": Need(
        "changes of PyTorch's DataLoader, with the real one",
        "python -m venv torch-env; torch-env/bin/pip install torch; and set"
        " TORCH_PYTHON=torch-env/bin/python",
        lambda: bool(TORCH),
    ),
    "root": Need(
        "what other users of the machine can do",
        "run the tests as root",
        lambda: os.geteuid() == 0,
    ),
    "namespaces": Need(
        "what processes in another network namespace can do",
        "apt-get install iproute2 and run the tests as a user who may make network namespaces,"
        " such as root",
        _namespaces,
    ),
    "mount": Need(
        "full and read-only disks",
        "run the tests as a user who may mount a tmpfs, such as root",
        _mounts,
    ),
}
_MARK = "NOT TESTED: "


def need(name: str) -> None:
    """Skip the test unless the machine has what NEEDS calls `name`; fail it where CI=true."""
    lacks = NEEDS[name]
    if not lacks.met():
        end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        end(f"{_MARK}{lacks.untested}. To have it tested: {lacks.remedy}")


def pytest_configure(config: pytest.Config) -> None:
    """Let the run end with the reasons of skips."""
    config.option.reportchars += "s"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Fail what is skipped for another reason: a test, or a module that skips itself."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and _MARK not in report.longrepr[2]:
        path, line, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: no need of tests/support/skips.py: {reason}"
    return report


pytest_make_collect_report = pytest_runtest_makereport
