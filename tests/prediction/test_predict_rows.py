"""Predictions with trained models of texts, tables and series: the rows of a file, by the names of
its columns, as they were trained.
"""

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
    predict_rows,
    predict_with,
    save_untrained,
    write_evaluation_of,
)
from tests.support.prepared import prepare, take_snapshot
from tests.support.saved_models import make_spec
from tests.support.texts import params_of as text_params
from tests.support.texts import prepare_texts
from throughline.assembly.inference import describe_changed_data
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
        counts_of = {path: predict_with(trained, path)[1] for path in refused}
    for path, reason in refused.items():
        with pytest.raises(UnusableInputs) as refusal:
            report_rejected(counts_of[path], strict=False)
        said = str(refusal.value)
        assert said.startswith(f"{path}: ") and reason in said and takes in said
        assert "data." not in said


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.slow
def test_a_model_keeps_its_classes_and_its_tokenizer_when_the_data_changes(tmp_path):
    layout = prepare_texts(tmp_path / "texts")
    words = tmp_path / "words.txt"
    words.write_text("[UNK]\nthe\nfox\ndog\n")
    preprocess = [{"tokenize": {"kind": "wordpiece", "model": str(words)}}]
    params = text_params({}, train={"seed": 1}, preprocess=preprocess)
    shutil.rmtree(layout.snapshot)
    take_snapshot(params, layout)
    model = save_untrained(params, layout)
    text = tmp_path / "texts" / "source" / "ham" / "000.txt"
    before, _ = predict_rows(model, text)
    with open_trained_model(model) as trained:
        assert describe_changed_data(trained, "p", layout) is None
    words.write_text("[UNK]\ndog\nthe\nfox\n")
    (layout.snapshot / "tokenizer.txt").write_text(words.read_text())
    index = layout.shards / "index.json"
    index.write_text(index.read_text().replace('"ham"', '"spam!"'))
    after, _ = predict_rows(model, text)
    assert before == after
    with open_trained_model(model) as trained:
        shown = describe_changed_data(trained, "p", layout)
    assert ": the classes and the tokenizer. " in shown
    assert export_file(model, tmp_path / "served") == "text: string"
    assert (tmp_path / "served" / CLASSES).read_text().splitlines() == ["ham", "spam"]


@pytest.mark.slow
def test_texts_are_files_lines_or_rows(tmp_path):
    layout = prepare_texts(tmp_path / "texts")
    model = save_untrained(text_params({}, train={"seed": 1}), layout)
    judged = write_evaluation_of(text_params({}), layout, model, tmp_path / "evaluation")
    assert judged.worst[0].value == (layout.root / "source" / judged.worst[0].id).read_text()
    lines, table, objects = (tmp_path / f"some.{form}" for form in ("txt", "csv", "jsonl"))
    lines.write_text("the fox\n\nthe dog\n")
    table.write_text("id,text,split\n1,the fox,dev\n2,the dog,\n3,,\n")
    objects.write_text('{"text": "the fox", "split": "dev"}\n')
    whole, _ = predict_rows(model, lines)
    split, _ = predict_rows(model, lines, lines=True)
    rows, _ = predict_rows(model, table)
    assert len(whole) == 1
    assert [row["probability"] for row in split] == [row["probability"] for row in rows][:2]
    (only,), _ = predict_rows(model, objects)
    assert not only["error"], "its split is none of a training, and not looked at"
    named = [row["input"] for row in split]
    assert named == [f"{lines}:1", f"{lines}:3"], "the blank line is none, and counted"
    assert [row["input"] for row in rows] == [f"{table}:{number}" for number in (1, 2, 3)]
    with open_trained_model(model) as trained:
        documents = list(texts.read(lines.parent / "texts" / "source", trained, Wanted()).items)
    assert len(documents) == 150  # also those in class folders, whose classes are not looked at
    assert rows[2]["error"] == "text missing"
    check_refusals(
        model,
        {
            write(tmp_path / "other.csv", b"words\nthe fox\n"): "no column text",
            write(tmp_path / "blank.txt", b"\n\n"): "empty text",
        },
        takes="texts (utf-8): files, folders of them, and .jsonl, .csv, .tsv or .parquet files",
    )


def params_of(data: dict, **sections) -> Params:
    usual = {"augment": [], "batch_size": 8, "pipelines": {"p": ON_DEVICE}}
    model, split = {"name": "mlp", "options": {"width": 4}}, {"validation": 0.2, "test": 0.2}
    return check({**usual, "model": model, "data": {**data, "split": split}, **sections})


def save_of_table(folder: Path, table: str, *, label: str, **settings) -> tuple:
    """Ingest a table up to its snapshot, and save the model for it."""
    (folder / "table.csv").write_text(table)
    layout = Layout(folder)
    data = {"source": "table", "path": str(folder / "table.csv"), "label_column": label}
    params = params_of({**data, **settings}, postprocess=["standardize", "categories"])
    prepare(params, layout)
    return params, layout, save_untrained(params, layout)


def make_table(rows: int) -> str:
    colors, numbers = ("red", "green", "blue"), np.random.default_rng(5).normal(size=(rows, 2))
    lines = [
        f"{size:.3f},{colors[number % 3]},{price:.3f},c{number % 2}"
        for number, (size, price) in enumerate(numbers)
    ]
    return "\n".join(["size,color,price,kind", *lines]) + "\n"


@pytest.mark.slow
def test_columns_are_found_by_their_names_and_misfits_are_refused(tmp_path):
    size = "Größe (m²)"  # a name that TensorFlow does not take
    *_, model = save_of_table(tmp_path, make_table(60).replace("size", size), label="kind")
    other = tmp_path / "other.csv"
    other.write_text(f"price,color,more,{size}\n1,blue,x,2\n1,pink,x,2\n,red,x,2\n")
    named, _ = predict_rows(model, other)
    said = [row["error"].partition(",")[0] for row in named]
    unseen = "color is a category that the training has not seen: 'pink'"
    assert said == ["", unseen, "price is missing"]
    gap = {size: [2.0], "price": [np.nan], "color": ["blue"]}
    pd.DataFrame({**gap, "price": [1.0]}).to_parquet(tmp_path / "T.PARQUET")
    (row,), _ = predict_rows(model, tmp_path / "T.PARQUET")
    assert row["probability"] == named[0]["probability"]
    columns = f"features: {size} float32, price float32, color string"
    assert export_file(model, tmp_path / "served") == columns
    served = tf.saved_model.load(str(tmp_path / "served"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="price: missing, or not finite"):
        served.serve({name: tf.constant(cells) for name, cells in gap.items()})
    check_refusals(
        model,
        {
            tmp_path: "is a folder",
            write(tmp_path / "a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"): "is a PNG image",
            write(tmp_path / "names.csv", f"{size},price,color\n".encode()): "holds no example",
            write(tmp_path / "columns.csv", f"{size};width\n1;2\n".encode()): "no column price",
        },
        takes=f"tables (CSV, TSV (utf-8) or Parquet) with the columns {size}, price, color.",
    )


@pytest.mark.slow
def test_numbers_are_predicted_by_the_name_of_the_target(tmp_path):
    data = {"label": "price", "label_kind": "number"}
    params, layout, model = save_of_table(tmp_path, make_table(60), **data)
    judged = write_evaluation_of(params, layout, model, tmp_path / "evaluation")
    assert judged.confusion is None
    for item in judged.worst:
        apart = abs(float(item.truth) - float(item.predicted))
        assert item.loss == pytest.approx(apart, rel=0.01, abs=1e-3)
    rows, _ = predict_rows(model, tmp_path / "table.csv")
    assert list(rows[0]) == ["input", "price", "error"]
    assert len({row["price"] for row in rows}) > 2
    export_file(model, tmp_path / "served")
    assert (tmp_path / "served" / TARGETS).read_text() == "price\n"


@pytest.mark.slow
def test_a_series_is_continued_from_its_last_window_or_every_one(tmp_path):
    steps = np.random.default_rng(2).normal(size=(120, 2))
    lines = [f"{number},{one:.4f},{two:.4f}" for number, (one, two) in enumerate(steps)]
    (tmp_path / "series.csv").write_text("\n".join(["time,load,wind", *lines]) + "\n")
    layout = Layout(tmp_path)
    source = {"source": "time_series", "path": str(tmp_path / "series.csv"), "time_column": "time"}
    window = {"length": 6, "horizon": 2, "targets": ["wind"]}
    params = params_of(source, postprocess=["standardize"], window=window)
    prepare(params, layout)
    model = save_untrained(params, layout)
    last, _ = predict_rows(model, tmp_path / "series.csv")
    assert [row["row"] for row in last] == ["121", "122"]
    assert list(last[0]) == ["input", "row", "wind", "error"]
    every, _ = predict_rows(model, tmp_path / "series.csv", every_window=True)
    assert len(every) == 2 * (120 - 6 + 1)
    # Alone, or one of a batch: alike up to how sums are rounded.
    assert [row["row"] for row in every[-2:]] == ["121", "122"]
    assert [float(row["wind"]) for row in every[-2:]] == pytest.approx(
        [float(row["wind"]) for row in last], rel=1e-5
    )
    expected = evaluate(params, layout, model)  # windows of the last 24 steps
    first = 2 * (120 - 24)
    got = np.array([float(row["wind"]) for row in every[first : first + 2 * len(expected)]])
    judged = write_evaluation_of(params, layout, model, tmp_path / "evaluation")
    assert judged.examples == len(expected)
    assert judged.worst[0].id.startswith("window from time step ")
    check_refusals(
        model,
        {
            write(tmp_path / "wind.csv", b"load,wind\n1,2\n"): "no column time",
            write(tmp_path / "short.csv", b"time,load,wind\n1,2,3\n"): "has 1 time steps",
        },
        takes="series of at least 6 time steps",
    )
    np.testing.assert_allclose(got.reshape(-1, 2), expected[..., 0], rtol=1e-4, atol=1e-5)
    np.save(tmp_path / "s.npy", steps.round(4))
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
