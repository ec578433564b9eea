"""A stage that takes longer than its deployment allows is ended with everything that belongs to it; and what runs from the UI may reach."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from flows.reach import ROOTS, check_reach
from flows.stages import TIMEOUT_S, Workplace, limited, supervised
from tasks.errors import InvalidParams

OWN = {"data": {"path": "data/raw"}, "model": {"name": "mlp"}, "preprocess": ["decode", {"their_ops:Cut": {"size": 3}}]}


def test_an_overdue_process_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv(TIMEOUT_S, "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    begun = time.monotonic()
    with supervised(["sh", "-c", "sleep 60 & sleep 60"], Workplace(tmp_path, frozenset())) as process, limited(process) as overdue:
        process.wait()
    assert overdue.is_set() and time.monotonic() - begun < 30
    assert not [found for found in psutil.process_iter(["name", "cwd"]) if found.info["name"] == "sleep" and found.info["cwd"] == str(tmp_path)]


def test_a_quick_process_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(TIMEOUT_S, "60")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    with supervised(["true"], Workplace(tmp_path, frozenset())) as process, limited(process) as overdue:
        assert process.wait() == 0
    assert not overdue.is_set()


def test_what_params_yaml_names_and_what_is_in_the_project_may_be_used(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "photos").mkdir()
    check_reach(OWN, OWN, tmp_path)
    check_reach(OWN | {"data": {"path": "photos"}, "model": {"name": "my_models:build"}}, OWN, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("subprocess:run", "os:system", "sys:exit", "keras.models:load_model", "not_there:x"):
        with pytest.raises(InvalidParams, match=f"{name} is no code of this project"):
            check_reach(OWN | {"augment": [{name: {"args": "x"}}]}, OWN, tmp_path)
    (tmp_path / "way-out").symlink_to("/etc")
    with pytest.raises(InvalidParams, match="outside"):
        check_reach(OWN | {"data": {"path": "way-out"}}, OWN, tmp_path)
    monkeypatch.setenv(ROOTS, "/etc")
    check_reach(OWN | {"data": {"path": "/etc/x"}}, OWN, tmp_path)
