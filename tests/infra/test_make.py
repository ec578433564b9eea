"""What `make` does before anything is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.project import ROOT

MAKE = str(shutil.which("make"))
# Notes what it is asked, makes environments with a Python, and installs uv.
PYTHON = """#!/bin/sh
echo "$@" >> asked
test "$2" != venv || cp -f "$0" .venv/bin/python
test "$2" != pip || cp "$0" .venv/bin/uv
"""


def make(folder: Path, *arguments: str, path: str) -> str:
    """What `make` says in a folder, without what a make around the tests hands to this one."""
    done = subprocess.run(
        [MAKE, *arguments],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    said = make(tmp_path, "--eval", "show: ; @/bin/echo $(PYTHON)", "show", path=str(tmp_path))
    assert said.split() == [str(tmp_path / taken)]


@pytest.mark.parametrize(
    ("options", "extra"),
    [([], ""), (["GPU=1"], "--extra gpu"), (["GPU=yes"], "--extra gpu"), (["GPU=0"], "")],
)
def test_setup_works_at_a_path_with_a_space_after_one_that_found_no_pip(tmp_path, options, extra):
    folder, python = tmp_path / "a folder", tmp_path / "python"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "whowaits").mkdir()
    for name in ("pyproject.toml", "uv.lock", "whowaits/pyproject.toml"):
        (folder / name).touch()
    without_pip = folder / ".venv" / "bin" / "python"
    without_pip.write_text("#!/bin/sh\nexit 1\n")
    python.write_text(PYTHON)
    shutil.copy(ROOT / "Makefile", folder)
    for program in (python, without_pip):
        program.chmod(0o755)
    make(folder, "setup", f"PYTHON={python}", *options, path=os.environ["PATH"])
    version, environment, uv, sync = (folder / "asked").read_text().splitlines()
    assert version == "--version" and environment == "-m venv --clear .venv"
    assert uv.startswith("-m pip install ")
    assert re.fullmatch(rf"sync .*--locked --compile-bytecode ?{extra}", sync)
    assert (folder / ".venv" / f".ready{'1' if extra else ''}").exists()


def test_benchmarks_are_listed_that_are_commands():
    listed = make(ROOT, "--old-file=setup", "bench", path=os.environ["PATH"])
    named = set(re.findall(r"^python -m benchmarks\.(\w+) --help$", listed, re.MULTILINE))
    assert named == {
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()
    }
    assert len(named) > 10 and "command_line" not in named
