"""What a process sets up for itself: how it ends, its memory, and which libraries it accepts."""

import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from tests.support.lanes import slow_but_first
from tests.support.project import ROOT, run_python
from throughline.shared.errors import WrongVersion
from throughline.shared.libraries import LIBRARIES, check_versions, installed_versions

MIB = 1 << 20
PARENT = """
import os, signal, time
if os.fork() == 0:
    from throughline.shared.termination import end_with_parent
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.integration
def test_a_process_is_killed_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert not psutil.wait_procs([child], timeout=120)[1]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "library"),
    slow_but_first([("tasks.ingest", "pandas"), ("flows.prepare_data", "prefect")]),
)
def test_a_command_that_is_stopped_in_its_imports_says_one_line(command, library, tmp_path):
    """By Ctrl-C in the midst of a library, which a module in its place presses."""
    pressed = "import signal\n\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / f"{library}.py").write_text(pressed)
    options = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(tmp_path)}, "text": True}
    start = [sys.executable, "-m", command]
    done = subprocess.run(start, capture_output=True, check=False, **options)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "stopped\n")


GARBAGE = """
import gc, sys
usual = gc.get_threshold()
sys.argv[:] = ["-m"]
import tasks
print(gc.get_threshold()[0])
from throughline.shared.gc_pause import collect_garbage_as_usual
collect_garbage_as_usual()
print(gc.get_threshold() == usual, gc.get_freeze_count() > 1000)
"""


@pytest.mark.integration
def test_no_garbage_is_searched_for_while_a_stage_imports_libraries():
    assert run_python(GARBAGE, "tasks.train").stdout.split() == ["1000000", "True", "True"]


KEPT_AFTER_FREE = """
import psutil
from throughline.shared.allocator import raise_malloc_thresholds
agreed = raise_malloc_thresholds() if {raised} else None
before = psutil.Process().memory_info().rss
block = b"x" * (64 << 20)
del block
print(agreed, psutil.Process().memory_info().rss - before)
"""
GLIBC_S_OWN = {"MALLOC_MMAP_THRESHOLD_": str(MIB), "MALLOC_TRIM_THRESHOLD_": str(MIB)}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("raised", "variables", "kept"),
    [(True, {}, True), (True, GLIBC_S_OWN, False), (False, {}, False)],
    ids=["raised", "set by the user", "as it is"],
)
def test_a_freed_batch_is_kept_for_the_next_one(raised, variables, kept):
    done = run_python(KEPT_AFTER_FREE.format(raised=raised), without=("MALLOC_",), **variables)
    agreed, kept_bytes = done.stdout.split()
    assert agreed == str(raised or None)
    assert (int(kept_bytes) > 60 * MIB) is kept


def test_another_version_than_the_locked_one_is_refused(tmp_path):
    check_versions(LIBRARIES["build"], root=tmp_path)  # nothing is locked
    lock = tmp_path / "uv.lock"
    lock.write_text(f'[[package]]\nname = "numpy"\nversion = "{np.__version__}"\n')
    check_versions(LIBRARIES["build"], root=tmp_path)
    lock.write_text('[[package]]\nname = "numpy"\nversion = "0.1"\n')
    said = f"numpy is {np.__version__}, but .*uv.lock names 0.1"
    with pytest.raises(WrongVersion, match=said):
        check_versions(LIBRARIES["build"], root=tmp_path)


def test_what_pillow_brings_is_part_of_the_versions():
    versions = installed_versions(["pillow"])
    assert set(versions) == {"pillow", "libjpeg", "zlib"}
    assert all(version[0].isdigit() for version in versions.values())
