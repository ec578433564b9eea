"""Every kind of data takes the same way, and its model predicts files as it is evaluated."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from mlflow.entities import LoggedModelStatus

from benchmarks.data import presets
from tests.support.kinds import COLORS, SEEN, write_items, write_mails, write_waves
from tests.support.predictions import export_file, predict_rows
from tests.support.project import SMALL, run_stages, write_params
from tests.support.small_pipelines import CONFIGS, digest_of_all
from throughline.assembly.inputs import open_input_pipeline, open_inputs, open_stored_pipeline
from throughline.config.params import load_params
from throughline.data.columns.index import read_index
from throughline.data.manifest import read_manifest
from throughline.models.inference import open_trained_model
from throughline.plan.schema import COLUMNS
from throughline.results.build import BuildResult
from throughline.results.comparison import Comparison
from throughline.results.evaluation import Evaluation
from throughline.results.train import TrainResult
from throughline.shared.files import digest_file
from throughline.shared.layout import MODEL_FILE, Layout

pytestmark = [
    pytest.mark.core,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),  # by MLflow, of its own code
]

GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}
ROWS = ("naive", "in_memory", "shards_global", "optimized")
IMAGES = (*ROWS, "snapshot", "snapshot_part", "low_memory", "device_resident")
TARGETS = ("price", "weight")
NUMBERS = {"label_kind": "number", "label_column": [*TARGETS]}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Data of a kind, below source/ of a project, and how a model of it is trained."""

    write: Callable[[Path], pd.DataFrame]  # the source; returns what is in it
    file: str  # what `data.path` names, and predictions are made from
    data: dict[str, Any]
    pipelines: dict[str, Any]
    trained: str  # the configuration
    sections: dict[str, Any]  # of params.yaml
    train: dict[str, Any]
    takes: str  # the exported model


KINDS = {
    "images with columns": Kind(
        write=lambda root: write_items(root, 150),
        file="",
        data={"source": "image_table", **SEEN},
        pipelines={"files": {"read": "files", "map": {"parallel": 2}}}
        | {name: CONFIGS[name] for name in IMAGES},
        trained="device_resident",
        sections={"postprocess": ["rescale"], "batch_size": 8},
        train={"epochs": 12},
        takes="features: image string, size float32, color string",
    ),
    "numbers of texts with columns": Kind(
        write=lambda root: write_items(root, 200),
        file="items.csv",
        data={"source": "text_table", **NUMBERS, **SEEN},
        pipelines={
            "naive": {"read": "shards"},
            "arrays": {"read": "arrays"},
            "by_length": {"read": "shards", "batch": {"pad_to": [64, 256]}},
            "indexed": {"read": "indexed_shards", "shuffle": {"kind": "global"}},
            "gathered": GLOBAL,
            "gathered_by_length": {**GLOBAL, "batch": {"pad_to": "auto", "tokens": 512}},
        },
        trained="gathered_by_length",
        sections={
            "preprocess": [{"tokenize": {"kind": "bytes"}}, {"truncate": {"tokens": 60}}],
            "batch_size": 8,
            "model": {"name": "text_classifier", "options": {"width": 8}},
        },
        train={"epochs": 12},
        takes="features: text string, size float32, color string",
    ),
    "numbers of a table": Kind(
        write=write_items,
        file="items.csv",
        data={"source": "table", **NUMBERS, "ignore": ["path", "text", "label"], **SEEN},
        pipelines={name: CONFIGS[name] for name in ROWS},
        trained="optimized",
        sections={"postprocess": ["standardize", "categories"]},
        train={"epochs": 25, "learning_rate": 0.02},
        takes="features: size float32, color string",
    ),
    "mails": Kind(
        write=write_mails,
        file="mails",
        data={"source": "text_folder"},
        pipelines={
            "naive": {"read": "shards"},
            "by_length": {**GLOBAL, "batch": {"pad_to": [32, 64]}, "prefetch": 2},
        },
        trained="by_length",
        sections={
            "preprocess": [{"tokenize": {"vocabulary": 80}}, {"truncate": {"tokens": 64}}],
            "model": {"name": "text_classifier", "options": {"width": 16}},
        },
        train={"epochs": 3},
        takes="text: string",
    ),
    "a series": Kind(
        write=write_waves,
        file="waves.csv",
        data={"source": "time_series", "time_column": "hour"},
        pipelines=presets("time_series"),
        trained="optimized",
        sections={
            "postprocess": ["standardize"],
            "window": {"length": 16, "horizon": 1, "stride": 1, "targets": ["load"]},
        },
        train={"epochs": 6},
        takes="features: float32",
    ),
}

LISTED = ["images with columns", "numbers of texts with columns", "numbers of a table"]


@dataclass(frozen=True)
class Project:
    """A project of a kind, whose params.yaml names its configurations."""

    kind: Kind
    folder: Path
    table: pd.DataFrame

    @property
    def layout(self) -> Layout:
        return Layout(self.folder)

    def open(self):
        """Its parameters and its prepared data."""
        params = load_params(self.folder / "params.yaml")
        return params, open_inputs(params, self.layout)


@pytest.fixture(scope="module", params=[*KINDS])
def prepared(request, tmp_path_factory) -> Project:
    """A project of each kind after the stages that prepare its data."""
    kind = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-")) / "project"
    table = kind.write(folder / "source")
    data = {"path": str(folder / "source" / kind.file), "max_reject_fraction": 0.1}
    document = SMALL | {"augment": [], "postprocess": [], "batch_size": 16}
    document |= {"model": {"name": "mlp", "options": {"width": 16}}, "pipelines": kind.pipelines}
    document |= {"data": SMALL["data"] | kind.data | data, "train": SMALL["train"] | kind.train}
    write_params(folder, document | kind.sections)
    run_stages(folder, "fetch", "ingest", "shard", "snapshot")
    return Project(kind, folder, table)


@pytest.fixture(scope="module")
def trained(prepared) -> Project:
    """The same after all stages, one of whose configurations is trained."""
    name = prepared.kind.trained
    first = next(iter(prepared.kind.pipelines))
    run_stages(prepared.folder, f"build@{first}", f"build@{name}")
    run_stages(prepared.folder, f"train@{name}", f"profiling@{name}", "race", "report")
    return prepared


def test_every_configuration_delivers_the_same_examples(prepared):
    params, data = prepared.open()
    for split in data.shards.splits:
        opened = partial(open_input_pipeline, params, data=data, split=split, purpose="compare")
        digest_of_all({name: opened(name) for name in params.pipelines})


def place_of(name: str) -> int:
    """Its place in its table, by the last number in its id; rows of texts are counted from 1."""
    return int(re.findall(r"\d+", name)[-1]) - ("row" in name)


@pytest.mark.parametrize("prepared", LISTED, indirect=True)
def test_columns_and_targets_are_those_of_their_row(prepared):
    params, data = prepared.open()
    schema = data.shards.schema
    columns = COLUMNS if schema.table_input else "features"
    names = read_manifest(prepared.layout.manifest).examples.set_index("key")["id"]
    sizes = pd.to_numeric(prepared.table["size"]).fillna(schema.columns.medians["size"])
    pipeline = open_stored_pipeline(params, next(iter(params.pipelines)), data, split="train")
    for batch in pipeline.dataset().as_numpy_iterator():
        places = [place_of(names[key]) for key in batch["key"]]
        rows = prepared.table.iloc[places]
        np.testing.assert_array_equal(batch[columns][:, 0], np.float32(sizes[places]))
        assert [COLORS[int(code)] for code in batch[columns][:, 1]] == rows["color"].tolist()
        if schema.predicts_number:
            expected = rows[[*TARGETS]].astype(float).to_numpy(np.float32)
            np.testing.assert_array_equal(batch["label"], expected)


def test_a_model_of_each_kind_is_trained_reported_and_logged(trained):
    layout, (first, *_), name = trained.layout, trained.kind.pipelines, trained.kind.trained
    built = [BuildResult.read(layout.results(one)) for one in (first, name)]
    assert built[0].examples_digests == built[1].examples_digests
    result = TrainResult.read(layout.results(name))
    if result.metric == "accuracy":
        assert result.test["accuracy"] > 0.8 > result.held_out.constant_metric
    else:
        assert result.test["mae"] < result.held_out.constant_metric / 2.5
    if "label_kind" in trained.kind.data:  # each target, whatever its unit
        labels = np.array(read_manifest(layout.manifest).examples["label"].tolist())
        deviations = np.abs(labels - np.median(labels, axis=0)).mean(axis=0)
        errors = Evaluation.read(layout.results(name)).mae_by_target
        assert all(errors[target] < deviations[place] / 3 for place, target in enumerate(TARGETS))
    compared = Comparison.read(layout.report)
    assert [row.pipeline for row in compared.configurations] == [name]
    assert first in compared.missing, "which was not trained"
    client = mlflow.MlflowClient(f"sqlite:///{trained.folder / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    (logged,) = client.search_logged_models(experiments)
    assert logged.status == LoggedModelStatus.READY
    served = mlflow.models.Model.load(logged.artifact_location.removeprefix("file://"))
    assert served.signature.inputs.is_tensor_spec()
    schema = trained.open()[1].shards.schema
    if schema.table_input:
        assert {*served.signature.inputs.input_names()} == {COLUMNS, schema.input.name}


@pytest.mark.parametrize("prepared", [*LISTED, "mails"], indirect=True)
def test_files_are_predicted_and_served_as_the_model_is_evaluated(trained, tmp_path):
    params, data = trained.open()
    model = trained.layout.results(trained.kind.trained) / MODEL_FILE
    examples = read_manifest(trained.layout.manifest).for_split("test")
    assert len(examples) > 10
    answers, numbers = {}, data.shards.schema.predicts_number
    with open_trained_model(model) as loaded:
        pipeline = open_stored_pipeline(params, trained.kind.trained, data, split="test")
        for batch in pipeline.dataset():
            seen = {name: batch[name] for name in batch if name not in ("key", "label")}
            outputs = loaded.model(seen if len(seen) > 1 else next(iter(seen.values())))
            outputs = outputs if numbers else tf.nn.softmax(outputs)
            answers |= dict(zip(batch["key"].numpy().tolist(), outputs.numpy(), strict=True))
    expected = np.array([answers[key] for key in examples["key"]])

    paths, features = ask(trained, examples["id"])
    found, counts = predict_rows(model, *paths)
    assert counts.rejected == 0
    if numbers:
        said = [[float(row[name]) for name in TARGETS] for row in found]
        np.testing.assert_allclose(said, expected, rtol=1e-4)
    else:
        classes = read_manifest(trained.layout.manifest).classes
        assert [row["class"] for row in found] == [classes[one] for one in expected.argmax(axis=1)]
        said = [float(row["probability"]) for row in found]
        np.testing.assert_allclose(said, expected.max(axis=1), atol=1e-5)

    assert export_file(model, tmp_path / "served") == trained.kind.takes
    served = tf.saved_model.load(str(tmp_path / "served"))
    (answer,) = served.serve(features).values()
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def ask(project: Project, names: pd.Series) -> tuple[list[Path], Any]:
    """Files for `predict` with the examples of these ids, of a table in a file of its own with
    other columns around; and what the SavedModel takes of them.
    """
    source = project.folder / "source"
    if project.kind.write is write_mails:
        paths = [source / project.kind.file / name for name in names]
        return paths, tf.constant([path.read_text() for path in paths])
    rows = project.table.iloc[[place_of(name) for name in names]]
    rows[["color", "text", "path", "size"]].assign(more="x").to_csv(source / "new.csv", index=False)
    features = {
        "image": lambda: tf.constant([(source / path).read_bytes() for path in rows["path"]]),
        "text": lambda: tf.constant(rows["text"].tolist()),
        "size": lambda: tf.constant(pd.to_numeric(rows["size"]).to_numpy(np.float32)),
        "color": lambda: tf.constant(rows["color"].tolist()),
    }
    taken = re.findall(r"(\w+) (?:string|float32)", project.kind.takes)
    return [source / "new.csv"], {name: features[name]() for name in taken}


@pytest.mark.parametrize("prepared", ["mails"], indirect=True)
def test_a_fitted_tokenizer_is_in_the_snapshot_and_batches_by_length_pad_less(trained):
    layout = trained.layout
    built = (BuildResult.read(layout.results(name)) for name in trained.kind.pipelines)
    naive, by_length = (one.sequence_batches.padding_pct for one in built)
    assert by_length < naive and "padding" in (layout.report / "index.html").read_text()
    fitted = {"tokenizer.model": digest_file(layout.snapshot / "tokenizer.model")}
    assert read_index(layout.snapshot).files == fitted
