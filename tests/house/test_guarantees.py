"""Each promise of docs/guarantees.md names tests by their ids, and they exist."""

from __future__ import annotations

import re

import pytest

from tests.support.project import ROOT

PROMISES = [
    (number, line)
    for number, line in enumerate((ROOT / "docs" / "guarantees.md").read_text().splitlines(), 1)
    if line.startswith("| ") and not line.startswith("| promise ")
]


def named_tests(row: str) -> list[str]:
    """Ids of the tests in a row; `::name` alone is in the file that was named before it."""
    ids, file = [], ""
    for path, name in re.findall(r"(tests/[\w/]+\.py)?::(\w+)", row):
        file = path or file
        ids.append(f"{file}::{name}")
    return ids


@pytest.mark.parametrize("row", [row for _, row in PROMISES], ids=[str(n) for n, _ in PROMISES])
def test_a_promise_names_tests_that_exist(row):
    tests = named_tests(row.rpartition(" | ")[2])
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test
