"""Two runs at once both complete; what a killed run leaves keeps the next one not out."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.project import SMALL, run_quietly, share_servers, start, write_params
from tests.support.shared_servers import shared_libraries, shared_prefect
from tests.support.stack import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TWO = {
    "without changes": [[], []],
    "of one name": [["--set", f"shard.min_shards={count}", "--name", "x"] for count in (3, 5)],
}
PREPARE = (sys.executable, "-m", "flows.prepare_data", "--verbose")


@pytest.fixture
def project(first) -> Path:
    """A project whose shards and snapshot are out of date."""
    folder, _ = first
    write_params(folder, {**SMALL, "shard": {**SMALL["shard"], "min_shards": 4}})
    return folder


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none once it is gone."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.mark.parametrize("two", TWO)
def test_both_complete(project, two):
    shared = share_servers(PREPARE)
    if two == "without changes":  # with a server of Prefect each, which share a database
        shared = shared_libraries.environment()
    flows = [start(project, *PREPARE, *arguments, shared=shared) for arguments in TWO[two]]
    said = [flow.communicate()[0] for flow in flows]
    assert [flow.returncode for flow in flows] == [0, 0], "\n\n".join(said)
    assert not any("Traceback" in one for one in said), "\n\n".join(said)
    if two == "without changes":
        for stage in ("shard", "snapshot"):
            assert "".join(said).count(f"Running stage '{stage}'") == 1, "in one of them"
        assert json.loads(run_quietly(project, "dvc", "status", "--json", "snapshot")) == {}
    else:
        assert "".join(said).count("Running stage 'shard'") == 2
        assert sum("waits: run x (process" in one for one in said) == 1
    left = [path.name for path in (project / ".throughline" / "workspaces").glob("*")]
    assert left == ["x"] * (two == "of one name")
    assert list((project / ".throughline" / "locks").iterdir()) == []


def test_a_run_waits_for_dvc_at_work_by_hand(project):
    # DVC's own record of a process that works on the shards: a child, which looks like DVC.
    (project / "dvc").write_text("import signal; print(flush=True); signal.pause()")
    command = [sys.executable, "dvc", "repro"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE) as dvc:
        dvc.stdout.readline()
        write = {str(project / "data" / "shards"): {"pid": dvc.pid, "cmd": "dvc repro"}}
        (project / ".dvc" / "tmp" / "rwlock").write_text(json.dumps({"write": write}))
        flow = start(project, *PREPARE, shared=share_servers(PREPARE))
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
    command = (*PREPARE, "--set", "shard.min_shards=3", "--name", "x")
    flow = start(project, *command)
    for line in flow.stdout:
        if "Running stage 'shard'" in line:
            break

    def find_all() -> list[psutil.Process] | None:
        """Two supervisors, DVC and the stage, and the server below two of its own."""
        below = [one for one in psutil.Process(flow.pid).children(recursive=True) if is_alive(one)]
        return below if len(below) >= 6 else None

    ours = wait_for(find_all)
    assert any("uvicorn" in words_of(process) for process in ours)
    os.kill(flow.pid, signal.SIGKILL)
    assert psutil.wait_procs(ours, timeout=240)[1] == []
    (project / ".throughline" / "workspaces" / "x" / ".dvc" / "tmp" / "rwlock").write_text("")
    again = start(project, *command, shared=share_servers(command))
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert re.search(r"^· ingest +up to date$", said, re.MULTILINE), said


def test_a_stage_whose_supervisor_is_killed_is_never_tried_again_while_it_lives(project):
    flow = start(project, *PREPARE, shared=shared_prefect.environment(PREPARE))
    for line in flow.stdout:
        if "python -m tasks.snapshot" in line:
            break
    supervisor = next(p for p in psutil.Process(flow.pid).children() if "repro" in words_of(p))

    def find_stages() -> list[psutil.Process]:
        below = supervisor.children(recursive=True)
        return [process for process in below if "tasks.snapshot" in words_of(process)]

    stages = wait_for(find_stages)
    supervisor.kill()
    for line in flow.stdout:
        if "tasks.snapshot" in line:
            assert not [p for p in stages if is_alive(p)]
            break
    else:
        pytest.fail("it was not tried again")
    said = flow.communicate()[0]
    assert flow.returncode == 0, said
