"""A project opened for a training loop of one's own: its inputs, and models that are trained on."""

import shutil

import numpy as np
import pytest

from tests.support import texts
from tests.support.prepared import link_data, prepare, take_snapshot
from tests.support.project import SMALL, run_stages, write_params
from tests.support.saved_models import save_as_train_does
from tests.support.trainings import params_of
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.assembly.project import Project
from throughline.assembly.training import open_split_pipelines
from throughline.config.params import check
from throughline.models.inference import TOKENIZER, open_trained_model
from throughline.pipelines.sizes import estimate_kept_bytes
from throughline.plan.training_workers import TF_CONFIG, make_tf_config
from throughline.shared.errors import ImpossiblePlan, InvalidParams, MissingInput, UnknownModel
from throughline.shared.layout import Layout
from throughline.shared.limits import KEPT_SHARE

pytestmark = pytest.mark.integration


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
    ordered = project.open_input_pipeline("optimized", shuffle={"kind": "none"})
    assert str(usual.plan).startswith("gather:snapshot[global shuffle")
    assert str(ordered.plan).startswith("gather:snapshot[in order,32]")
    assert project.params.pipelines["optimized"].shuffle.kind == "global"
    models = project.compile_models(usual)
    whole = models.full_model
    assert (whole.input_shape, whole.output_shape) == ((None, 12, 10, 1), (None, 4))
    assert models.network.optimizer is not None and whole.optimizer is not None
    project = Project(root, overrides=["batch_size=8"])
    pipeline = project.open_input_pipeline("optimized", split="test", purpose="evaluate")
    assert str(pipeline.plan).startswith("gather:snapshot[in order,8] → ")
    labels = np.concatenate([labels.numpy() for _, labels in pipeline.dataset()])
    np.testing.assert_array_equal(labels, project.data.memmap("test", "label"))


def test_what_is_wrong_is_said_where_it_is_asked_for(root, tmp_path):
    with pytest.raises(InvalidParams, match=r"train\.epoch "):
        Project(root, overrides=["train.epoch=3"])
    project = Project(root)
    with pytest.raises(ImpossiblePlan, match=r"shuffle\.kind"):
        project.open_input_pipeline("naive", shuffle={"kind": "global"})
    opened = project.open_input_pipeline("naive", service={"address": "grpc://localhost:1"})
    assert opened.service_address == "grpc://localhost:1"
    with pytest.raises(ImpossiblePlan, match=r"naive\.service: only stages start its workers"):
        project.open_input_pipeline("naive", service={"workers": 2})
    project.open_input_pipeline("naive", service={"workers": 2}, purpose="evaluate")
    write_params(tmp_path, SMALL)
    with pytest.raises(MissingInput, match="dvc repro shard"):
        _ = Project(tmp_path).data


@pytest.mark.parametrize("name", ["cache_memory", "in_memory"])
def test_what_is_kept_of_all_splits_has_to_fit_into_memory_at_once(layout, monkeypatch, name):
    params = params_of()
    data = open_inputs(params, layout)
    opened = open_split_pipelines(params, name, data, address="")
    plans = {one.split: one.plan for one in (opened.train, opened.validation, opened.test)}
    kept = [estimate_kept_bytes(plans[one], data, one, where="memory") for one in plans]
    room = 1.5 * max(kept)
    assert sum(kept) > room
    memory = "throughline.assembly.inputs.available_memory"
    monkeypatch.setattr(memory, lambda: int(room / KEPT_SHARE))
    open_input_pipeline(params, name, data, split="train", purpose="train")
    with pytest.raises(ImpossiblePlan, match="the train and validation and test splits"):
        open_split_pipelines(params, name, data, address="")


def test_processes_of_a_host_share_it_also_where_they_evaluate(layout, monkeypatch):
    addresses = [f"localhost:{port}" for port in range(1, 6)]
    monkeypatch.setenv(TF_CONFIG, make_tf_config(addresses, 3))

    def open_worker(processes, purpose):
        params = params_of(f"train.processes={processes}")
        data = open_inputs(params, layout)
        return open_input_pipeline(params, "snapshot", data, split="test", purpose=purpose).worker

    evaluating, comparing = (open_worker(5, purpose) for purpose in ("evaluate", "compare"))
    assert (evaluating.on_host, comparing.on_host) == (5, 1)
    assert evaluating.count == comparing.count == 1, "each has whole batches"
    with pytest.raises(ImpossiblePlan, match=TF_CONFIG):
        open_worker(4, "evaluate")


def build(params, layout, path=None):
    """Build the model of the parameters; at `path` it is saved as train does it."""
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    if path:
        save_as_train_does(models, params, data, path)
    return models


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory):
    return texts.prepare_texts(tmp_path_factory.mktemp("texts"))


def test_a_model_of_text_is_trained_on_with_its_own_tokenizer_alone(of_texts, tmp_path):
    words, first = tmp_path / "words.txt", tmp_path / "first.keras"
    tokenize = {"kind": "wordpiece", "model": str(words)}

    def build_with(*lines, path=None, **model):
        """Build a model of texts in tokens of this vocabulary."""
        words.write_text("\n".join(lines) + "\n")
        params = texts.params_of({}, preprocess=[{"tokenize": tokenize}], model=model)
        layout = Layout(tmp_path / "-".join(lines))
        if not layout.root.exists():
            take_snapshot(params, link_data(of_texts.root / "data", layout.root, snapshot=False))
        return build(params, layout, path)

    build_with("[UNK]", "the", "fox", name="text_classifier", path=first)
    again = build_with("[UNK]", "the", "fox", **{"from": str(first)})
    assert again.network.output_shape[-1] == 2
    with pytest.raises(UnknownModel) as refusal:
        build_with("[UNK]", "fox", "the", **{"from": str(first)})
    take = "`tokenize: {kind: wordpiece, lower: auto, model: FILE}`"
    assert f"{take} and `unzip -p {first} {TOKENIZER} > FILE`" in str(refusal.value)
    with pytest.raises(UnknownModel, match="trained with another tokenizer"):
        build(texts.params_of({}, model={"from": str(first)}), of_texts)


@pytest.mark.slow
def test_a_transformer_that_is_trained_on_is_saved_with_what_its_layers_need(of_texts, tmp_path):
    first, second = tmp_path / "first.keras", tmp_path / "second.keras"
    expected = build(texts.params_of({}), of_texts, first).full_model
    build(texts.params_of({}, model={"from": str(first)}), of_texts, second)
    tokens = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    with open_trained_model(second) as trained:
        np.testing.assert_array_equal(trained.model(tokens), expected(tokens))


@pytest.mark.slow
def test_a_model_of_a_table_is_trained_on_with_the_same_columns_and_categories_alone(tmp_path):
    def colored(name, colors, **model):
        folder = tmp_path / name
        rows = [f"{number}.5,{colors[number % 2]},c{number // 2 % 2}" for number in range(40)]
        folder.mkdir()
        (folder / "table.csv").write_text("\n".join(["size,color,kind", *rows]) + "\n")
        data = {"source": "table", "path": str(folder / "table.csv"), "label_column": "kind"}
        ops = ["standardize", "categories"]
        more = {"model": model, "pipelines": {"p": {"read": "shards"}}}
        params = check({"data": data, "postprocess": ops, **more})
        return params, prepare(params, Layout(folder))

    first = tmp_path / "first.keras"
    build(*colored("first", ["red", "blue"]), path=first)
    further = {"from": str(first)}
    assert build(*colored("same", ["blue", "red"], **further)).network.output_shape[-1] == 2
    with pytest.raises(UnknownModel, match=r"other columns, or .*; its columns: size, color"):
        build(*colored("other", ["red", "green"], **further))
