"""Columns next to images and texts, numbers to predict, and series: from the file to a model."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from benchmarks.data import presets
from tasks.ingest import check_windows, count_splits
from tests.support.docs_blocks import read_blocks
from tests.support.kinds import COLORS, SEEN, make_items, write_items
from tests.support.predictions import predict_rows, save_untrained
from tests.support.prepared import prepare
from tests.support.project import ROOT, SMALL
from tests.support.small_data import prepared, read_reasons, write_files
from tests.support.texts import params_of as text_params
from throughline.assembly import inputs
from throughline.assembly.evaluation import write_evaluation
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.model import build_models_for, infer_target
from throughline.config.params import check
from throughline.data import examination
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
from throughline.results.evaluation import Evaluation
from throughline.settings import DataSettings, TrainSettings
from throughline.shared.errors import ImpossiblePlan, InvalidParams, UnknownModel, UnreadableSource
from throughline.shared.layout import Layout
from throughline.training.compiling import SquaredErrorInUnits, compile_model

pytestmark = pytest.mark.integration

BUILDERS = """
import keras


def softmax(input_shape, outputs, activation="softmax"):
    dense = keras.layers.Dense(outputs, activation=activation)
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), dense])


def compiled(input_shape, outputs):
    model = softmax(input_shape, outputs, activation=None)
    model.compile("sgd", "mse")
    return model


def unnamed(input_shape, outputs, columns):
    image, table = keras.Input(input_shape), keras.Input((columns,))
    both = keras.layers.Concatenate()([keras.layers.Flatten()(image), table])
    return keras.Model([image, table], keras.layers.Dense(outputs)(both))
"""


def write_table(path, table):
    """Write items into a file of the form that its name says, typed where that has types."""
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        typed = {name: pd.to_numeric(table[name]) for name in ("size", "price")}
        table.assign(**typed, text=[text or None for text in table["text"]]).to_parquet(path)


def data_of(path, **more) -> dict:
    """Settings of the images of a folder, or of the texts of a file, with two columns."""
    source = {"": "image_table", ".jsonl": "text_lines"}.get(path.suffix, "text_table")
    return {"source": source, "path": str(path), "max_reject_fraction": 0.2} | SEEN | more


def scan(path, **more):
    ingest(DataSettings.model_validate(data_of(path, **more)), path.parent / "manifest")
    return read_manifest(path.parent / "manifest")


@pytest.mark.parametrize("name", ["", "items.csv", "items.parquet"])
def test_columns_follow_their_image_or_text_whatever_the_file(tmp_path, name):
    root = tmp_path / "source"
    table = write_items(root, 60)
    table.loc[10, "color"] = ""
    damaged = 4 if name else 5
    listed = table if name else table[::-1]  # images are sorted by their names, not listed
    write_table(root / (name or "items.csv"), listed)
    manifest = scan(root / name, label_kind="number", label_column="price")
    reasons = [*read_reasons(manifest).values()]
    assert len(reasons) == 2 and [one.startswith("color is missing") for one in reasons] == [0, 1]
    rows = table.drop(index=[damaged, 10])
    sizes = pd.to_numeric(rows["size"]).to_numpy()
    median = np.float32(np.nanmedian(sizes[(manifest.examples["split"] == "train").to_numpy()]))
    assert manifest.schema.columns.medians == {"size": median}
    assert manifest.stats["notes"] == {f"empty cells of size filled with {median:.7g}": 3}
    columns = np.asarray(manifest.columns)
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
    def digests(rows, *colors):
        columns = TableColumns(names=("age", "color"), categories=(colors,))
        return digest_rows(np.array(rows, np.float32), columns)

    first, second = digests([[1, 0], [1, 1]], "blue", "red")
    assert first != second
    assert digests([[1, 0], [1, 2]], "blue", "green", "red") == [first, second]


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
    params = check(SMALL | {"data": SMALL["data"] | data_of(folder / "source")})
    return params, inputs.open_inputs(params, prepare(params, Layout(folder)))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Modules of one's own: a builder of both inputs, as docs/models.md shows it, and others."""
    texts = [block.text for block in read_blocks(ROOT / "docs" / "models.md")]
    both = next(text for text in texts if "my_both.py" in text)
    write_files(tmp_path, {"my_both.py": both, "my_images.py": BUILDERS})
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_both", "my_images"):
        sys.modules.pop(name, None)


BATCH = {
    "image": np.zeros((3, 10, 12, 3), np.uint8),
    COLUMNS: np.array([[1, 0], [1, 1], [7, 1]], np.float32),
}


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


@pytest.mark.usefixtures("own")
def test_builders_and_mixed_images_that_cannot_take_columns_are_refused(listed):
    for builder, said in (
        ("compiled", "compiles itself or has a train step of its own"),
        ("unnamed", "its network has inputs named"),
        ("softmax", "give the builder an argument `columns`"),
    ):
        with pytest.raises(UnknownModel, match=said):
            model_of(listed, f"my_images:{builder}")
    params, data = listed
    spec = inputs.make_input_spec(replace(params, augment=(Mixup(),)), data, "train")
    with pytest.raises(ImpossiblePlan, match="mixup mixes images of different examples, but not"):
        make_plan(params.pipelines["naive"], spec)


def test_what_has_no_columns_is_not_predicted(listed, tmp_path):
    params, data = listed
    params = replace(params, pipelines={"p": params.pipelines["naive"]})
    layout = Layout(data.columns_folder.parents[1])
    model = save_untrained(params, layout)
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
    write_table(tmp_path / "items.csv", make_items(60))
    targets = {"label_kind": "number", "label_column": ["price", "weight"]}
    params = text_params({}, data=data_of(tmp_path / "items.csv", **targets))
    data = inputs.open_inputs(params, prepare(params, Layout(tmp_path)))
    labels = np.asarray(data.memmap("train", "label"), np.float64)
    target = infer_target(params, data)
    assert target.kind == "regression" and target.shape == (2,)
    np.testing.assert_allclose(target.scale, labels.std(axis=0))


TEXTS = {"source": "text_table", "path": "x"}
PACKED = {"pipelines": {"p": {"read": "snapshot", "batch": {"pack": 64}}}}


@pytest.mark.parametrize(
    ("data", "sections", "said"),
    [
        (SEEN, PACKED, "texts with columns cannot be packed"),
        ({"label_kind": "number"}, PACKED, "to predict cannot be packed"),
        (SEEN, {"window": {"tokens": 8}}, "data.numeric: window.tokens trains on the te"),
        ({"source": "text_folder", "numeric": ["a"]}, {}, "sees no columns"),
        ({"ignore": ["a"]}, {}, "that are not named"),
        ({"source": "table", "label_column": ["a", "b"]}, {}, "columns must be numbers"),
    ],
)
def test_what_columns_and_targets_do_not_go_with_is_refused(data, sections, said):
    with pytest.raises(InvalidParams, match=said):
        text_params({}, data=TEXTS | data, **sections)


LINE = {"text": "a", "label": "x", "color": "red"}


def json_items(folder, first: dict, **more):
    """Write 30 lines of JSON, of which this is the first."""
    lines = [{**LINE, "text": f"a{n}", "label": "xy"[n % 2], "size": n} | more for n in range(30)]
    text = "\n" + "".join(json.dumps(line) + "\n" for line in [first, *lines[1:]])
    return write_files(folder, {"items.jsonl": text}) / "items.jsonl"


@pytest.mark.parametrize("decimal", ["auto", ","])
def test_numbers_of_json_are_what_they_are_whatever_texts_look_like(tmp_path, decimal):
    path = json_items(tmp_path, LINE | {"size": 1.001, "weight": "2,5"}, weight="0,5")
    manifest = scan(path, numeric=["size", "weight"], missing="reject", decimal=decimal)
    expected = [[1.001, 2.5, 0], *([number, 0.5, 0] for number in range(1, 30))]
    np.testing.assert_allclose(np.asarray(manifest.columns), expected, rtol=1e-6)


def test_a_key_may_be_left_out_of_a_line_and_not_of_all_and_a_cell_is_one_value(tmp_path):
    rejected = scan(json_items(tmp_path / "listed", LINE | {"size": [1]})).rejected
    assert rejected["reason"].tolist() == ["size is list, not a single value"]
    path = json_items(tmp_path / "keys", LINE)
    assert len(scan(path).examples) == 30
    with pytest.raises(UnreadableSource, match="all lines: no column colour; did you mean color"):
        scan(path, categorical=["colour"], missing={"colour": "category"})
    with pytest.raises(UnreadableSource, match="have no column size; use JSON lines"):
        scan(write_files(tmp_path / "mails", {"ham.txt": "a text\n"}), source="text_lines")


@pytest.mark.parametrize(
    ("labels", "setting", "classes"),
    [
        ([0, 1, 2] * 10, "auto", ["0", "1", "2"]),
        (range(1000, 1030), "class", [str(year) for year in range(1000, 1030)]),
        ([0.0, 1.0, None] * 10, "auto", ["0", "1"]),
        ([151.0 + row for row in range(30)], "auto", []),
        ([0.5, 1.0, 1.5] * 10, "class", ["0.5", "1", "1.5"]),
        ([True, False, True] * 10, "auto", ["False", "True"]),
    ],
)
def test_a_label_is_a_class_or_a_number(tmp_path, labels, setting, classes):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"size": np.arange(30.0) / 2, "y": list(labels)}).to_parquet(path)
    settings = DataSettings(source="table", path=str(path), label_column="y", label_kind=setting)
    scanned = scan_table(settings)
    assert scanned.schema.predicts_number == (not classes)
    assert list(scanned.classes) == classes


def series_params(path, window, **data):
    """Parameters of a time series at a path, with these changes of its windows and data."""
    usual = {"length": 8, "horizon": 2, "stride": 3, "targets": ["column_1"]}
    data = SMALL["data"] | {"source": "time_series", "path": str(path)} | data
    sections = {"augment": [], "postprocess": ["standardize"], "window": usual | window}
    return check(SMALL | sections | {"data": data, "pipelines": presets("time_series")})


def opened(folder, params):
    """Run the data stages in `folder` and open what they wrote."""
    layout = prepare(params, Layout(folder), min_shards=3)
    return layout, inputs.open_inputs(params, layout)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A series of many blocks whose every value says when it was and which column it is."""
    folder = tmp_path_factory.mktemp("series")
    values = np.arange(1000, dtype=np.float32)[:, None] + np.asarray([0.0, 0.25, 0.5], np.float32)
    np.save(folder / "series.npy", values)
    params = series_params(folder / "series.npy", {})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(examination, "STEPS_PER_BLOCK", 100)
        return params, *opened(folder, params)


def test_windows_hold_the_steps_before_their_horizon_and_cross_neither_splits_nor_gaps(tmp_path):
    left_out = (100, 101, 650)
    lines = [  # a gap in time before row 300
        f"{row + 10 * (row >= 300)},{'' if row in left_out else row},{row}" for row in range(1000)
    ]
    (tmp_path / "series.csv").write_text("\n".join(["time,a,b", *lines]))
    cut = {"time_column": "time", "missing": "cut", "numeric": ["a", "b"]}
    params = series_params(tmp_path / "series.csv", {"targets": ["b"]}, **cut)
    layout, stored = opened(tmp_path, params)
    said = "the series is cut at 3 rows with an empty cell and 1 gap in time"
    assert read_manifest(layout.manifest).stats["problems"] == [f"{said}: no window crosses them"]
    too_long = params.window.model_copy(update={"length": 299})
    said = r"at most 300 between gaps, fewer than window\.length .* = 301; .*interpolate"
    with pytest.raises(InvalidParams, match=said):
        check_windows(read_manifest(layout.manifest), too_long)
    kept = [row for row in range(1000) if row not in left_out]
    for split in ("train", "validation", "test"):
        steps, kept = np.split(kept, [stored.shards.examples(split)])
        starts = [
            steps[start]
            for start in range(0, len(steps) - 9, 3)
            if {300, *left_out}.isdisjoint(range(steps[start] + 1, steps[start + 9] + 1))
        ]
        for name in ("naive", "windowed"):
            options = {"data": stored, "split": split, "purpose": "compare"}
            pipe = inputs.open_input_pipeline(params, name, **options)
            batches = list(pipe.dataset().as_numpy_iterator())
            features, label, key = (
                np.concatenate([batch[part] for batch in batches])
                for part in ("features", "label", "key")
            )
            np.testing.assert_array_equal(features[:, :, 1], np.add.outer(starts, range(8)))
            np.testing.assert_array_equal(label[:, :, 0], np.add.outer(starts, (8, 9)))
            assert label.shape == (len(key), 2, 1) and pipe.examples == len({*key.tolist()})


def test_a_series_of_many_blocks_and_shards_lies_in_the_order_of_time(series):
    params, layout, stored = series
    said = "600 train, 200 validation, 200 test time steps"
    assert count_splits(read_manifest(layout.manifest)) == said
    assert len(stored.shards.for_split("train")) > 1
    steps = np.arange(600)
    np.testing.assert_array_equal(stored.memmap("train", "key"), steps)
    np.testing.assert_array_equal(stored.memmap("train", "features")[:, 1], steps + 0.25)
    standardize = stored.bind_to_data(params.postprocess)[0]
    means = [steps.mean() + shift for shift in (0, 0.25, 0.5)]
    np.testing.assert_allclose(standardize.mean, means, rtol=1e-6)
    np.testing.assert_allclose(standardize.deviation, [steps.std()] * 3, rtol=1e-6)


def test_each_target_of_a_series_has_an_error_of_its_own(series, tmp_path):
    _, layout, stored = series
    params = series_params(layout.root / "series.npy", {"targets": ["column_0", "column_2"]})
    models, name = build_models_for(params, stored), next(iter(params.pipelines))
    evaluation = write_evaluation(models, params, name, stored, tmp_path / "evaluation")
    batches = inputs.open_stored_pipeline(params, name, stored, split="test").dataset()
    errors = [np.abs(models.full_model(each["features"]) - each["label"]) for each in batches]
    first, second = np.concatenate(errors).mean(axis=(0, 1), dtype=np.float64)
    errors = {"column_0": first, "column_2": second}
    assert evaluation.mae_by_target == pytest.approx(errors)
    metrics = {f"test/mae/{name}": error for name, error in errors.items()}
    assert evaluation.metrics == pytest.approx(metrics)
    assert Evaluation.read(tmp_path) == evaluation


def test_windows_longer_than_a_split_and_unknown_targets_are_refused(series):
    _, layout, stored = series
    for window, said in (
        ({"length": 500}, "the validation split has 200 time steps, fewer"),
        ({"targets": ["load"]}, "load is not a column"),
    ):
        params = series_params(layout.root / "series.npy", window)
        with pytest.raises(InvalidParams, match=said):
            inputs.open_input_pipeline(params, "naive", stored, split="train", purpose="train")
