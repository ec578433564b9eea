"""Predictions of texts, tables and series: the rows of a file, by the names of their columns."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tasks.predict import report_rejected
from tests.support.predictions import (
    ON_DEVICE,
    evaluate,
    export_file,
    judge_split,
    predict_rows,
    predict_with,
    save_untrained,
    write_evaluation_of,
)
from tests.support.prepared import prepare, take_snapshot
from tests.support.saved_models import make_spec
from tests.support.small_data import write_files
from tests.support.texts import params_of as text_params
from tests.support.texts import prepare_texts
from throughline.assembly.inference import describe_changed_data
from throughline.assembly.inputs import open_inputs
from throughline.config.params import Params, check
from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import labeled
from throughline.models.inference import TrainedModel, open_trained_model
from throughline.models.serving import CLASSES, TARGETS, export_model
from throughline.plan.schema import TableColumns
from throughline.prediction import texts
from throughline.prediction.examples import Wanted
from throughline.shared.errors import UnusableInputs
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration


def check_refusals(model: Path, refused: dict[Path, str], *, takes: str) -> None:
    """Fail unless each path is refused for its reason, with what the model takes, and without
    parameters of its training, which nobody who predicts can set.
    """
    with open_trained_model(model) as trained:
        for path, reason in refused.items():
            _, counts = predict_with(trained, path)
            with pytest.raises(UnusableInputs) as refusal:
                report_rejected(counts, strict=False)
            said = str(refusal.value)
            assert said.startswith(f"{path}: ") and reason in said and takes in said
            assert "data." not in said


@pytest.mark.slow
def test_a_model_keeps_its_classes_and_its_tokenizer_when_the_data_changes(tmp_path):
    layout, words = prepare_texts(tmp_path / "texts"), tmp_path / "words.txt"
    words.write_text("[UNK]\nthe\nfox\ndog\n")
    preprocess = [{"tokenize": {"kind": "wordpiece", "model": str(words)}}]
    params = text_params({}, train={"seed": 1}, preprocess=preprocess)
    shutil.rmtree(layout.snapshot)
    take_snapshot(params, layout)
    model = save_untrained(params, layout)
    text = tmp_path / "texts" / "source" / "ham" / "000.txt"

    def ask():
        with open_trained_model(model) as trained:
            return predict_with(trained, text)[0], describe_changed_data(trained, "p", layout)

    before, changed = ask()
    assert changed is None
    words.write_text("[UNK]\ndog\nthe\nfox\n")
    (layout.snapshot / "tokenizer.txt").write_text(words.read_text())
    index = layout.shards / "index.json"
    index.write_text(index.read_text().replace('"ham"', '"spam!"'))
    after, changed = ask()
    assert before == after and ": the classes and the tokenizer. " in changed
    assert export_file(model, tmp_path / "served") == "text: string"
    assert (tmp_path / "served" / CLASSES).read_text().splitlines() == ["ham", "spam"]


@pytest.mark.slow
def test_texts_are_files_lines_or_rows(tmp_path):
    layout = prepare_texts(tmp_path / "texts")
    model = save_untrained(text_params({}, train={"seed": 1}), layout)
    table = "id,text,split\n1,the fox,dev\n2,the dog,\n3,,\n"
    files = {
        "a.txt": "the fox\n\nthe dog\n",
        "a.csv": table,
        "a.jsonl": '{"text": "the fox", "split": "dev"}\n',
    }
    files |= {"other.csv": "words\nthe fox\n", "blank.txt": "\n\n"}
    lines, table, objects, other, blank = (write_files(tmp_path, files) / name for name in files)
    whole, _ = predict_rows(model, lines)
    split, _ = predict_rows(model, lines, lines=True)
    rows, _ = predict_rows(model, table)
    (only,), _ = predict_rows(model, objects)
    assert len(whole) == 1 and not only["error"]
    found = [row["probability"] for row in [*split, only]]
    assert found == [row["probability"] for row in [*rows[:2], rows[0]]]
    named = [row["input"] for row in split]
    assert named == [f"{lines}:1", f"{lines}:3"], "the blank line is none, and counted"
    assert [row["input"] for row in rows] == [f"{table}:{number}" for number in (1, 2, 3)]
    with open_trained_model(model) as trained:
        documents = list(texts.read(lines.parent / "texts" / "source", trained, Wanted()).items)
    assert len(documents) == 150  # also those in class folders, whose classes are not looked at
    assert rows[2]["error"] == "text missing"
    takes = "texts (utf-8): files, folders of them, and .jsonl, .csv, .tsv or .parquet files"
    check_refusals(model, {other: "no column text", blank: "empty text"}, takes=takes)


def params_of(data: dict, **sections) -> Params:
    usual = {"augment": [], "batch_size": 8, "pipelines": {"p": ON_DEVICE}}
    model, split = {"name": "mlp", "options": {"width": 4}}, {"validation": 0.2, "test": 0.2}
    return check({**usual, "model": model, "data": {**data, "split": split}, **sections})


def save_of_table(folder: Path, *, label: str, size: str = "size", **settings) -> tuple:
    """Ingest a table of 60 rows up to its snapshot, and save the model for it."""
    colors, numbers = ("red", "green", "blue"), np.random.default_rng(5).normal(size=(60, 2))
    lines = [
        f"{one:.3f},{colors[number % 3]},{price:.3f},c{number % 2}"
        for number, (one, price) in enumerate(numbers)
    ]
    table = "\n".join([f"{size},color,price,kind", *lines]) + "\n"
    path = write_files(folder, {"table.csv": table}) / "table.csv"
    data = {"source": "table", "path": str(path), "label_column": label, **settings}
    params = params_of(data, postprocess=["standardize", "categories"])
    layout = prepare(params, Layout(folder))
    return params, layout, save_untrained(params, layout)


@pytest.mark.slow
def test_columns_are_found_by_their_names_and_misfits_are_refused(tmp_path):
    size = "Größe (m²)"  # a name that TensorFlow does not take
    *_, model = save_of_table(tmp_path, label="kind", size=size)
    files = {
        "other.csv": f"price,color,more,{size}\n1,blue,x,2\n1,pink,x,2\n,red,x,2\n",
        "a.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        "names.csv": f"{size},price,color\n",
        "columns.csv": f"{size};width\n1;2\n",
    }
    other, image, names, columns = (write_files(tmp_path, files) / name for name in files)
    named, _ = predict_rows(model, other)
    said = [row["error"].partition(",")[0] for row in named]
    unseen = "color is a category that the training has not seen: 'pink'"
    assert said == ["", unseen, "price is missing"]
    gap = {size: [2.0], "price": [np.nan], "color": ["blue"]}
    pd.DataFrame({**gap, "price": [1.0]}).to_parquet(tmp_path / "T.PARQUET")
    (row,), _ = predict_rows(model, tmp_path / "T.PARQUET")
    assert row["probability"] == named[0]["probability"]
    takes = f"features: {size} float32, price float32, color string"
    assert export_file(model, tmp_path / "served") == takes
    served = tf.saved_model.load(str(tmp_path / "served"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="price: missing, or not finite"):
        served.serve({name: tf.constant(cells) for name, cells in gap.items()})
    refused = {tmp_path: "is a folder", image: "is a PNG image", names: "holds no example"}
    takes = f"tables (CSV, TSV (utf-8) or Parquet) with the columns {size}, price, color."
    check_refusals(model, {**refused, columns: "no column price"}, takes=takes)


@pytest.mark.slow
def test_numbers_are_predicted_by_the_name_of_the_target(tmp_path):
    params, layout, model = save_of_table(tmp_path, label="price", label_kind="number")
    judged = write_evaluation_of(params, layout, model, tmp_path / "evaluation")
    assert judged.confusion is None
    found = judge_split(params, layout, model)
    labels = open_inputs(params, layout).memmap("test", "label")
    apart = np.abs(found["predictions"].ravel() - np.ravel(labels))
    np.testing.assert_allclose(found["losses"], apart, rtol=1e-4)
    rows, _ = predict_rows(model, tmp_path / "table.csv")
    assert list(rows[0]) == ["input", "price", "error"]
    assert len({row["price"] for row in rows}) > 2
    export_file(model, tmp_path / "served")
    assert (tmp_path / "served" / TARGETS).read_text() == "price\n"


@pytest.mark.slow
def test_a_series_is_continued_from_its_last_window_or_every_one(tmp_path):
    steps = np.random.default_rng(2).normal(size=(120, 2)).round(4)
    lines = [f"{number},{one:.4f},{two:.4f}" for number, (one, two) in enumerate(steps)]
    files = {"series.csv": "\n".join(["time,load,wind", *lines]) + "\n"}
    files |= {"wind.csv": "load,wind\n1,2\n", "short.csv": "time,load,wind\n1,2,3\n"}
    series, wind, short = (write_files(tmp_path, files) / name for name in files)
    source = {"source": "time_series", "path": str(series), "time_column": "time"}
    window = {"length": 6, "horizon": 2, "targets": ["wind"]}
    params = params_of(source, postprocess=["standardize"], window=window)
    layout = prepare(params, Layout(tmp_path))
    model = save_untrained(params, layout)
    last, _ = predict_rows(model, series)
    assert [row["row"] for row in last] == ["121", "122"]
    assert list(last[0]) == ["input", "row", "wind", "error"]
    every, _ = predict_rows(model, series, every_window=True)
    assert len(every) == 2 * (120 - 6 + 1)
    # Alone, or one of a batch: alike up to how sums are rounded.
    assert [row["row"] for row in every[-2:]] == ["121", "122"]
    found = np.array([float(row["wind"]) for row in every])
    assert found[-2:] == pytest.approx([float(row["wind"]) for row in last], rel=1e-5)
    expected = evaluate(params, layout, model)[..., 0]  # windows of the last 24 steps
    got = found.reshape(-1, 2)[120 - 24 :][: len(expected)]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    judged = write_evaluation_of(params, layout, model, tmp_path / "evaluation")
    assert judged.examples == len(expected)
    refused = {wind: "no column time", short: "has 1 time steps"}
    check_refusals(model, refused, takes="series of at least 6 time steps")
    np.save(tmp_path / "s.npy", steps)
    (tmp_path / "s.npy").rename(tmp_path / "S.NPY")
    of_array, _ = predict_rows(model, tmp_path / "S.NPY")
    assert [row["wind"] for row in of_array] == [row["wind"] for row in last]


def test_arrays_of_numbers_are_predicted_and_served_as_they_are(tmp_path):
    value = keras.Input((3, 2))
    answer = keras.layers.Dense(2, "softmax")(keras.layers.Flatten()(value))
    columns = TableColumns(names=("x[0]", "x[1]"))
    schema = labeled(array_feature("numbers", (3, 2), "float32", columns))
    spec = make_spec("tfrecord", schema=schema, classes=("a", "b"))
    trained = TrainedModel(model=keras.Model(value, answer), spec=spec, ops=())
    values = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    expected = np.asarray(trained.model(values)).max(axis=1)
    values[2, 0, 0] = np.nan
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "flat.npy", values.reshape(4, 6))
    (tmp_path / "x.csv").write_text("x[0],x[1]\n1,2\n")
    paths = [tmp_path / name for name in ("x.npy", "flat.npy", "x.csv")]
    rows, counts = predict_with(trained, *paths)
    assert counts.takes == "This model takes .npy or .npz arrays (examples, 3, 2) of float32."
    assert [row["error"].partition(" (")[0] for row in rows] == [
        *("", "", "holds values that are not finite", ""),
        "has dtype float32 and shape",
        "x cannot be read",
    ]
    for row in (0, 1, 3):
        assert float(rows[row]["probability"]) == pytest.approx(expected[row], abs=2e-6)
    assert export_model(trained, tmp_path / "served") == "features: float32"
    served = tf.saved_model.load(str(tmp_path / "served"))
    likeliest = served.serve(tf.constant(values[:2]))["probabilities"].numpy().max(axis=1)
    np.testing.assert_allclose(likeliest, expected[:2], atol=2e-6)
