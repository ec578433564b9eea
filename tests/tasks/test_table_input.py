"""Columns of a table next to its images, and numbers to predict of them: from the file to a model
of two inputs, the same in every configuration.
"""

from __future__ import annotations

import copy
import csv
import io
import sys
from dataclasses import replace

import mlflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from mlflow.entities import LoggedModelStatus

from tests.support.docs_blocks import read_blocks
from tests.support.project import ROOT, SMALL, run_stages, write_params
from tests.support.small_data import picture, prepared
from tests.support.small_pipelines import CONFIGS
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.inputs import make_input_spec, open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.config.params import check
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.row_digests import digest_rows
from throughline.data.shards.index import read_shard_index
from throughline.measurement.equality import digest_example, digest_examples, iterate_examples
from throughline.models.inference import TrainedModel, save_trained_model
from throughline.models.serving import export_model
from throughline.models.table_input import needs_columns
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.augmentations import Mixup
from throughline.plan.plan import make_plan
from throughline.plan.schema import COLUMNS, TableColumns
from throughline.prediction.examples import Wanted
from throughline.prediction.table import write_predictions
from throughline.results.train import TrainResult
from throughline.settings import DataSettings
from throughline.shared.errors import (
    ImpossiblePlan,
    InvalidParams,
    UnknownModel,
    UnreadableSource,
)
from throughline.shared.layout import Layout

READS = [
    "naive",
    "in_memory",
    "shards_global",
    "snapshot",
    "snapshot_part",
    "low_memory",
    "device_resident",
    "optimized",
]
COLORS = ("blue", "green", "red")
SOFTMAX = """
import keras


def build(input_shape, outputs):
    dense = keras.layers.Dense(outputs, activation="softmax")
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), dense])


def compiled(input_shape, outputs):
    model = keras.Sequential([keras.Input(input_shape), keras.layers.Flatten()])
    model.add(keras.layers.Dense(outputs))
    model.compile("sgd", "mse")
    return model


def unnamed(input_shape, outputs, columns):
    image, table = keras.Input(input_shape), keras.Input((columns,))
    both = keras.layers.Concatenate()([keras.layers.Flatten()(image), table])
    return keras.Model([image, table], keras.layers.Dense(outputs)(both))
"""
MEDIAN = {"numeric": ["age"], "categorical": ["color"], "missing": {"age": "median"}}


def write_list(folder, rows: int = 60) -> pd.DataFrame:
    """Photos and the table that lists them; every 19th has no age, the fifth row is damaged."""
    (folder / "photos").mkdir(parents=True)
    table = pd.DataFrame(
        {
            "path": [f"photos/{number:02d}.png" for number in range(rows)],
            "label": ["old" if number >= rows / 2 else "young" for number in range(rows)],
            "age": ["" if number % 19 == 3 else f"{number / 4}" for number in range(rows)],
            "color": [COLORS[number % 3] for number in range(rows)],
            "size": [f"{number % 10}" for number in range(rows)],
        }
    )
    for number, name in enumerate(table["path"]):
        picture(number, size=(12, 10)).save(folder / name)
    (folder / table["path"][5]).write_bytes(b"no image")
    table.to_csv(folder / "list.csv", index=False)
    return table


def document_of(folder, **data) -> dict:
    document = copy.deepcopy(SMALL)
    document["data"] |= {"source": "image_table", "path": str(folder), "max_reject_fraction": 0.1}
    document["data"] |= data
    document["pipelines"] = {
        "naive": {"read": "shards"},
        "files": {"read": "files", "map": {"parallel": 2}},
        **{name: CONFIGS[name] for name in READS},
    }
    return document


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """The table, and parameters and prepared data of images with two of its columns."""
    folder = tmp_path_factory.mktemp("listed")
    table = write_list(folder / "source")
    params, layout = check(document_of(folder / "source", **MEDIAN)), Layout(folder)
    prepared(params.data, folder / "data")
    index = read_shard_index(layout.shards)
    snapshot(index, layout.shards, layout.snapshot, preprocess=params.preprocess)
    return table, params, open_inputs(params, layout), layout


def test_columns_follow_their_images_through_rejects_and_orders(listed):
    table, _, data, layout = listed
    manifest = read_manifest(layout.manifest)
    rows = table.set_index("path").loc[manifest.examples["id"]]
    assert len(rows) == 59, "all but the damaged one"
    train = (manifest.examples["split"] == "train").to_numpy()
    ages = pd.to_numeric(rows["age"]).to_numpy()
    median = np.float32(np.nanmedian(ages[train]))
    assert manifest.schema.columns.medians == {"age": median}
    assert manifest.stats["notes"] == {f"age missing, {median:.7g} for it": 3}
    columns = np.asarray(manifest.columns)
    np.testing.assert_array_equal(columns[:, 0], np.where(np.isnan(ages), median, ages))
    assert [COLORS[int(code)] for code in columns[:, 1]] == rows["color"].tolist()
    for split in data.shards.splits:  # the snapshot has them in its own order, by key
        of_key = dict(zip(manifest.examples["key"], columns, strict=True))
        for key, stored in zip(
            data.memmap(split, "key"), data.memmap(split, "columns"), strict=True
        ):
            np.testing.assert_array_equal(stored, of_key[key])


@pytest.mark.slow
def test_every_configuration_delivers_the_same_images_with_their_columns(listed):
    _, params, data, _ = listed
    for split in ("train", "validation"):
        digests = {
            name: digest_examples(
                open_input_pipeline(params, name, data, split=split, purpose="compare")
            ).digest
            for name in params.pipelines
        }
        assert len(set(digests.values())) == 1, digests
    pipelines = {
        name: open_input_pipeline(params, name, data, split="train", purpose="train")
        for name in ("optimized", "device_resident")
    }
    pipelines["device_resident"].gather_fn()
    inputs, labels = next(iter(pipelines["optimized"].dataset()))
    gathered, same = pipelines["device_resident"].gather_fn()(tf.constant(0, tf.int64))
    assert sorted(inputs) == sorted(gathered) == [COLUMNS, "image"]
    np.testing.assert_array_equal(inputs["columns"], gathered["columns"])
    np.testing.assert_array_equal(labels, same)


def test_another_cell_is_another_dataset_and_another_shard(tmp_path):
    write_list(tmp_path / "source", rows=20)
    settings = check(document_of(tmp_path / "source", **MEDIAN)).data
    digests = []
    for text in ("", "1e3"):
        path = tmp_path / "source" / "list.csv"
        path.write_text(
            path.read_text().replace(",4.75,", f",{text},") if text else path.read_text()
        )
        prepared(settings, tmp_path / f"data{text}")
        index = read_shard_index(tmp_path / f"data{text}" / "shards")
        digests.append((index.data_digest, {shard.made_of for shard in index.shards}))
    (before, shards), (after, others) = digests
    assert before != after
    assert len(shards - others) == len(others - shards) == 1


def test_a_row_is_known_by_what_is_in_its_cells():
    columns = TableColumns(names=("age", "color"), categories=(("blue", "red"),))
    more = TableColumns(names=("age", "color"), categories=(("blue", "green", "red"),))
    rows = np.array([[1, 0], [1, 1]], np.float32)
    first, second = digest_rows(rows, columns)
    assert first != second
    assert digest_rows(np.array([[1, 0], [1, 2]], np.float32), more) == [first, second]


def test_columns_count_in_the_digest_of_an_example():
    batch = {"image": np.zeros((2, 3)), "key": np.zeros(2), "label": np.zeros(2)}
    batch[COLUMNS] = np.array([[1.0], [2.0]])
    one, other = (digest_example(*example) for example in iterate_examples(batch))
    assert one != other


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Modules of one's own: a builder of both inputs, as docs/models.md shows it, and others."""
    page = read_blocks(ROOT / "docs" / "models.md")
    both = next(block.text for block in page if "my_both.py" in block.text)
    (tmp_path / "my_both.py").write_text(both)
    (tmp_path / "my_images.py").write_text(SOFTMAX)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_both", "my_images"):
        sys.modules.pop(name, None)


def model_of(listed, name="mlp", **changes):
    _, params, data, _ = listed
    settings = params.model.model_copy(update={"name": name, "options": {}, **changes})
    return build_models_for(replace(params, model=settings), data)


@pytest.mark.parametrize("name", ["mlp", "my_both:build"])
@pytest.mark.usefixtures("own")
def test_a_model_sees_the_columns_standardized_and_one_by_one(listed, name):
    _, _, data, _ = listed
    models = model_of(listed, name)
    images, table = np.zeros((3, 10, 12, 3), np.uint8), np.array([[1, 0], [1, 1], [7, 1]], "f4")
    said = models.full_model({"image": images, "columns": table}).numpy()
    assert not np.allclose(said[0], said[1]) and not np.allclose(said[1], said[2])
    again = models.network(models.postprocess({"image": images, "columns": table})).numpy()
    np.testing.assert_allclose(said, again, atol=1e-6)
    scaled = next(one for one in models.network._flatten_layers() if one.name == "standardize")
    coded = scaled(np.asarray(data.memmap("train", "columns"))).numpy()
    np.testing.assert_allclose([coded[:, 0].mean(), coded[:, 0].std()], [0, 1], atol=1e-5)


def test_a_builder_says_whether_it_takes_columns():
    assert needs_columns(lambda shape, outputs, columns: 0)
    assert not needs_columns(lambda shape, outputs, columns=0: 0)
    assert not needs_columns(lambda shape, outputs, **options: 0)


def test_what_is_frozen_is_of_the_images_and_their_head_learns(listed):
    models = model_of(listed, freeze=["all_but_last"])
    learned = {one.path.split("/")[-2] for one in models.network.trainable_weights}
    assert {"columns_hidden", "columns_outputs"} < learned and len(learned) == 3
    images = next(one for one in models.network.layers if one.name == "mlp")
    assert [one.trainable for one in images.layers if one.weights] == [False, True]


def test_a_model_goes_on_with_what_it_has_learned_of_the_same_columns(listed, tmp_path):
    _, params, data, _ = listed
    before, ops = model_of(listed), inference_ops(params, "naive", data)
    spec = make_inference_spec(params, "naive", data)
    save_trained_model(before.full_model, tmp_path / "model.keras", spec, ops)
    after = model_of(listed, from_file=str(tmp_path / "model.keras"))
    seen = {"image": np.zeros((2, 10, 12, 3), np.uint8), COLUMNS: np.array([[1, 0], [7, 1]], "f4")}
    np.testing.assert_allclose(after.full_model(seen), before.full_model(seen), atol=1e-6)
    other = TableColumns(names=("age",))
    changed = replace(data, shards=replace(data.shards, schema=spec.schema.with_columns(other)))
    with pytest.raises(UnknownModel, match="was trained on other columns"):
        model_of((None, params, changed, None), from_file=str(tmp_path / "model.keras"))


def test_an_emulated_model_looks_at_no_columns(listed):
    model = model_of(listed, "emulated", options={"step_ms": 1.0}).full_model
    image = np.zeros((2, 10, 12, 3), np.uint8)
    said = model({"image": image, COLUMNS: np.array([[1, 0], [7, 1]], "f4")}).numpy()
    np.testing.assert_array_equal(said[0], said[1])


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("compiled", "compiles itself or has a train step of its own"),
        ("unnamed", "its network has inputs named"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_would_train_or_be_fed_in_a_way_of_its_own_is_refused(listed, builder, said):
    with pytest.raises(UnknownModel, match=said):
        model_of(listed, f"my_images:{builder}")


@pytest.mark.usefixtures("own")
def test_probabilities_take_no_columns_and_mixed_images_have_none(listed):
    with pytest.raises(UnknownModel, match="give the builder an argument `columns`"):
        model_of(listed, "my_images:build")
    _, params, data, _ = listed
    spec = make_input_spec(replace(params, augment=(Mixup(),)), data, "train")
    with pytest.raises(ImpossiblePlan, match="mixup mixes images of different examples, and not"):
        make_plan(params.pipelines["naive"], spec)


@pytest.mark.slow
def test_rows_are_predicted_and_served_as_the_model_answers(listed, tmp_path):
    table, params, data, layout = listed
    full_model = model_of(listed).full_model
    trained = TrainedModel(
        model=full_model,
        spec=make_inference_spec(params, "naive", data),
        ops=inference_ops(params, "naive", data),
    )
    source = layout.root / "source"
    (source / "new.csv").write_text(
        "color,path,age\nred,photos/00.png,3\nblue,photos/01.png,\npink,photos/02.png,4\n"
    )
    out = io.StringIO()
    paths = [source / "new.csv", source / "photos"]
    write_predictions(trained, paths, out, wanted=Wanted(), batch_size=2, show_progress=False)
    first, second, third, folder = csv.DictReader(io.StringIO(out.getvalue()))
    assert "color is 'pink', a category that the training has not seen" in third["error"]
    assert folder["error"] == "is no table, and the model sees columns of one as well"
    images = np.stack(
        [tf.io.decode_png((source / f"photos/0{n}.png").read_bytes()) for n in (0, 1)]
    )
    median = trained.spec.schema.columns.medians["age"]
    cells = np.array([[3, COLORS.index("red")], [median, COLORS.index("blue")]], np.float32)
    expected = tf.nn.softmax(full_model({"image": images, "columns": cells})).numpy()
    for row, probabilities in zip((first, second), expected, strict=True):
        assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-5)
    takes = export_model(trained, tmp_path / "served")
    assert takes == "features: image string, age float32, color string"
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(
        {
            "image": tf.constant([(source / name).read_bytes() for name in table["path"][:2]]),
            "age": tf.constant([3, np.nan], tf.float32),
            "color": tf.constant(["red", "blue"]),
        }
    )
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred")  # by MLflow, of its own code
def test_images_with_columns_go_through_every_stage(tmp_path):
    folder = tmp_path / "project"
    write_list(folder / "source", rows=150)
    document = document_of("source", **MEDIAN) | {"batch_size": 8}
    document["pipelines"] = {
        name: document["pipelines"][name] for name in ("optimized", "device_resident")
    }
    document["train"] |= {"epochs": 12}
    write_params(folder, document)
    run_stages(folder, "fetch", "ingest", "shard", "snapshot")
    run_stages(folder, "build@optimized", "build@device_resident", "train@device_resident")
    run_stages(folder, "profiling@device_resident", "report")
    trained = TrainResult.read(Layout(folder).results("device_resident"))
    assert trained.test["accuracy"] > 0.8, "of noise, whose age tells the class"
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    logged = client.search_logged_models([one.experiment_id for one in client.search_experiments()])
    assert [one.status for one in logged] == [LoggedModelStatus.READY]
    served = mlflow.models.Model.load(logged[0].artifact_location.removeprefix("file://"))
    assert sorted(served.signature.inputs.input_names()) == [COLUMNS, "image"]


@pytest.mark.slow
def test_numbers_are_predicted_of_images(tmp_path):
    folder = tmp_path / "project"
    write_list(folder / "source")
    (folder / "source" / "list.csv").write_text(
        (folder / "source" / "list.csv").read_text().replace(",6.0,blue,", ",six,blue,")
    )
    document = document_of("source", label_kind="number", label_column="age", numeric=["size"])
    document["data"]["max_reject_fraction"] = 0.3
    document["pipelines"] = {name: document["pipelines"][name] for name in ("naive", "files")}
    write_params(folder, document)
    run_stages(folder, "fetch", "ingest", "shard", "snapshot", "build@naive", "build@files")
    run_stages(folder, "train@files", "profiling@files", "report")
    manifest = read_manifest(Layout(folder).manifest)
    assert manifest.classes == () and manifest.schema.predicts_number
    reasons = dict(zip(manifest.rejected["id"], manifest.rejected["reason"], strict=True))
    assert reasons["row 25: photos/24.png"].startswith("label is 'six'")
    assert reasons["row 4: photos/03.png"] == "label missing"
    trained = TrainResult.read(Layout(folder).results("files"))
    assert set(trained.test) == {"loss", "mae"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"numeric": ["color"]}, "column color, of data.numeric, holds text"),
        ({"numeric": ["agee"]}, "no column agee; did you mean age?"),
        ({"numeric": ["age"], "categorical": ["age"]}, r"several: age \(data.numeric and data.cat"),
        ({"numeric": ["age"], "missing": {"color": "category"}}, "no feature is named color"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused_by_their_keys(tmp_path, data, said):
    write_list(tmp_path / "source", rows=20)
    settings = DataSettings(source="image_table", path=str(tmp_path / "source"), **data)
    with pytest.raises(UnreadableSource, match=said):
        ingest(settings, tmp_path / "manifest")


def test_only_tables_have_columns():
    with pytest.raises(InvalidParams, match="image_folder has no columns that a model sees"):
        check(document_of("unused", source="image_folder", numeric=["age"]))
