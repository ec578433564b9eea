"""Several numbers to predict of rows, images and texts: from columns of a table to a model of as
many outputs, the same in every configuration.
"""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.support.predictions import predict_rows, save_untrained
from tests.support.prepared import prepare
from tests.support.project import SMALL, run_stages, write_params
from tests.support.small_data import picture
from tests.support.small_pipelines import CONFIGS
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import infer_target
from throughline.config.params import check
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.index import read_shard_index
from throughline.measurement.equality import digest_examples
from throughline.models.builders import Target
from throughline.results.evaluation import Evaluation
from throughline.results.train import TrainResult
from throughline.settings import DataSettings, TrainSettings
from throughline.shared.errors import InvalidParams, UnreadableSource
from throughline.shared.layout import Layout
from throughline.training.compiling import SquaredErrorInUnits, compile_model

ROWS = 120
TARGETS = {"label_kind": "number", "label_column": ["price", "weight"]}
READS = {
    "image_table": ["naive", "in_memory", "shards_global", "optimized", "snapshot_part"],
    "table": ["naive", "in_memory", "shards_global", "optimized"],
    "text_table": ["naive", "in_memory", "shards_global", "optimized"],
}
SECTIONS = {
    "image_table": {"preprocess": ["decode"], "postprocess": ["rescale"]},
    "table": {"preprocess": ["decode"], "postprocess": ["standardize"]},
    "text_table": {"preprocess": [{"tokenize": {"kind": "bytes"}}], "postprocess": []},
}


def write_items(folder) -> pd.DataFrame:
    """Items whose size tells a price in thousands and a weight in fractions; the fourth row has no
    weight.
    """
    (folder / "photos").mkdir(parents=True)
    draw = np.random.default_rng(3)
    size = draw.uniform(0, 1, ROWS)
    table = pd.DataFrame(
        {
            "path": [f"photos/{number:03d}.png" for number in range(ROWS)],
            "text": [f"item {'x' * (1 + number % 30)} {number}" for number in range(ROWS)],
            "size": size,
            "name": [f"item {number}" for number in range(ROWS)],
            "price": 1e5 * (1 + size),
            "weight": [f"{value:.6f}" for value in 0.01 * (2 - size)],
        }
    )
    table.loc[3, "weight"] = ""
    for number, name in enumerate(table["path"]):
        picture(number, size=(10, 8)).save(folder / name)
    table.to_csv(folder / "items.csv", index=False)
    return table


def data_of(folder, source: str, **more) -> dict:
    path = folder if source == "image_table" else folder / "items.csv"
    kinds = {"ignore": ["path", "text", "name"]} if source == "table" else {}
    return {
        "source": source,
        "path": str(path),
        "fetch": "none",
        "max_reject_fraction": 0.1,
        **kinds,
        **TARGETS,
        **more,
    }


@pytest.fixture(scope="module", params=[*READS])
def items(request, tmp_path_factory):
    """The table, and parameters and layout of its items, prepared, by the kind of their source."""
    source = request.param
    folder = tmp_path_factory.mktemp(source)
    table = write_items(folder / "source")
    document = copy.deepcopy(SMALL) | SECTIONS[source] | {"augment": [], "batch_size": 16}
    document["data"] = data_of(folder / "source", source)
    document["pipelines"] = {name: CONFIGS[name] for name in READS[source]}
    document["model"] = {"name": "auto"}
    params = check(document)
    return table, params, prepare(params, Layout(folder))


def expected_of(table: pd.DataFrame, names: list[str]) -> np.ndarray:
    """The targets (examples, 2) of examples by their ids."""
    rows = table.set_index(table["path"])
    places = [
        name if name in rows.index else table["path"][int(name[-8:]) - ("row" in name)]
        for name in names
    ]
    return rows.loc[places, ["price", "weight"]].astype(float).to_numpy(np.float32)


@pytest.mark.slow
def test_every_configuration_delivers_the_same_targets(items):
    table, params, layout = items
    manifest = read_manifest(layout.manifest)
    assert manifest.rejected["reason"].tolist() == ["label weight missing"]
    assert manifest.schema.target.shape == (2,) and manifest.classes == ()
    data = open_inputs(params, layout)
    names = dict(zip(manifest.examples["key"], manifest.examples["id"], strict=True))
    for split in ("train", "validation"):
        pipelines = {
            name: open_input_pipeline(params, name, data, split=split, purpose="compare")
            for name in params.pipelines
        }
        digests = {name: digest_examples(one).digest for name, one in pipelines.items()}
        assert len(set(digests.values())) == 1, digests
        for batch in pipelines["optimized"].dataset().as_numpy_iterator():
            said = expected_of(table, [names[key] for key in batch["key"]])
            np.testing.assert_array_equal(batch["label"], said)
    target = infer_target(params, data)
    labels = np.asarray(data.memmap("train", "label"), np.float64)
    assert target.kind == "regression" and target.shape == (2,)
    np.testing.assert_allclose(target.scale, labels.std(axis=0))


def test_predictions_have_a_column_for_each_target(items, tmp_path):
    _, params, layout = items
    params = check({**params_document(params), "pipelines": {"p": {"read": "shards"}}})
    model = save_untrained(params, layout)
    source = layout.root / "source"
    (source / "new.csv").write_text("path,text,size\nphotos/007.png,item xx,0.5\n")
    (row,), counts = predict_rows(model, source / "new.csv")
    assert counts.rejected == 0 and [*row] == ["input", "price", "weight", "error"]
    assert float(row["price"]) != float(row["weight"])


def params_document(params) -> dict:
    source = params.data.source
    document = copy.deepcopy(SMALL) | SECTIONS[source] | {"augment": []}
    return document | {"data": params.data.model_dump(), "model": {"name": "auto"}}


@pytest.mark.slow
def test_both_targets_are_learned_whatever_their_units(tmp_path):
    folder = tmp_path / "project"
    write_items(folder / "source")
    document = copy.deepcopy(SMALL) | SECTIONS["table"] | {"augment": [], "batch_size": 16}
    document["data"] = data_of(folder / "source", "table") | {"path": "source/items.csv"}
    document["pipelines"] = {"optimized": CONFIGS["optimized"]}
    document["model"] = {"name": "mlp", "options": {"width": 16}}
    document["train"] |= {"epochs": 25, "learning_rate": 0.02}
    write_params(folder, document)
    run_stages(folder, "fetch", "ingest", "shard", "snapshot", "build@optimized")
    run_stages(folder, "train@optimized", "profiling@optimized", "report")
    layout = Layout(folder)
    evaluation = Evaluation.read(layout.results("optimized"))
    labels = np.asarray(read_manifest(layout.manifest).examples["label"].tolist())
    for place, name in enumerate(TARGETS["label_column"]):
        deviation = np.abs(labels[:, place] - np.median(labels[:, place])).mean()
        assert evaluation.mae_by_target[name] < deviation / 4, name
    trained = TrainResult.read(layout.results("optimized"))
    assert trained.test["mae"] < trained.held_out.constant_metric / 4
    assert read_shard_index(layout.shards).schema.target.shape == (2,)


def test_errors_count_in_the_unit_of_each_target():
    loss = SquaredErrorInUnits([1e5, 0.01])
    labels, outputs = np.zeros((1, 2), np.float32), np.float32([[1e5, 0.02]])
    assert float(loss(labels, outputs)) == pytest.approx((1 + 4) / 2)
    target = Target(kind="regression", shape=(2,), mean=(0.0, 0.0), scale=(1e5, 0.01))
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    compile_model(model, TrainSettings(), target=target, steps=1)
    assert isinstance(model.loss, SquaredErrorInUnits)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"label_column": ["price", "weigth"]}, "no column weigth; did you mean weight?"),
        ({"label_column": ["price", "name"], "ignore": ["path", "text"]}, "column name holds text"),
        (
            {"label_column": ["price", "price"]},
            r"price \(data.label_column and data.label_column\)",
        ),
    ],
)
@pytest.mark.parametrize("source", [*READS])
def test_targets_that_cannot_be_meant_are_refused(tmp_path, source, data, said):
    write_items(tmp_path / "source")
    settings = DataSettings.model_validate(data_of(tmp_path / "source", source, **data))
    with pytest.raises(UnreadableSource, match=said):
        ingest(settings, tmp_path / "manifest")


def test_several_labels_are_numbers():
    document = copy.deepcopy(SMALL)
    document["data"] |= {"source": "table", "path": "x.csv", "label_column": ["a", "b"]}
    with pytest.raises(InvalidParams, match=r"data\.label_column: several columns are numbers"):
        check(document)
