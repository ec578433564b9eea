"""What an input pipeline of a stage may take of its host."""

from __future__ import annotations

import pytest

from tests.support.trainings import params_of
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.training import open_split_pipelines
from throughline.pipelines.sizes import estimate_kept_bytes
from throughline.plan.training_workers import TF_CONFIG, make_tf_config
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.limits import KEPT_SHARE

MEMORY = "throughline.assembly.inputs.available_memory"


@pytest.mark.parametrize("name", ["cache_memory", "in_memory"])
def test_what_is_kept_of_all_splits_has_to_fit_into_memory_at_once(layout, monkeypatch, name):
    params = params_of()
    data = open_inputs(params, layout)
    pipelines = open_split_pipelines(params, name, data, address="")
    kept = {
        one.split: estimate_kept_bytes(one.plan, data, one.split, where="memory")
        for one in (pipelines.train, pipelines.validation, pipelines.test)
    }
    monkeypatch.setattr(MEMORY, lambda: int(1.5 * max(kept.values()) / KEPT_SHARE))
    assert sum(kept.values()) > 1.5 * max(kept.values())
    open_input_pipeline(params, name, data, split="train", purpose="train")
    with pytest.raises(ImpossiblePlan, match="the train and validation and test splits would take"):
        open_split_pipelines(params, name, data, address="")


def test_processes_of_a_host_share_it_also_where_they_evaluate(layout, monkeypatch):
    params = params_of("train.processes=5")
    data = open_inputs(params, layout)
    addresses = [f"localhost:{port}" for port in range(1, 6)]
    monkeypatch.setenv(TF_CONFIG, make_tf_config(addresses, 3))
    opened = {
        purpose: open_input_pipeline(
            params, "snapshot", data, split="validation", purpose=purpose
        ).worker
        for purpose in ("evaluate", "compare")
    }
    assert {purpose: one.on_host for purpose, one in opened.items()} == {
        "evaluate": 5,
        "compare": 1,
    }
    assert {one.count for one in opened.values()} == {1}, "each has whole batches"
