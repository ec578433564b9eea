"""Two runs at once both complete; whatever of a run is killed, nothing is left running, and the
next one goes on. `STORM_KILLS=100 STORM_SEED=7 python -m pytest FILE -k storm` kills more often.
"""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.project import (
    ROOT,
    SMALL,
    make_project,
    run,
    run_quietly,
    share_servers,
    start,
    write_params,
)
from tests.support.shared_servers import shared_libraries, shared_prefect
from tests.support.small_data import read_files
from tests.support.stack import processes_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TWO = {
    "without changes": [[], []],
    "of one name": [["--set", f"shard.min_shards={count}", "--name", "x"] for count in (3, 5)],
}
LONGEST_S = 240  # that a test waits for an end
PREPARE = (sys.executable, "-m", "flows.prepare_data", "--verbose")


@pytest.fixture
def project(first) -> Path:
    """A project whose shards and snapshot are out of date."""
    write_params(first[0], {**SMALL, "shard": {**SMALL["shard"], "min_shards": 4}})
    return first[0]


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def below(pid: int, word: str = "") -> list[psutil.Process]:
    """Live processes below one, its children first, with a word on their command line."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if word in " ".join(child.cmdline()) and is_alive(child):
                found.append(child)
    return found


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
        waits = any("waits: another DVC process is at work" in line for line in flow.stdout)
        dvc.kill()
        rest = flow.communicate()[0]
        assert waits and flow.returncode == 0, rest


def test_a_killed_flow_leaves_neither_its_server_nor_its_supervisors_and_the_next_run_goes_on(
    project,
):
    command = (*PREPARE, "--set", "shard.min_shards=3", "--name", "x")
    flow = start(project, *command)
    assert any("Running stage 'shard'" in line for line in flow.stdout)

    def find_all() -> list[psutil.Process]:
        """Two supervisors, DVC and the stage, and the server below two of its own."""
        found = below(flow.pid)
        return found if len(found) >= 6 else []

    ours = wait_for(find_all)
    assert below(flow.pid, "uvicorn")
    flow.kill()
    assert psutil.wait_procs(ours, timeout=LONGEST_S)[1] == []
    (project / ".throughline" / "workspaces" / "x" / ".dvc" / "tmp" / "rwlock").write_text("")
    said = run(project, *command)
    assert re.search(r"^· ingest +up to date$", said, re.MULTILINE), said


def test_a_stage_whose_supervisor_is_killed_is_never_tried_again_while_it_lives(project):
    flow = start(project, *PREPARE, shared=shared_prefect.environment(PREPARE))
    assert any("python -m tasks.snapshot" in line for line in flow.stdout)
    supervisor, *_ = below(flow.pid, "repro")
    stages = wait_for(lambda: below(supervisor.pid, "-m tasks.snapshot"))
    supervisor.kill()
    assert any("tasks.snapshot" in line for line in flow.stdout), "it is tried again"
    assert not [stage for stage in stages if is_alive(stage)]
    said = flow.communicate()[0]
    assert flow.returncode == 0, said


KILLED = 128 + signal.SIGKILL
# A command that goes on until SIGUSR1, with a child, a grandchild in a session of its own, and, if
# asked for, one that ignores SIGTERM. The youngest of each line says when it is there: counting
# processes would also count what `sh` forks, which has the command line of `sh` until it becomes
# `sleep`.
FAMILY = """
import signal, subprocess, sys
mark, manner = sys.argv[1:]
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
pause = "import signal; print('ready', flush=True); signal.pause()"
start = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True);"
child = start + "import signal; signal.pause()"
subprocess.Popen([sys.executable, "-c", child, sys.executable, "-c", pause, mark])
if manner == "stubborn":
    subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.2; done", mark])
signal.pause()
"""


def kill_group(leader: psutil.Process) -> None:
    os.killpg(leader.pid, signal.SIGKILL)


# What happens to the outer supervisor or to its family, by age, and the exit code of the former.
BLOWS = {
    "stdin closed": (lambda outer, family: outer.stdin.close(), 128 + signal.SIGTERM),
    "outer killed": (lambda outer, family: outer.kill(), -signal.SIGKILL),
    "group of inner killed": (lambda outer, family: kill_group(family[1]), KILLED),
    "group of command killed": (lambda outer, family: kill_group(family[2]), KILLED),
    "command ended": (lambda outer, family: family[2].send_signal(signal.SIGUSR1), 0),
    "stubborn": (lambda outer, family: outer.terminate(), 128 + signal.SIGTERM),
}


@pytest.mark.parametrize("manner", BLOWS)
def test_nothing_outlives_a_blow(manner):
    strike, code = BLOWS[manner]
    mark = f"family-{uuid.uuid4().hex}"
    own = [sys.executable, "-c", FAMILY, mark, manner]
    command = [sys.executable, "-m", "flows.run.supervise", *own]
    options = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    try:
        outer = subprocess.Popen(command, start_new_session=True, **options)
        for _ in range(2 if manner == "stubborn" else 1):
            assert outer.stdout.readline() == "ready\n"
        family = sorted(processes_of(ROOT, mark), key=lambda process: process.create_time())
        strike(outer, family)
        outer.stdout.read()  # ends when the last process that could write is gone
        assert outer.wait(LONGEST_S) == code
        assert psutil.wait_procs(family, timeout=LONGEST_S)[1] == []
    finally:
        for process in processes_of(ROOT, mark):
            process.kill()


KILLS = int(os.environ.get("STORM_KILLS", "4"))
SEED = int(os.environ.get("STORM_SEED", "7"))
MOST_LINES = 30  # of what a run says before it is hit
FLOW = (
    *("setsid", sys.executable, "-m", "flows.training", "--no-measure", "--verbose"),
    *("--pipeline", "optimized", "--set", "measure.seconds=2", "--name", "storm"),
)


@pytest.mark.timeout(300 * (KILLS + 4))
def test_after_a_storm_of_kills_a_run_gives_what_an_undisturbed_one_does(
    finished, array_file, tmp_path
):
    """The same bytes and losses, and nothing left. A kill comes when the run has said so many
    lines, and hits it, its group, or one of the processes below it, such as DVC or Prefect's
    temporary server; the seed draws both.
    """
    folder, draw, kills = tmp_path / "storm", random.Random(SEED), 0
    (folder / "tmp").mkdir(parents=True)
    project = make_project(folder / "project", array_file)
    worktree = project / ".throughline" / "workspaces" / "storm"

    def begin() -> subprocess.Popen[str]:
        return start(project, *FLOW, shared={"TMPDIR": str(folder / "tmp")})

    while kills < KILLS:
        flow = begin()
        for _ in zip(range(draw.randrange(MOST_LINES)), flow.stdout, strict=False):
            pass
        hit = strike(flow, draw)
        said = flow.stdout.read()  # ends when the last process that could write is gone
        assert flow.wait() == 0 or hit, said
        kills += hit
        if flow.returncode == 0:  # a run that has come to its end leaves nothing to disturb
            shutil.rmtree(worktree)
            shutil.rmtree(project / ".dvc" / "cache")
    flow = begin()
    said = flow.communicate()[0]
    assert flow.returncode == 0, said
    assert read_results(worktree) == read_results(finished[0])
    assert processes_of(folder, "") == []
    assert find_leftovers(project, worktree) == [] == [*(folder / "tmp").iterdir()]


def strike(flow: subprocess.Popen[str], draw: random.Random) -> bool:
    """Kill a run, its group, or one of the processes below it; returns whether it was there."""
    with suppress(psutil.NoSuchProcess):
        if flow.poll() is None:
            victim = draw.choice([None, flow, *psutil.Process(flow.pid).children(recursive=True)])
            os.killpg(flow.pid, signal.SIGKILL) if victim is None else victim.kill()
            return True
    return False


def read_results(root: Path) -> dict[str, object]:
    """Shards and snapshot, and the history of the training but for its speed."""
    with (root / "runs" / "optimized" / "history.csv").open() as file:
        rows = csv.DictReader(file)
        history = [{name: it for name, it in row.items() if "per_s" not in name} for row in rows]
    data = {name: read_files(root / "data" / name) for name in ("shards", "snapshot")}
    return {**data, "rows": history}


def find_leftovers(*places: Path) -> list[Path]:
    names = ("*.partial", ".*.old", ".*.tmp", "*.lock")
    folders = ("data", "data/*", "runs/**", ".throughline/*")
    patterns = [f"{folder}/{name}" for folder in folders for name in names]
    patterns += [".throughline/scratch/*"]
    return [path for place in places for pattern in patterns for path in place.glob(pattern)]
