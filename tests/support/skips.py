"""What a machine may lack, and what is not tested there: the only skips there are.

A test calls `need("chromium")`. Any other skip fails its test. Where the environment says CI=true,
these fail, too; elsewhere the run ends with what was not looked at and how to have it looked at.
"""

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.local.postgres import installed
from throughline.shared.limits import MEMORY_FILES, list_cgroups

TORCH = os.environ.get("TORCH_PYTHON", "")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that tests need of the machine, what goes untested without, and how to get it."""

    untested: str
    remedy: str
    met: Callable[[], bool]


def _mounts() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


def _namespaces() -> bool:
    name = f"throughline{os.getpid() % 10_000}"
    add = ["ip", "netns", "add", name]
    if not shutil.which("ip") or subprocess.run(add, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


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
        untested="memory within the limits of a container",
        remedy="run the tests as a user who may make cgroups, such as root",
        met=_cgroups,
    ),
    "chromium": Need(
        untested="everything that people see: the pages of Prefect and MLflow",
        remedy="apt-get install chromium",
        met=lambda: shutil.which("chromium") is not None,
    ),
    "curl": Need(
        untested="the commands of docs/prediction.md that ask a served model",
        remedy="apt-get install curl",
        met=lambda: shutil.which("curl") is not None,
    ),
    "postgres": Need(
        untested="the whole stack: Postgres, object store, passwords, backups",
        remedy="apt-get install postgresql",
        met=installed,
    ),
    "compiler": Need(
        untested="readings of NVIDIA GPUs, whose libraries are compiled for the test",
        remedy="apt-get install gcc libc6-dev",
        met=lambda: shutil.which("cc") is not None,
    ),
    "torch": Need(
        untested="changes of PyTorch's DataLoader, with the real one",
        remedy=(
            "python -m venv torch-env; torch-env/bin/pip install torch; and set"
            " TORCH_PYTHON=torch-env/bin/python"
        ),
        met=lambda: bool(TORCH),
    ),
    "root": Need(
        untested="what other users of the machine can do",
        remedy="run the tests as root",
        met=lambda: os.geteuid() == 0,
    ),
    "namespaces": Need(
        untested="what processes in another network namespace can do",
        remedy=(
            "apt-get install iproute2 and run the tests as a user who may make network namespaces,"
            " such as root"
        ),
        met=_namespaces,
    ),
    "mount": Need(
        untested="full and read-only disks",
        remedy="run the tests as a user who may mount a tmpfs, such as root",
        met=_mounts,
    ),
}
_MARK = "NOT TESTED: "


def need(name: str) -> None:
    """Skip the test unless the machine has what NEEDS calls `name`."""
    if not NEEDS[name].met():
        pytest.skip(f"{_MARK}{name}")


def needed(reason: str) -> str | None:
    """Name of the need that a skip's reason stands for; None for any other reason."""
    name = reason.removeprefix("Skipped: ").removeprefix(_MARK)
    return name if name in NEEDS and _MARK in reason else None


def refusal(reason: str) -> str | None:
    """Why a skip fails its test; None if it may be skipped."""
    name = needed(reason)
    if name is None:
        return f"skipped for a reason that tests/support/skips.py does not list: {reason}"
    if os.environ.get("CI") == "true":
        return f"nothing is skipped where CI=true; this needs {name}: {NEEDS[name].remedy}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Fail what is skipped without leave: a test, or a module that skips itself."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        if why := refusal(reason):
            report.outcome, report.longrepr = "failed", f"{path}:{line}: {why}"
    return report


pytest_make_collect_report = pytest_runtest_makereport


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [one.longrepr[2] for one in skipped if isinstance(one.longrepr, tuple)]
    counts = Counter(name for name in map(needed, reasons) if name)
    if counts:
        terminalreporter.section("NOT TESTED ON THIS MACHINE", sep="!", red=True, bold=True)
    for name, count in counts.items():
        said = f"{count} tests need {name}: {NEEDS[name].untested}. To have it tested:"
        terminalreporter.line(f"{said} {NEEDS[name].remedy}", red=True)
