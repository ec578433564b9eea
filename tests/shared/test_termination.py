"""Ctrl-C ends a command in one line from its first instant."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.project import ROOT

IMPORTED = "import time:"  # how Python begins a line about a module, on stderr


@pytest.mark.parametrize(
    ("command", "among"), [("flows.prepare_data", "prefect."), ("tasks.ingest", "pandas.")]
)
def test_a_command_that_is_stopped_while_it_imports_its_libraries_says_one_line(command, among):
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if among in line:
                break
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith(IMPORTED)]
    assert said == ["stopped\n"]
    assert process.returncode == -signal.SIGINT
