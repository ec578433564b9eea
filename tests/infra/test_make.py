"""What `make` does before anything is installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from project import ROOT


@pytest.mark.parametrize(
    ("installed", "taken"),
    [
        (["python3.11", "python3.12", "python3"], "python3.11"),
        (["python3.12", "python3"], "python3.12"),
        (["python3"], "python3"),
    ],
)
def test_a_python_that_the_program_supports_comes_before_any_other(tmp_path, installed, taken):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in installed:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [str(shutil.which("make")), "--eval", "show: ; @/bin/echo $(PYTHON)", "show"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},  # without what a make around the tests hands to this one
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / taken)]
