"""Acting on a module when the script imports it: `whowaits.imports`."""

from __future__ import annotations

import sys

import pytest

from whowaits.imports import ImportWatch


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """An import watch, a folder on the path, and the errors that were reported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    errors = []
    made = ImportWatch(errors.append)
    made.install()
    return made, tmp_path, errors


def test_a_module_is_acted_on_once_it_is_complete_and_not_before(watch):
    imports, folder, errors = watch
    (folder / "watched_one.py").write_text("value = 1\n")
    seen = []
    imports.on_import("watched_one", lambda module: seen.append(module.value))
    assert not seen and "watched_one" not in sys.modules
    import watched_one  # pyright: ignore[reportMissingImports]

    assert seen == [1] and not errors
    assert vars(watched_one)["__loader__"].get_source("watched_one") == "value = 1\n"


def test_a_module_that_is_there_is_acted_on_at_once(watch):
    imports, _, _ = watch
    seen = []
    imports.on_import("sys", lambda module: seen.append(module.__name__))
    assert seen == ["sys"]


def test_an_action_that_fails_does_not_fail_the_import(watch):
    imports, folder, errors = watch
    (folder / "watched_two.py").write_text("value = 2\n")
    imports.on_import("watched_two", lambda module: module.nothing)
    import watched_two  # pyright: ignore[reportMissingImports]

    assert watched_two.value == 2
    assert [type(error) for error in errors] == [AttributeError]
