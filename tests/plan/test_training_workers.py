"""Several workers: each knows which one it is, and all slices of a batch are equal, or the run is
refused.
"""

from __future__ import annotations

import json
import sys

import pytest
from ruamel.yaml import YAML

from tasks.train import main as train_stage
from tests.support.project import SMALL
from throughline.plan.training_workers import (
    TrainingWorker,
    find_training_worker,
    list_addresses,
    make_tf_config,
    training_worker_from_tf_config,
)
from throughline.shared.errors import ImpossiblePlan

WORKERS = {"worker": ["a:1", "b:1", "c:1"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def given(cluster, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


WORKERS_BY_TF_CONFIG = [
    ({}, TrainingWorker()),
    ({"TF_CONFIG": ""}, TrainingWorker()),
    ({"TF_CONFIG": "{}"}, TrainingWorker()),
    (given({"worker": ["a:1"]}, type="worker", index=0), TrainingWorker()),
    (given(WORKERS, type="worker", index=2), TrainingWorker(index=2, count=3)),
    (given(WITH_CHIEF, type="chief", index=0), TrainingWorker(index=0, count=3)),
    (given(WITH_CHIEF, type="worker", index=1), TrainingWorker(index=2, count=3)),
]
REFUSED = [
    {"TF_CONFIG": "{"},
    {"TF_CONFIG": "[1]"},
    {"TF_CONFIG": json.dumps({"cluster": WORKERS})},
    given(WORKERS, type="worker"),
    given(WORKERS, type="worker", index=3),
    given(WORKERS, type="worker", index=-1),
    given(WORKERS, type="worker", index="0"),
    given(WITH_CHIEF, type="chief", index=1),
    given(WORKERS, type="evaluator", index=0),
    given({**WORKERS, "ps": ["d:1"]}, type="worker", index=0),
]


@pytest.mark.parametrize(("environment", "worker"), WORKERS_BY_TF_CONFIG)
def test_a_worker_knows_which_one_it_is(environment, worker):
    assert training_worker_from_tf_config(environment) == worker


@pytest.mark.parametrize("environment", REFUSED)
def test_hosts_that_could_read_the_same_examples_are_refused(environment):
    with pytest.raises(ImpossiblePlan, match="TF_CONFIG"):
        training_worker_from_tf_config(environment)


def test_any_number_of_examples_gives_every_host_equal_slices_that_are_not_empty():
    for workers in range(1, 8):
        for each in (1, 2, 5):
            batch = workers * each
            for examples in range(workers, 120):
                shared = TrainingWorker(count=workers).shared(examples, batch)
                assert (
                    0 < shared <= examples
                    and examples - shared < workers
                    and shared % batch % workers == 0
                )
                TrainingWorker(count=workers).check(shared, batch)


@pytest.mark.parametrize(
    ("examples", "batch", "workers", "said"),
    [(120, 7, 2, "use 6 or 8"), (120, 2, 3, "use 3"), (0, 4, 4, "fewer examples")],
)
def test_what_cannot_be_shared_is_refused(examples, batch, workers, said):
    with pytest.raises(ImpossiblePlan, match=said):
        TrainingWorker(count=workers).check(examples, batch)


@pytest.mark.parametrize(
    ("examples", "batch", "worker", "said"),
    [
        (120, 24, TrainingWorker(count=3, batch_multiple=4), "multiple of 3"),
        (120, 6, TrainingWorker(count=2, batch_multiple=4), "use 4 or 8"),
        (3, 8, TrainingWorker(count=2, batch_multiple=4), "fewer examples than 4"),
    ],
)
def test_a_multiple_that_slices_cannot_share_is_refused(examples, batch, worker, said):
    with pytest.raises(ImpossiblePlan, match=said):
        worker.check(examples, batch)


def test_one_multiple_leaves_out_the_same_examples_whatever_the_count():
    for examples in range(4, 60):
        shared = {
            TrainingWorker(count=count, batch_multiple=4).shared(examples, 8) for count in (1, 2, 4)
        }
        assert len(shared) == 1 and shared.pop() % 4 == 0


ASKED = {"processes": "auto", "batch_multiple": "auto", "gpus": 0}


@pytest.mark.parametrize(
    ("environment", "asked", "worker"),
    [
        ({}, {}, TrainingWorker()),
        ({}, {"gpus": 4}, TrainingWorker(count=4)),
        ({}, {"processes": 2, "gpus": 4}, TrainingWorker(count=2)),
        ({}, {"processes": 2, "batch_multiple": 4}, TrainingWorker(count=2, batch_multiple=4)),
        (
            given(WORKERS, type="worker", index=2),
            {"processes": 3, "batch_multiple": 6},
            TrainingWorker(index=2, count=3, batch_multiple=6),
        ),
        (given(WORKERS, type="worker", index=1), {"gpus": 8}, TrainingWorker(index=1, count=3)),
    ],
)
def test_tf_config_says_who_a_process_is_else_the_parameters_how_many_there_are(
    environment, asked, worker
):
    assert find_training_worker(environment, **{**ASKED, **asked}) == worker


def test_each_process_of_a_host_finds_itself_and_the_others():
    addresses = ["a:1", "b:2"]
    for index in range(2):
        environment = {"TF_CONFIG": make_tf_config(addresses, index)}
        assert training_worker_from_tf_config(environment) == TrainingWorker(index=index, count=2)
        assert list_addresses(environment) == addresses
    assert list_addresses({}) == []


def test_processes_of_one_host_share_what_it_has():
    cluster = {"worker": ["a:1", "a:2", "b:1", "a:3"]}
    shares = []
    for index in range(4):
        worker = training_worker_from_tf_config(given(cluster, type="worker", index=index))
        shares.append((worker.on_host, worker.share(8), worker.share(2)))
    assert shares == [(3, 2, 1), (3, 2, 1), (1, 8, 2), (3, 2, 1)]


def test_one_worker_has_the_whole_batches_of_all_cut_alike():
    for worker in (TrainingWorker(index=2, count=4), TrainingWorker(count=2, batch_multiple=4)):
        assert (worker.alone.count, worker.alone.index, worker.alone.multiple) == (1, 0, 4)


def test_a_stage_refuses_another_number_of_workers_than_the_parameters_say(
    tmp_path, monkeypatch, capsys
):
    YAML().dump(SMALL, tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--pipeline", "optimized"])
    monkeypatch.setenv("TF_CONFIG", given(WORKERS, type="worker", index=1)["TF_CONFIG"])
    with pytest.raises(SystemExit) as ended:
        train_stage()
    assert ended.value.code == 2
    assert "TF_CONFIG names 3 workers, and train.processes is 1; set it" in capsys.readouterr().err
