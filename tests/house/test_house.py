"""What holds for the whole repository, its promises and its planted faults."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.mutations.faults import find_file, plant, read_faults, read_sources
from tests.support.project import ROOT, run_python
from throughline.shared.code_identity import project_files
from throughline.shared.libraries import LIBRARIES
from throughline.shared.program import ROOTS, SUPPORTING, stage_modules

OURS = {"throughline", "tasks", "flows", "whowaits", "infra", "benchmarks", "tests"}
# Other loaders, which benchmarks compare, are installed where these run.
PROGRAM = ("throughline", "tasks", "flows", "infra", "whowaits/src/whowaits")
QUICK = ("identities", "fetch", "ingest", "shard", "snapshot", "report")
DECODERS = {"keras", "pillow", "tensorflow"}
DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python-headless", "google_crc32c": "google-crc32c"}


@cache
def packages_of(path: Path) -> set[str]:
    """Top-level packages that a file imports, lazily or not."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def normalize(distribution: str) -> str:
    """The name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.mark.core
def test_every_library_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    items = [item for listed in lists for item in listed if isinstance(item, str)]
    declared = {normalize(re.split(r"[^\w.-]", item)[0]) for item in items}
    files = [path for package in PROGRAM for path in (ROOT / package).rglob("*.py")]
    imported = set().union(*map(packages_of, files)) - OURS - sys.stdlib_module_names
    found = packages_distributions()
    assert not [one for one in imported if not {*map(normalize, found[one])} & declared]


def test_a_stage_depends_on_its_identity_and_identities_on_all_of_the_program():
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    for stage in LIBRARIES:
        name = f"{stage}/${{key}}" if "matrix" in stages[stage] else stage
        assert f"data/identities/{name}.json" in stages[stage]["deps"]
        assert not [path for path in stages[stage]["deps"] if path.endswith(".py")], stage
    program = {"params.yaml", "tasks", "throughline", "uv.lock", "whowaits/src/whowaits"}
    assert program <= set(stages["identities"]["deps"])


@pytest.mark.core
def test_the_libraries_of_a_stage_are_those_that_its_modules_import():
    for stage in LIBRARIES.keys() - {"fetch"}:
        files = project_files(*stage_modules(stage), roots=ROOTS, without=SUPPORTING).values()
        names = set().union(*map(packages_of, files))
        imported = {DISTRIBUTIONS.get(name, name) for name in names}
        listed = set(LIBRARIES[stage])
        assert listed <= imported, stage
        assert imported & DECODERS == listed & DECODERS, stage


@pytest.mark.core
def test_help_imports_no_tensorflow():
    code = f"""
import runpy, sys
sys.argv = ["x", "--help"]
for command in {[*QUICK, "predict", "export", "tune"]}:
    try:
        runpy.run_module(f"tasks.{{command}}", run_name="__main__")
    except SystemExit:
        assert "tensorflow" not in sys.modules, command
    else:
        raise AssertionError(command)
"""
    run_python(code)


def named_tests(row: str) -> list[str]:
    """Ids of the tests in a row; `::name` alone is in the file that was named before it."""
    ids, file = [], ""
    for path, name in re.findall(r"(tests/[\w/]+\.py)?::(\w+)", row):
        file = path or file
        ids.append(f"{file}::{name}")
    return ids


def is_test(test):
    """Whether there is such a file and, where a name follows it, such a function in it."""
    path, _, name = test.partition("::")
    function = f"def {name.partition('[')[0]}(" if name else ""
    return (ROOT / path).is_file() and function in (ROOT / path).read_text()


def test_every_promise_names_tests_that_exist():
    lines = (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    promises = [line for line in lines if line.startswith("| ") and "| promise |" not in line]
    assert promises
    tests = {row: named_tests(row.rpartition(" | ")[2]) for row in promises}
    assert not [row for row, names in tests.items() if not names or not all(map(is_test, names))]


@pytest.mark.core
def test_every_fault_has_its_place_and_its_tests_and_leaves_python():
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults)
    assert not [test for fault in faults for test in fault.tests if not is_test(test)]
    sources = read_sources(ROOT)
    files = {fault: find_file(sources, fault) for fault in faults}
    lost = [fault for fault, path in files.items() if path is None]
    assert not lost, "their snippets occur nowhere, or more than once"
    for fault, path in files.items():
        assert path is not None
        ast.parse(plant(sources[path], fault), fault.name)
