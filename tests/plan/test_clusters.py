"""Each process of a cluster knows which one it is; all get equal slices, or the run is refused."""

import itertools
import json
import subprocess
import sys

import pytest

from tasks.cluster import main
from tests.support.project import ROOT
from throughline.plan.clusters import expand_nodes, expand_tasks, find_tf_config
from throughline.plan.training_workers import (
    TrainingWorker,
    find_training_worker,
    list_addresses,
    make_tf_config,
    training_worker_from_tf_config,
)
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "1230042",
    "SLURM_JOB_NODELIST": "gpu[09-10],big",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "gpu10",
}
WORKERS = {"worker": ["a:1", "b:1", "c:1"]}
CHIEF = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def given(cluster, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def test_a_slurm_task_finds_itself_and_the_others():
    config = {"TF_CONFIG": find_tf_config(SLURM, [])}
    assert training_worker_from_tf_config(config) == TrainingWorker(index=3, count=5, on_host=2)
    nodes = ["gpu09:20042", "gpu09:20043", "gpu10:20042", "gpu10:20043", "big:20042"]
    assert list_addresses(config) == nodes
    assert expand_tasks("4(x2),1,2(x1)") == [4, 4, 1, 2]
    expanded = expand_nodes("a1,b[2,4-5],n[099-101]")
    assert expanded == ["a1", "b2", "b4", "b5", "n099", "n100", "n101"]
    assert expand_nodes("") == list_addresses({}) == []


@pytest.mark.parametrize(
    ("environment", "hosts", "said"),
    [
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2"}, [], "differ in length, 3 and 1"),
        ({**SLURM, "SLURMD_NODENAME": "gpu09"}, [], "--distribution=block"),
        ({"JOB_COMPLETION_INDEX": "1"}, ["a"], "task 1 of a cluster, .* its hosts is 1;"),
        ({}, ["a"], "srun"),
        ({**SLURM, "SLURM_JOB_NODELIST": "rack[1-2]n1"}, [], "set TF_CONFIG instead"),
        ({**SLURM, "SLURM_JOB_NODELIST": "a,,b"}, [], "set TF_CONFIG instead"),
    ],
)
def test_a_task_that_cannot_find_itself_is_refused(environment, hosts, said):
    with pytest.raises(ImpossiblePlan, match=said):
        find_tf_config(environment, hosts)


def test_a_task_of_an_indexed_job_is_on_one_of_the_hosts():
    config = {"TF_CONFIG": find_tf_config({"JOB_COMPLETION_INDEX": "1"}, ["a", "b:7"])}
    assert find_tf_config({**SLURM, **config}, []) == config["TF_CONFIG"], "a given one stays"
    assert list_addresses(config) == ["a:20000", "b:7"]
    assert config["TF_CONFIG"] == make_tf_config(["a:20000", "b:7"], 1), "as of processes of a host"
    assert training_worker_from_tf_config(config) == TrainingWorker(index=1, count=2)


def test_a_command_runs_with_its_tf_config_and_its_exit_code():
    program = "import os, sys; print(os.environ['TF_CONFIG']); sys.exit(7)"
    done = subprocess.run(
        ["python", "-m", "tasks.cluster", "--hosts", "a,b", "--", sys.executable, "-c", program],
        executable=sys.executable, cwd=ROOT, env={"JOB_COMPLETION_INDEX": "0", "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout)["task"] == {"type": "worker", "index": 0}


def test_a_program_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setattr(sys, "argv", ["cluster", "--", "nosuchprogram"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("ServiceFailed: there is no program nosuchprogram")


ASKED = {"processes": "auto", "batch_multiple": "auto", "gpus": 0}


@pytest.mark.parametrize(
    ("environment", "asked", "worker"),
    [
        ({}, {}, TrainingWorker()),
        ({"TF_CONFIG": ""}, {}, TrainingWorker()),
        (given({"worker": ["a:1"]}, type="worker", index=0), {}, TrainingWorker()),
        (given(WORKERS, type="worker", index=2), {"gpus": 8}, TrainingWorker(index=2, count=3)),
        (given(CHIEF, type="chief", index=0), {}, TrainingWorker(index=0, count=3)),
        (given(CHIEF, type="worker", index=1), {}, TrainingWorker(index=2, count=3)),
        ({}, {"gpus": 4}, TrainingWorker(count=4)),
        ({}, {"processes": 2, "gpus": 4}, TrainingWorker(count=2)),
        ({}, {"processes": 2, "batch_multiple": 4}, TrainingWorker(count=2, batch_multiple=4)),
        (given(WORKERS, type="worker", index=0), {"processes": 3, "batch_multiple": 6},
         TrainingWorker(count=3, batch_multiple=6)),
    ],
)  # fmt: skip
def test_tf_config_says_who_a_process_is_else_parameters_how_many(environment, asked, worker):
    assert find_training_worker(environment, **{**ASKED, **asked}) == worker


def test_another_number_of_workers_than_asked_for_is_refused():
    with pytest.raises(ImpossiblePlan, match=r"names 3 workers, but train\.processes is 1"):
        find_training_worker(given(WORKERS, type="worker", index=1), **{**ASKED, "processes": 1})


@pytest.mark.parametrize(
    "environment",
    [
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": "[1]"},
        {"TF_CONFIG": json.dumps({"cluster": WORKERS})},
        given(WORKERS, type="worker", index=3),
        given(WORKERS, type="evaluator", index=0),
        given({**WORKERS, "ps": ["d:1"]}, type="worker", index=0),
    ],
)
def test_hosts_that_could_read_the_same_examples_are_refused(environment):
    with pytest.raises(ImpossiblePlan, match="TF_CONFIG"):
        training_worker_from_tf_config(environment)


def test_any_number_of_examples_gives_every_host_equal_slices_that_are_not_empty():
    for workers, each in itertools.product(range(1, 8), (1, 2, 5)):
        batch, worker = workers * each, TrainingWorker(count=workers)
        for examples in range(workers, 120):
            shared = worker.shared(examples, batch)
            assert 0 < shared <= examples and examples - shared < workers
            assert shared % batch % workers == 0
            worker.check(shared, batch)


@pytest.mark.parametrize(
    ("examples", "batch", "worker", "lanes", "said"),
    [
        (120, 7, TrainingWorker(count=2), None, "use 6 or 8"),
        (120, 2, TrainingWorker(count=3), None, "use 3"),
        (0, 4, TrainingWorker(count=4), None, "fewer examples"),
        (120, 24, TrainingWorker(count=3, batch_multiple=4), None, "multiple of 3"),
        (120, 6, TrainingWorker(count=2, batch_multiple=4), None, "use 4 or 8"),
        (3, 8, TrainingWorker(count=2, batch_multiple=4), None, "than train.batch_multiple, 4,"),
        (100, 12, TrainingWorker(count=3), 4, "4 is not a multiple of 3, .* use 6"),
        (0, 16, TrainingWorker(), 4, "more lanes .* than examples"),
    ],
)
def test_what_cannot_be_shared_is_refused(examples, batch, worker, lanes, said):
    with pytest.raises(ImpossiblePlan, match=said):
        worker.check(examples, batch, lanes=lanes)


def test_processes_of_one_host_share_what_it_has():
    cluster, shares = {"worker": ["a:1", "a:2", "b:1", "a:3"]}, []
    for index in range(4):
        worker = training_worker_from_tf_config(given(cluster, type="worker", index=index))
        shares.append((worker.on_host, worker.share(8), worker.share(2)))
    assert shares == [(3, 2, 1), (3, 2, 1), (1, 8, 2), (3, 2, 1)]
