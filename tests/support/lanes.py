"""How tests are divided: by marks into lanes, and by groups among the processes that run them.

The tests of a file are a group, and so are all that use one running stack, which is started once.
pytest-xdist runs a group in one process (`--dist loadgroup`). What takes longest begins.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from _pytest.nodeid import NodeId

STACK = "stack"  # the fixture of several files that takes longest to start
_FIRST = (STACK, "local", "slow", "core", "integration")  # fixtures and marks


def slow_but_first(cases: Sequence[Any]) -> list:
    """All cases for `parametrize`, all but the first slow; a case of several values is a tuple."""
    first, *others = cases
    values = [each if isinstance(each, tuple) else (each,) for each in others]
    return [first, *(pytest.param(*each, marks=pytest.mark.slow) for each in values)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups that take longest first."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_group_of(item), []).append(item)
    order = sorted(groups.values(), key=lambda group: (min(map(_rank, group)), -len(group)))
    items[:] = [item for group in order for item in group]


def _group_of(item: pytest.Item) -> str:
    uses_stack = STACK in getattr(item, "fixturenames", ())
    return STACK if uses_stack else item.nodeid.partition("::")[0]


def _rank(item: pytest.Item) -> int:
    names = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
    return min((_FIRST.index(name) for name in names.intersection(_FIRST)), default=len(_FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Put the group at the end of each test's id, where `--dist loadgroup` looks for it, while
    pytest-xdist reads the ids. Its mark `xdist_group` does not: version 3.8 writes the group where
    pytest 9.2 keeps no id.
    """
    ids = [item._id for item in session.items]
    if session.config.getoption("loadgroup", False):
        for item in session.items:
            item._id = NodeId.parse(f"{item.nodeid}@{_group_of(item)}")
    yield
    for item, own in zip(session.items, ids, strict=True):
        item._id = own
