"""A stage that takes longer than its deployment allows is ended with all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import psutil
import pytest
from prefect.logging import disable_run_logger

from flows.orchestration.stages import (
    TIMEOUT_S,
    StageEnvironment,
    _describe_failure,
    _run_once,
    _should_retry,
    measurement_lock,
    with_timeout,
)
from flows.run.dvc_calls import dvc_environment
from flows.run.processes import run_supervised, supervised
from throughline.shared.errors import StageFailed


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


def test_what_a_stage_prints_is_read_whatever_the_locale_and_the_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    theirs = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for key, value in {**theirs, "PYTHONIOENCODING": "ascii"}.items():
        monkeypatch.setenv(key, value)
    program = "import sys; print('✓ größe'); sys.stdout.flush(); sys.stdout.buffer.write(b'\\xff')"
    command, environment = [sys.executable, "-c", program], dvc_environment({})
    with supervised(command, folder=tmp_path, environment=environment) as process:
        assert process.stdout.read() == "✓ größe\n\N{REPLACEMENT CHARACTER}"
    done = run_supervised(command, tmp_path, environment)
    assert done.stdout == "✓ größe\n\N{REPLACEMENT CHARACTER}"


def test_a_stage_says_any_name_whatever_the_locale():
    program = (
        "from tasks import identities\nfrom throughline.config.cli import parse_command\n"
        "parse_command(identities.main)\nprint('✓ größe \\udcff')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == "✓ größe \\udcff\n".encode()


def test_a_quick_process_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(TIMEOUT_S, "60")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with (
        supervised(["true"], folder=tmp_path, environment=dvc_environment({})) as process,
        with_timeout(process) as timed_out,
    ):
        assert process.wait() == 0
    assert not timed_out.is_set()


@pytest.mark.parametrize(
    ("stage", "measures", "takes_turns"),
    [
        ("train@a", True, True),
        ("train@a", False, False),
        ("build@a", False, True),
        ("shard", True, False),
    ],
)
def test_a_training_alone_waits_for_no_measurement_and_disturbs_none_that_is_kept(
    tmp_path, stage, measures, takes_turns
):
    stage_env = StageEnvironment(tmp_path, frozenset(), measures=measures)
    with disable_run_logger(), measurement_lock(stage, stage_env) as lock_fds:
        assert bool(lock_fds) is takes_turns


def test_a_reason_that_a_full_disk_has_cut_is_told_by_the_last_lines(tmp_path):
    reason = tmp_path / "failure.json"
    reason.write_text("")
    failed = _describe_failure("shard", 2, ["DiskFull: no space is left"], reason)
    assert "DiskFull: no space is left" in str(failed) and failed.failure is None


def test_an_overdue_stage_is_told_by_what_allowed_so_long_and_not_tried_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(TIMEOUT_S, "0.2")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    command, stage_env = ["sleep", "60"], StageEnvironment(tmp_path, frozenset())
    with disable_run_logger(), pytest.raises(StageFailed, match="stage_timeout_s") as failed:
        _run_once("shard", command, stage_env, (), deque())
    assert not _should_retry("shard", failed.value)
