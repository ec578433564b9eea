"""What `make` does before anything is installed, and which demos it refuses."""

import os
import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess, run

import pytest

from tests.support.project import ROOT

pytestmark = pytest.mark.integration
MAKE = str(shutil.which("make"))
# Notes what it is asked, makes environments with a Python, and installs uv.
PYTHON = """#!/bin/sh
echo "$@" >> asked
test "$2" != venv || cp -f "$0" .venv/bin/python
test "$2" != pip || cp "$0" .venv/bin/uv
"""


def make(folder: Path, *words: str, path: str = os.environ["PATH"]) -> CompletedProcess[str]:
    """Runs `make` in a folder, without what a make around the tests hands to this one."""
    options = {"cwd": folder, "env": {"PATH": path}, "capture_output": True, "text": True}
    return run([MAKE, *words], check=False, **options)


@pytest.mark.parametrize("installed", [["python3.11", "python3.12", "python3"], ["python3"]])
def test_a_python_that_the_program_supports_comes_before_any_other(tmp_path, installed):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in installed:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    show = "show: ; @/bin/echo $(PYTHON)"
    said = make(tmp_path, "--eval", show, "show", path=str(tmp_path)).stdout
    assert said.split() == [str(tmp_path / installed[0])]


@pytest.mark.parametrize(("options", "extra"), [(["GPU=yes"], "--extra gpu"), (["GPU=0"], "")])
def test_setup_works_at_a_path_with_a_space_after_one_that_found_no_pip(tmp_path, options, extra):
    folder, python = tmp_path / "a folder", tmp_path / "python"
    without_pip = folder / ".venv" / "bin" / "python"
    for name in (".venv/bin/python", "pyproject.toml", "uv.lock", "whowaits/pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    without_pip.write_text("#!/bin/sh\nexit 1\n")
    python.write_text(PYTHON)
    shutil.copy(ROOT / "Makefile", folder)
    for program in (python, without_pip):
        program.chmod(0o755)
    done = make(folder, "setup", f"PYTHON={python}", *options)
    assert done.returncode == 0, done.stderr
    version, environment, uv, sync = (folder / "asked").read_text().splitlines()
    assert version == "--version" and environment == "-m venv --clear .venv"
    assert uv.startswith("-m pip install ")
    assert re.fullmatch(rf"sync .*--locked --compile-bytecode ?{extra}", sync)
    assert (folder / ".venv" / f".ready{'1' if extra else ''}").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["STORE=s3", "DATA=photos"], "STORE can only be s3"),
        (["DATA=photos", "BUDGET=small"], "there is no demo of DATA=photos BUDGET=small"),
        (["PHOTOS=mine"], "PHOTOS=DIR goes with DATA=photos"),
    ],
)
def test_a_demo_of_what_there_is_not_is_refused(options, said):
    done = make(ROOT, "--dry-run", "demo", *options)
    assert done.returncode and said in done.stderr
    assert make(ROOT, "--dry-run", "ui", *options).returncode == 0, "it takes no notice of them"


def test_the_demo_with_a_store_reads_what_it_has_put_there():
    makefile = (ROOT / "Makefile").read_text()
    for options in (["STORE=s3"], ["DATA=photos", "PHOTOS=."]):
        assert make(ROOT, "--dry-run", "demo", *options).returncode == 0, "such demos there are"
    (put,) = re.findall(r"tasks\.upload (\S+) (s3://\S+);", makefile)
    (path,) = re.findall(r"--set data\.path=(s3://\S+)", makefile)
    assert put == ("data/raw/fashion_mnist", path)
