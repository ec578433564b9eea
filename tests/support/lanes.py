"""How tests are divided: by marks into `make quick`, `make test` and `make test-all`, and by files
among the processes that run them.

The tests of a file run in one process, and so do those of files that share a server, so that none
is started twice. What takes longest begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Files whose tests share a server that takes long to start, by the fixture that is it.
SHARING = {
    "stack": (
        "tests/attacks/test_ui.py",
        "tests/attacks/test_ui_worker.py",
        "tests/flows/test_browser.py",
        "tests/flows/test_ui_stack.py",
    ),
    "local": ("tests/infra/test_local_stack.py",),
}
_FIRST = (*SHARING, "slow", "integration")


def mostly(names: Sequence[str], *, quick: Sequence[str]) -> list:
    """Values for `parametrize`: all names, of which only those in `quick` are in `make quick`."""
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.integration)
        for name in names
    ]


def slow_but_first(cases: Sequence[Any]) -> list:
    """Values for `parametrize`: all cases, of which all but the first are left to
    `make test-all`; a case of several values is a tuple.
    """
    first, *others = cases
    return [
        first,
        *(
            pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow)
            for each in others
        ),
    ]


def group_of(nodeid: str) -> str:
    """What runs in one process with the test of this id: its file, or the server that its file
    shares.
    """
    file = nodeid.partition("::")[0]
    return next((server for server, files in SHARING.items() if file in files), file)


class ByFile(LoadScopeScheduling):
    """Deals the tests to processes file by file; pytest-xdist's own `loadgroup` does not know the
    ids of pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Deal by file where `--dist loadscope` asks for it."""
    return ByFile(config, log) if config.getoption("dist") == "loadscope" else None


def _rank(item: pytest.Item) -> int:
    ranks = [
        number
        for number, name in enumerate(_FIRST)
        if name == group_of(item.nodeid) or item.get_closest_marker(name)
    ]
    return min(ranks, default=len(_FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups that take longest first, and share servers as said above."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        group = group_of(item.nodeid)
        if apart := [
            name for name in SHARING if name in getattr(item, "fixturenames", ()) and name != group
        ]:
            raise pytest.UsageError(
                f"{item.nodeid} uses {apart[0]}, which would be started twice: add its file to"
                " SHARING in tests/support/lanes.py"
            )
        groups.setdefault(group, []).append(item)
    items[:] = [
        item
        for group in sorted(groups.values(), key=lambda group: min(map(_rank, group)))
        for item in group
    ]
