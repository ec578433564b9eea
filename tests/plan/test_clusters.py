"""Tasks of a cluster find themselves and the others by what numbers them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tasks.cluster import main
from tests.support.project import ROOT
from throughline.plan.clusters import expand_nodes, expand_tasks, find_tf_config
from throughline.plan.training_workers import (
    TrainingWorker,
    list_addresses,
    training_worker_from_tf_config,
)
from throughline.shared.errors import ImpossiblePlan

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "1230042",
    "SLURM_JOB_NODELIST": "gpu[09-10],big",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "gpu10",
}


def test_a_slurm_task_finds_itself_and_the_others():
    config = {"TF_CONFIG": find_tf_config(SLURM, [])}
    assert training_worker_from_tf_config(config) == TrainingWorker(index=3, count=5, on_host=2)
    assert list_addresses(config) == [
        "gpu09:20042",
        "gpu09:20043",
        "gpu10:20042",
        "gpu10:20043",
        "big:20042",
    ]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("one", ["one"]),
        ("a1,b[2,4-5],c", ["a1", "b2", "b4", "b5", "c"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("", []),
    ],
)
def test_nodes_are_read_as_slurm_writes_them(text, nodes):
    assert expand_nodes(text) == nodes


@pytest.mark.parametrize("text", ["rack[1-2]n1", "rack[1-2]n[1-4],big", "gpu[1-2", "a,,b"])
def test_nodes_that_are_shortened_in_another_way_are_refused(text):
    with pytest.raises(ImpossiblePlan, match="set TF_CONFIG instead"):
        expand_nodes(text)


def test_as_many_nodes_as_have_tasks_are_named():
    with pytest.raises(ImpossiblePlan, match="names 3 nodes and the tasks of 1"):
        find_tf_config({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2"}, [])


def test_tasks_are_read_as_slurm_writes_them():
    assert expand_tasks("4(x2),1,2(x1)") == [4, 4, 1, 2]


def test_tasks_that_are_not_numbered_node_by_node_are_refused():
    with pytest.raises(ImpossiblePlan, match="--distribution=block"):
        find_tf_config({**SLURM, "SLURMD_NODENAME": "gpu09"}, [])


def test_a_task_of_an_indexed_job_is_on_one_of_the_hosts():
    environment = {"JOB_COMPLETION_INDEX": "1"}
    config = {"TF_CONFIG": find_tf_config(environment, ["a", "b:7"])}
    assert list_addresses(config) == ["a:20000", "b:7"]
    assert training_worker_from_tf_config(config) == TrainingWorker(index=1, count=2)
    with pytest.raises(ImpossiblePlan, match="task 1 of a cluster, and 1 hosts are named"):
        find_tf_config(environment, ["a"])


def test_a_given_tf_config_stays_and_without_any_the_command_is_refused():
    assert find_tf_config({**SLURM, "TF_CONFIG": "{}"}, []) == "{}"
    with pytest.raises(ImpossiblePlan, match="srun"):
        find_tf_config({}, ["a"])


def test_a_command_runs_with_its_tf_config_and_its_exit_code():
    program = "import os, sys; print(os.environ['TF_CONFIG']); sys.exit(7)"
    done = subprocess.run(
        ["python", "-m", "tasks.cluster", "--hosts", "a,b", "--", sys.executable, "-c", program],
        executable=sys.executable,
        cwd=ROOT,
        env={"JOB_COMPLETION_INDEX": "0", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout)["task"] == {"type": "worker", "index": 0}


def test_a_program_that_is_not_there_is_said_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setattr(sys, "argv", ["cluster", "--", "nosuchprogram"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == "ServiceFailed: there is no program nosuchprogram that can be run\n"
    )
