"""The list of planted faults applies to the tree; `tests.mutations.matrix` plants them."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutations.faults import read_faults
from tests.mutations.matrix import ROOT, find_file, plant, read_sources

FAULTS = read_faults()


def is_test(path, name):
    """Whether there is such a file and, where a name follows it, such a function in it."""
    return (ROOT / path).is_file() and (
        not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()
    )


@pytest.mark.integration
def test_every_fault_has_its_place_and_leaves_python():
    sources = read_sources(ROOT)
    files = {fault: find_file(sources, fault) for fault in FAULTS}
    assert not [fault for fault, path in files.items() if path is None], (
        "their snippets occur nowhere, or more than once"
    )
    for fault, path in files.items():
        ast.parse(plant(sources[path], fault), fault.name)


def test_names_are_unique_and_the_tests_are_there():
    assert not [
        name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1
    ]
    assert not [
        test for fault in FAULTS for test in fault.tests if not is_test(*test.partition("::")[::2])
    ]
