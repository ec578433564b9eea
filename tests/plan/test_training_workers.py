"""Several workers: each knows which one it is, and all slices of a batch are equal, or the run is
refused.
"""

from __future__ import annotations

import json
import sys

import pytest
from project import SMALL
from ruamel.yaml import YAML

from tasks.train import main as train_stage
from throughline.plan.training_workers import TrainingWorker, training_worker_from_tf_config
from throughline.shared.errors import ImpossiblePlan

WORKERS = {"worker": ["a:1", "b:1", "c:1"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def told(cluster, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


WORKERS_BY_TF_CONFIG = [
    ({}, TrainingWorker()),
    ({"TF_CONFIG": ""}, TrainingWorker()),
    ({"TF_CONFIG": "{}"}, TrainingWorker()),
    (told({"worker": ["a:1"]}, type="worker", index=0), TrainingWorker()),
    (told(WORKERS, type="worker", index=2), TrainingWorker(index=2, count=3)),
    (told(WITH_CHIEF, type="chief", index=0), TrainingWorker(index=0, count=3)),
    (told(WITH_CHIEF, type="worker", index=1), TrainingWorker(index=2, count=3)),
]
REFUSED = [
    {"TF_CONFIG": "{"},
    {"TF_CONFIG": "[1]"},
    {"TF_CONFIG": json.dumps({"cluster": WORKERS})},
    told(WORKERS, type="worker"),
    told(WORKERS, type="worker", index=3),
    told(WORKERS, type="worker", index=-1),
    told(WORKERS, type="worker", index="0"),
    told(WITH_CHIEF, type="chief", index=1),
    told(WORKERS, type="evaluator", index=0),
    told({**WORKERS, "ps": ["d:1"]}, type="worker", index=0),
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


def test_the_train_stage_refuses_to_be_one_of_several_hosts(tmp_path, monkeypatch, capsys):
    """It would train on its slice of each batch alone."""
    YAML().dump(SMALL, tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--pipeline", "optimized"])
    monkeypatch.setenv("TF_CONFIG", told(WORKERS, type="worker", index=1)["TF_CONFIG"])
    with pytest.raises(SystemExit) as ended:
        train_stage()
    assert ended.value.code == 2
    assert "TF_CONFIG names 3 workers; this stage is a single one" in capsys.readouterr().err
