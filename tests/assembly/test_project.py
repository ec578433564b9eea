"""A project opened for a training loop of one's own, and what its inputs may take of their host."""

import shutil

import numpy as np
import pytest

from tests.support.project import SMALL, run_stages, write_params
from tests.support.trainings import params_of
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.project import Project
from throughline.assembly.training import open_split_pipelines
from throughline.pipelines.sizes import estimate_kept_bytes
from throughline.plan.training_workers import TF_CONFIG, make_tf_config
from throughline.shared.errors import ImpossiblePlan, InvalidParams, MissingInput
from throughline.shared.limits import KEPT_SHARE

pytestmark = pytest.mark.integration

MEMORY = "throughline.assembly.inputs.available_memory"


@pytest.fixture(scope="module")
def root(array_file, tmp_path_factory):
    """A project whose stages up to `snapshot` are done."""
    folder = tmp_path_factory.mktemp("own-loop")
    (folder / "source").mkdir()
    shutil.copy(array_file, folder / "source" / "data.npz")
    write_params(folder, SMALL)
    run_stages(folder, "ingest", "shard", "snapshot")
    return folder


def test_a_project_gives_input_pipelines_and_models_and_stays_as_it_is(root):
    project = Project(root)
    usual = project.open_input_pipeline("optimized")
    assert str(usual.plan).startswith("gather:snapshot[global shuffle")
    ordered = project.open_input_pipeline("optimized", shuffle={"kind": "none"})
    assert str(ordered.plan).startswith("gather:snapshot[in order,32]")
    assert project.params.pipelines["optimized"].shuffle.kind == "global"
    models = project.compile_models(usual)
    assert models.full_model.input_shape == (None, 12, 10, 1)
    assert models.full_model.output_shape == (None, 4)
    assert models.network.optimizer is not None and models.full_model.optimizer is not None
    project = Project(root, overrides=["batch_size=8"])
    pipeline = project.open_input_pipeline("optimized", split="test", purpose="evaluate")
    assert str(pipeline.plan).startswith("gather:snapshot[in order,8] → ")
    labels = np.concatenate([labels.numpy() for _, labels in pipeline.dataset()])
    np.testing.assert_array_equal(labels, project.data.memmap("test", "label"))


def test_what_is_wrong_is_said_where_it_is_asked_for(root, tmp_path):
    with pytest.raises(InvalidParams, match=r"train\.epoch "):
        Project(root, overrides=["train.epoch=3"])
    with pytest.raises(ImpossiblePlan, match="needs random access"):
        Project(root).open_input_pipeline("naive", shuffle={"kind": "global"})
    write_params(tmp_path, SMALL)
    with pytest.raises(MissingInput, match="dvc repro shard"):
        _ = Project(tmp_path).data


def test_a_service_is_used_where_it_is_said_to_be_and_not_started(root):
    project = Project(root)
    opened = project.open_input_pipeline("naive", service={"address": "grpc://localhost:1"})
    assert opened.service_address == "grpc://localhost:1"
    with pytest.raises(ImpossiblePlan, match=r"naive\.service: only stages start its workers"):
        project.open_input_pipeline("naive", service={"workers": 2})
    project.open_input_pipeline("naive", service={"workers": 2}, purpose="evaluate")


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
    with pytest.raises(ImpossiblePlan, match="the train and validation and test splits"):
        open_split_pipelines(params, name, data, address="")


def test_processes_of_a_host_share_it_also_where_they_evaluate(layout, monkeypatch):
    params = params_of("train.processes=5")
    data = open_inputs(params, layout)
    addresses = [f"localhost:{port}" for port in range(1, 6)]
    monkeypatch.setenv(TF_CONFIG, make_tf_config(addresses, 3))
    evaluating, comparing = (
        open_input_pipeline(params, "snapshot", data, split="validation", purpose=purpose).worker
        for purpose in ("evaluate", "compare")
    )
    assert (evaluating.on_host, comparing.on_host) == (5, 1)
    assert evaluating.count == comparing.count == 1, "each has whole batches"
