"""Columns next to images and texts, and numbers to predict: from the file to a model of both."""

import copy
import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.support.docs_blocks import read_blocks
from tests.support.kinds import COLORS, SEEN, make_items, write_items
from tests.support.predictions import predict_rows, save_untrained
from tests.support.prepared import prepare
from tests.support.project import ROOT, SMALL
from tests.support.small_data import prepared, read_reasons
from tests.support.texts import params_of as text_params
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.inputs import make_input_spec, open_inputs
from throughline.assembly.model import build_models_for, infer_target
from throughline.config.params import check
from throughline.data.ingest import ingest
from throughline.data.manifest import digest_rows, read_manifest
from throughline.data.shards.index import read_shard_index
from throughline.data.sources.table import scan as scan_table
from throughline.measurement.equality import digest_example, iterate_examples
from throughline.models.builders import Target
from throughline.models.inference import save_trained_model
from throughline.plan.augmentations import Mixup
from throughline.plan.plan import make_plan
from throughline.plan.schema import COLUMNS, TableColumns
from throughline.settings import DataSettings, TrainSettings
from throughline.shared.errors import ImpossiblePlan, InvalidParams, UnknownModel, UnreadableSource
from throughline.shared.layout import Layout
from throughline.training.compiling import SquaredErrorInUnits, compile_model

pytestmark = pytest.mark.integration

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


def write_csv(path, table):
    table.to_csv(path, index=False)


def write_parquet(path, table):
    typed = table.assign(size=pd.to_numeric(table["size"]), price=pd.to_numeric(table["price"]))
    typed.assign(text=[text or None for text in table["text"]]).to_parquet(path)


def write_lines(path, table):
    with path.open("w") as file:
        for row in table.to_dict("records"):
            values = {**row, "size": float(row["size"]) if row["size"] else None}
            file.write(json.dumps({**values, "price": float(row["price"])}) + "\n")


FORMS = {"items.csv": write_csv, "items.parquet": write_parquet, "items.jsonl": write_lines}


def data_of(path, **more) -> dict:
    """Settings of the images of a folder, or of the texts of a file, with two columns."""
    source = {"": "image_table", ".jsonl": "text_lines"}.get(path.suffix, "text_table")
    return {"source": source, "path": str(path), "max_reject_fraction": 0.2} | SEEN | more


def scan(path, out, **more):
    return ingest(DataSettings.model_validate(data_of(path, **more)), out)


@pytest.mark.parametrize("name", ["photos of items.csv", *FORMS])
def test_columns_follow_their_image_or_text_whatever_the_file(tmp_path, name):
    root = tmp_path / "source"
    table = write_items(root, 60)
    table.loc[10, "color"] = ""
    damaged = 4 if name in FORMS else 5
    path = root / name if name in FORMS else root
    listed = table if name in FORMS else table[::-1]  # images are sorted by their names, not listed
    FORMS.get(name, write_csv)(root / name.removeprefix("photos of "), listed)
    manifest = scan(path, tmp_path / "manifest", label_kind="number", label_column="price")
    reasons = [*read_reasons(manifest).values()]
    assert len(reasons) == 2 and [one.startswith("color is missing") for one in reasons] == [0, 1]
    rows = table.drop(index=[damaged, 10])
    sizes = pd.to_numeric(rows["size"]).to_numpy()
    median = np.float32(np.nanmedian(sizes[(manifest.examples["split"] == "train").to_numpy()]))
    assert manifest.schema.columns.medians == {"size": median}
    assert manifest.stats["notes"] == {f"empty cells of size filled with {median:.7g}": 3}
    columns = np.asarray(read_manifest(tmp_path / "manifest").columns)
    np.testing.assert_array_equal(columns[:, 0], np.where(np.isnan(sizes), median, sizes))
    assert [COLORS[int(code)] for code in columns[:, 1]] == rows["color"].tolist()
    assert manifest.examples["label"].tolist() == pd.to_numeric(rows["price"]).tolist()
    assert manifest.schema.predicts_number and manifest.classes == ()


def test_another_cell_is_another_dataset_and_another_shard(tmp_path):
    write_items(tmp_path / "source", 20)
    settings = DataSettings.model_validate(data_of(tmp_path / "source"))

    def digests(name):
        prepared(settings, tmp_path / name)
        index = read_shard_index(tmp_path / name / "shards")
        return index.data_digest, {shard.made_of for shard in index.shards}

    before, shards = digests("before")
    path = tmp_path / "source" / "items.csv"
    path.write_text(path.read_text().replace(",4.75,", ",1e3,"))
    after, others = digests("after")
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


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """Parameters and prepared data of images with two columns."""
    folder = tmp_path_factory.mktemp("listed")
    write_items(folder / "source", 60)
    document = copy.deepcopy(SMALL)
    document["data"] |= data_of(folder / "source")
    params = check(document)
    return params, open_inputs(params, prepare(params, Layout(folder)))


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


SEEN_ROWS = np.array([[1, 0], [1, 1], [7, 1]], np.float32)
BATCH = {"image": np.zeros((3, 10, 12, 3), np.uint8), COLUMNS: SEEN_ROWS}


def model_of(listed, name="mlp", **changes):
    params, data = listed
    settings = params.model.model_copy(update={"name": name, "options": {}, **changes})
    return build_models_for(replace(params, model=settings), data)


@pytest.mark.parametrize("name", ["mlp", "my_both:build"])
@pytest.mark.usefixtures("own")
def test_a_model_sees_the_columns_standardized_and_one_by_one(listed, name):
    models = model_of(listed, name)
    said = models.full_model(BATCH).numpy()
    assert not np.allclose(said[0], said[1]) and not np.allclose(said[1], said[2])
    again = models.network(models.postprocess(BATCH)).numpy()
    np.testing.assert_allclose(said, again, atol=1e-6)
    scaled = next(one for one in models.network._flatten_layers() if one.name == "standardize")
    coded = scaled(np.asarray(listed[1].memmap("train", "columns"))).numpy()
    np.testing.assert_allclose([coded[:, 0].mean(), coded[:, 0].std()], [0, 1], atol=1e-5)


def test_what_is_frozen_is_of_the_images_and_their_head_learns(listed):
    models = model_of(listed, freeze=["all_but_last"])
    learned = {one.path.split("/")[-2] for one in models.network.trainable_weights}
    assert {"columns_hidden", "columns_outputs"} < learned and len(learned) == 3
    images = next(one for one in models.network.layers if one.name == "mlp")
    assert [one.trainable for one in images.layers if one.weights] == [False, True]


def test_a_model_goes_on_with_what_it_has_learned_of_the_same_columns(listed, tmp_path):
    params, data = listed
    before, ops = model_of(listed), inference_ops(params, "naive", data)
    spec = make_inference_spec(params, "naive", data)
    save_trained_model(before.full_model, tmp_path / "model.keras", spec, ops)
    after = model_of(listed, from_file=str(tmp_path / "model.keras"))
    np.testing.assert_allclose(after.full_model(BATCH), before.full_model(BATCH), atol=1e-6)
    other = TableColumns(names=("age",))
    changed = replace(data, shards=replace(data.shards, schema=spec.schema.with_columns(other)))
    with pytest.raises(UnknownModel, match="other columns"):
        model_of((params, changed), from_file=str(tmp_path / "model.keras"))


def test_an_emulated_model_looks_at_no_columns(listed):
    said = model_of(listed, "emulated", options={"step_ms": 1.0}).full_model(BATCH).numpy()
    np.testing.assert_array_equal(said[0], said[2])


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("compiled", "compiles itself or has a train step of its own"),
        ("unnamed", "its network has inputs named"),
        ("build", "give the builder an argument `columns`"),
    ],
)
@pytest.mark.usefixtures("own")
def test_a_builder_that_cannot_take_columns_is_refused(listed, builder, said):
    with pytest.raises(UnknownModel, match=said):
        model_of(listed, f"my_images:{builder}")


def test_mixed_images_have_no_columns(listed):
    params, data = listed
    spec = make_input_spec(replace(params, augment=(Mixup(),)), data, "train")
    with pytest.raises(ImpossiblePlan, match="mixup mixes images of different examples, but not"):
        make_plan(params.pipelines["naive"], spec)


def test_what_has_no_columns_is_not_predicted(listed, tmp_path):
    params, data = listed
    params = replace(params, pipelines={"p": params.pipelines["naive"]})
    layout = Layout(data.columns_folder.parents[1])
    model = save_untrained(params, replace(layout))
    (tmp_path / "less.csv").write_text("path,size\na.png,1\n")
    _, counts = predict_rows(model, layout.root / "source" / "photos", tmp_path / "less.csv")
    assert [one.reason for one in counts.first] == [
        "is not a table, but the model also needs columns of one",
        "no column color; known: path, size",
    ]


def test_errors_count_in_the_unit_of_each_target():
    loss = SquaredErrorInUnits([1e5, 0.01])
    labels, outputs = np.zeros((1, 2), np.float32), np.float32([[1e5, 0.02]])
    assert float(loss(labels, outputs)) == pytest.approx((1 + 4) / 2)
    target = Target(kind="regression", shape=(2,), mean=(0.0, 0.0), scale=(1e5, 0.01))
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    compile_model(model, TrainSettings(), target=target, steps=1)
    assert isinstance(model.loss, SquaredErrorInUnits)


def test_the_scales_of_targets_are_those_of_the_training_split(tmp_path):
    write_csv(tmp_path / "items.csv", make_items(60))
    targets = {"label_kind": "number", "label_column": ["price", "weight"]}
    params = text_params({}, data=data_of(tmp_path / "items.csv", **targets))
    data = open_inputs(params, prepare(params, Layout(tmp_path)))
    labels = np.asarray(data.memmap("train", "label"), np.float64)
    target = infer_target(params, data)
    assert target.kind == "regression" and target.shape == (2,)
    np.testing.assert_allclose(target.scale, labels.std(axis=0))


PACKED = {"pipelines": {"p": {"read": "snapshot", "batch": {"pack": 64}}}}
TEXTS = {"source": "text_table", "path": "x"}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (PACKED, "texts with columns cannot be packed"),
        (PACKED | {"data": TEXTS | {"label_kind": "number"}}, "to predict cannot be packed"),
        ({"window": {"tokens": 8}}, "data.numeric: window.tokens trains on the texts alone"),
        ({"data": {**TEXTS, "source": "text_folder", "numeric": ["a"]}}, "sees no columns"),
        ({"data": {**TEXTS, "ignore": ["a"]}}, "that are not named"),
        (
            {"data": {**TEXTS, "source": "table", "label_column": ["a", "b"]}},
            "data.label_column: several columns must be numbers",
        ),
    ],
)
def test_what_columns_and_targets_do_not_go_with_is_refused(tmp_path, sections, said):
    with pytest.raises(InvalidParams, match=said):
        text_params({}, **{"data": data_of(tmp_path / "items.csv")} | sections)


def test_lines_of_text_files_have_no_columns(tmp_path):
    (tmp_path / "ham.txt").write_text("a text\n")
    with pytest.raises(UnreadableSource, match="have no column size; use JSON lines"):
        scan(tmp_path, tmp_path / "manifest", source="text_lines")


LINE = {"text": "a", "label": "x", "color": "red"}


def json_items(path, first: dict, **more):
    """Write 30 lines of JSON, of which this is the first."""
    lines = [{**LINE, "text": f"a{n}", "label": "xy"[n % 2], "size": n} | more for n in range(30)]
    path.write_text("\n" + "".join(json.dumps(line) + "\n" for line in [first, *lines[1:]]))
    return path


@pytest.mark.parametrize("decimal", ["auto", ","])
def test_numbers_of_json_are_what_they_are_whatever_texts_look_like(tmp_path, decimal):
    first = LINE | {"size": 1.001, "weight": "2,5"}
    path = json_items(tmp_path / "items.jsonl", first, weight="0,5")
    marked = {"numeric": ["size", "weight"], "missing": "reject", "decimal": decimal}
    manifest = scan(path, tmp_path / "manifest", **marked)
    expected = [[1.001, 2.5, 0], *([number, 0.5, 0] for number in range(1, 30))]
    np.testing.assert_allclose(np.asarray(manifest.columns), expected, rtol=1e-6)


def test_a_key_may_be_left_out_of_a_line_and_not_of_all_and_a_cell_is_one_value(tmp_path):
    listed = json_items(tmp_path / "listed.jsonl", LINE | {"size": [1]})
    rejected = scan(listed, tmp_path / "manifest").rejected
    assert rejected["reason"].tolist() == ["size is list, not a single value"]
    path = json_items(tmp_path / "items.jsonl", LINE)
    assert len(scan(path, tmp_path / "manifest").examples) == 30
    other = {"categorical": ["colour"], "missing": {"colour": "category"}}
    with pytest.raises(UnreadableSource, match="all lines: no column colour; did you mean color"):
        scan(path, tmp_path / "manifest", **other)


@pytest.mark.parametrize(
    ("labels", "setting", "kind", "classes"),
    [
        ([0, 1, 2] * 10, "auto", "class", ["0", "1", "2"]),
        (range(1000, 1030), "class", "class", [str(year) for year in range(1000, 1030)]),
        (range(1000, 1030), "number", "number", []),
        ([0.0, 1.0, None] * 10, "auto", "class", ["0", "1"]),
        ([151.0 + row for row in range(30)], "auto", "number", []),
        ([0.5, 1.0, 1.5] * 10, "auto", "number", []),
        ([0.5, 1.0, 1.5] * 10, "class", "class", ["0.5", "1", "1.5"]),
        ([True, False, True] * 10, "auto", "class", ["False", "True"]),
    ],
)
def test_what_a_label_is(tmp_path, labels, setting, kind, classes):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"size": np.arange(30.0) / 2, "y": list(labels)}).to_parquet(path)
    settings = DataSettings(source="table", path=str(path), label_column="y", label_kind=setting)
    scanned = scan_table(settings)
    assert (scanned.schema.target.encoding.name, list(scanned.classes)) == (kind, classes)
