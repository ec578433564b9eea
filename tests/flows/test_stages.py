"""A stage that takes longer than its deployment allows is ended with all its processes."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from flows.orchestration.stages import TIMEOUT_S, with_timeout
from flows.run.dvc_calls import dvc_environment
from flows.run.processes import supervised


def test_an_overdue_process_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv(TIMEOUT_S, "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    started_at = time.monotonic()
    with (
        supervised(
            ["sh", "-c", "sleep 60 & sleep 60"], folder=tmp_path, environment=dvc_environment({})
        ) as process,
        with_timeout(process) as timed_out,
    ):
        process.wait()
    assert timed_out.is_set() and time.monotonic() - started_at < 30
    assert not [
        found
        for found in psutil.process_iter(["name", "cwd"])
        if found.info["name"] == "sleep" and found.info["cwd"] == str(tmp_path)
    ]


def test_a_quick_process_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(TIMEOUT_S, "60")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with (
        supervised(["true"], folder=tmp_path, environment=dvc_environment({})) as process,
        with_timeout(process) as timed_out,
    ):
        assert process.wait() == 0
    assert not timed_out.is_set()
