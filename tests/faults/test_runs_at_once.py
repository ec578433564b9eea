"""Two runs at once, of one name or of none, both complete; what a killed run leaves does not keep
the next one out.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from project import environment, make_project, run, run_quietly
from shared_servers import shared_libraries

from flows.run.workspace import SWEPT_AFTER_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TWO = {
    "without changes": [[], []],
    "of one name": [
        ["--set", "shard.min_shards=3", "--name", "x"],
        ["--set", "shard.min_shards=5", "--name", "x"],
    ],
    "without a name": [["--set", "shard.min_shards=3"], ["--set", "shard.min_shards=5"]],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One for all, so that Prefect makes its database once."""
    return tmp_path_factory.mktemp("at-once")


@pytest.fixture
def project(folder, array_file) -> Path:
    return make_project(folder / f"project-{len(list(folder.iterdir()))}", array_file)


def start(project: Path, *arguments: str, shares: bool = False) -> subprocess.Popen:
    """Start a flow; one that `shares` takes libraries from the tests' own server."""
    command = [sys.executable, "-m", "flows.prepare_data", "--verbose", *arguments]
    shared = shared_libraries.environment() if shares else {}
    return subprocess.Popen(
        command,
        cwd=project,
        env=environment(project) | shared,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("two", TWO)
def test_both_complete(project, two):
    flows = [start(project, *arguments, shares=True) for arguments in TWO[two]]
    said = [flow.communicate()[0] for flow in flows]
    assert [flow.returncode for flow in flows] == [0, 0], "\n\n".join(said)
    assert not any("Traceback" in one for one in said), "\n\n".join(said)
    if two == "without changes":
        for stage in ("fetch", "ingest", "shard", "snapshot"):
            assert "".join(said).count(f"Running stage '{stage}'") == 1, "in one of them"
        assert json.loads(run_quietly(project, "dvc", "status", "--json", "snapshot")) == {}
    else:
        assert "".join(said).count("Running stage 'shard'") == 2
    if two == "of one name":
        assert sum("waits: run x (process" in one for one in said) == 1
    assert [path.name for path in (project / ".throughline" / "workspaces").glob("*")] == (
        ["x"] if two == "of one name" else []
    )
    assert list((project / ".throughline" / "locks").iterdir()) == []


def test_a_run_waits_for_dvc_at_work_by_hand(project):
    run(project, "dvc", "repro", "ingest")
    # DVC's own record of a process that works on the shards: this one's child, which looks like
    # DVC.
    (project / "dvc").write_text("import time; print(flush=True); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "dvc", "repro"], cwd=project, stdout=subprocess.PIPE
    ) as dvc:
        dvc.stdout.readline()
        entry = {"pid": dvc.pid, "cmd": "dvc repro"}
        (project / ".dvc" / "tmp" / "rwlock").write_text(
            json.dumps({"write": {str(project / "data" / "shards"): entry}})
        )
        flow = start(project, shares=True)
        said = ""
        for line in flow.stdout:
            said += line
            if "waits: another DVC process is at work" in line:
                dvc.kill()
        assert flow.wait() == 0, said
        assert "waits: another DVC process is at work" in said
        dvc.kill()


def test_a_killed_flow_leaves_neither_its_server_nor_its_supervisors_and_the_next_run_goes_on(
    project,
):
    flow = start(project, "--set", "shard.min_shards=3", "--name", "x")
    for line in flow.stdout:
        if "Running stage 'shard'" in line:
            break
    below = psutil.Process(flow.pid).children(recursive=True)
    assert any("uvicorn" in process.cmdline() for process in below)
    os.kill(flow.pid, signal.SIGKILL)
    again = start(project, "--set", "shard.min_shards=3", "--name", "x")
    _, alive = psutil.wait_procs(below, timeout=20)
    assert not alive
    (project / ".throughline" / "workspaces" / "x" / ".dvc" / "tmp" / "rwlock").write_text("")
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert re.search(r"^· ingest +up to date$", said, re.MULTILINE), said


def test_what_a_killed_run_without_a_name_has_left_goes_when_a_flow_starts_a_day_later(project):
    flow = start(project, "--set", "shard.min_shards=3")
    for line in flow.stdout:
        if "Running stage 'shard'" in line:
            break
    below = psutil.Process(flow.pid).children(recursive=True)
    os.kill(flow.pid, signal.SIGKILL)
    flow.wait()
    psutil.wait_procs(below, timeout=20)
    (left,) = (project / ".throughline" / "workspaces").iterdir()
    yesterday = time.time() - SWEPT_AFTER_S
    for folder, _, _ in os.walk(left):
        os.utime(folder, (yesterday, yesterday))
    said = run(project, "python", "-m", "flows.prepare_data")
    assert f"removed what the run {left.name} left more than a day ago" in said
    assert not left.exists()


def test_a_stage_whose_supervisor_is_killed_is_never_tried_again_while_it_lives(project):
    flow = start(project)
    for line in flow.stdout:
        if "python -m tasks.snapshot" in line:
            break
    time.sleep(0.5)
    supervisor = next(p for p in psutil.Process(flow.pid).children() if "repro" in p.cmdline())
    stages = [p for p in supervisor.children(recursive=True) if "tasks.snapshot" in p.cmdline()]
    supervisor.kill()
    for line in flow.stdout:
        if "tasks.snapshot" in line:
            assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in stages)
            break
    else:
        pytest.fail("it was not tried again")
    said = flow.communicate()[0]
    assert stages and flow.returncode == 0, said
