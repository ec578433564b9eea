"""`--failed-to FILE` writes the ids of the tests that fail, one per line, as they fail."""

from pathlib import Path

import pytest

DIED = "died in "  # before the id of a test whose process was gone; later ones have not run


class FailureFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """A test has failed, or its set-up or its file has, or the process that ran it has died."""
        # pytest-xdist names a test whose process has died with its group behind an @.
        died = getattr(report, "when", "") == "???" or ".py" not in report.nodeid
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{DIED if died else ''}{report.nodeid}\n")

    pytest_collectreport = pytest_runtest_logreport


def read_failures(path: Path) -> list[str]:
    """Ids of the tests that have failed so far, each once."""
    return list(dict.fromkeys(path.read_text().split("\n")[:-1]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, metavar="FILE", help="write ids of failed tests")


def pytest_configure(config: pytest.Config) -> None:
    """Write the file, unless this is one of several processes; the first one hears of all."""
    path = config.getoption("failed_to")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureFile(path))
