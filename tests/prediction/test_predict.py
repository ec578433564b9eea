"""Predictions with a trained model: what it says of the original files, or of the rows of a file by
the names of their columns, is what evaluation says of the stored examples, in words; and what
cannot be used is named.
"""

import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image

from tasks.predict import report_rejected
from tests.support.predictions import (
    evaluate,
    export_file,
    judge_split,
    photo_params,
    predict_rows,
    predict_with,
    save_untrained,
    write_evaluation_of,
)
from tests.support.prepared import take_snapshot
from tests.support.saved_models import make_spec
from tests.support.small_data import flip_bit, picture, write_files
from tests.support.texts import params_of as text_params
from tests.support.texts import prepare_texts
from throughline.assembly.inference import describe_changed_data
from throughline.data.encodings.arrays import array_feature, pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.data.manifest import read_manifest
from throughline.measurement.evaluation import judge
from throughline.models.inference import SPEC, TrainedModel, open_trained_model
from throughline.models.serving import CLASSES, TARGETS, export_model
from throughline.pipelines.read.prepared_data import list_files
from throughline.plan.schema import Schema, TableColumns
from throughline.plan.text_ops import Tokenize
from throughline.results.evaluation import Evaluation
from throughline.settings import DataSettings, WindowSettings
from throughline.shared.errors import OutdatedModel, UnexpectedFiles, UntrustedModel, UnusableInputs

pytestmark = pytest.mark.integration


@pytest.fixture
def model(photo_model) -> Path:
    return photo_model[2]


def test_predictions_of_the_files_of_a_split_are_those_of_evaluation(photo_model):
    params, layout, model = photo_model
    files = list_files(layout.manifest, "test").paths
    expected = tf.nn.softmax(evaluate(params, layout, model)).numpy()
    rows, counts = predict_rows(model, *map(Path, files))
    classes = read_manifest(layout.manifest).classes
    assert counts.predicted == len(files) == len(expected)
    assert [row["input"] for row in rows] == list(files)
    assert [row["class"] for row in rows] == [classes[place] for place in expected.argmax(axis=1)]
    found = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(found, expected.max(axis=1), atol=2e-6)


def test_confused_classes_and_losses_are_those_of_evaluation(photo_model, photo_folder, tmp_path):
    """Also of approximate pixels, and of labels that a configuration makes vectors."""
    params, layout, model = photo_model
    labels = np.array(list_files(layout.manifest, "test").labels)

    def judged(params):
        """The losses that are found, and those of the evaluation's logits."""
        logits = evaluate(params, layout, model)
        cross_entropy = keras.losses.sparse_categorical_crossentropy
        expected = cross_entropy(labels, logits, from_logits=True).numpy()
        return judge_split(params, layout, model)["losses"], expected

    written = write_evaluation_of(params, layout, model, tmp_path / "evaluation")
    assert Evaluation.read(tmp_path) == written
    counts = np.array(written.confusion.counts)
    assert written.examples == counts.sum() == len(labels)
    assert np.trace(counts) == (evaluate(*photo_model).argmax(axis=1) == labels).sum()
    exact, expected = judged(params)
    np.testing.assert_allclose(exact, expected, rtol=1e-4)
    decoded = {"read": "shards", "decode": {"ratio": 2}, "postprocess_on": "device"}
    approximate, expected = judged(photo_params(photo_folder, pipelines={"p": decoded}))
    np.testing.assert_allclose(approximate, expected, rtol=1e-4)
    assert not np.allclose(approximate, exact, rtol=1e-4)
    augment = [{"random_crop": {"height": 16, "width": 16}}, "mixup"]
    vectors = photo_params(photo_folder, augment=augment, postprocess=["rescale", "one_hot"])
    of_vectors = write_evaluation_of(vectors, layout, model, tmp_path / "vectors")
    assert of_vectors.confusion == written.confusion
    np.testing.assert_allclose(judge_split(vectors, layout, model)["losses"], exact, rtol=1e-4)


def test_what_cannot_be_used_is_named_and_the_rest_is_predicted(model, tmp_path, capsys):
    folder = tmp_path / "new"
    (folder / "sub").mkdir(parents=True)
    picture(1).save(folder / "a.jpg")
    picture(2).save(folder / "sub" / "b.webp")
    damaged, table = folder / "c.png", tmp_path / "list.csv"
    damaged.write_bytes(b"no image")
    (folder / "notes.txt").write_text("not an image")
    table.write_text("file\na.jpg\n")
    rows, counts = predict_rows(model, folder, table)
    errors = {Path(row["input"]).name: row["error"] for row in rows}
    assert [name for name, error in errors.items() if not error] == ["a.jpg", "b.webp"]
    assert errors["c.png"].startswith("not an image")
    assert errors["list.csv"].startswith("has no column path")
    assert (counts.predicted, counts.rejected) == (2, 2)
    report_rejected(counts, strict=False)
    assert "2 of 4 inputs not used. This model takes images (JPEG" in capsys.readouterr().err
    with pytest.raises(UnusableInputs) as refusal:
        report_rejected(counts, strict=True)
    said = str(refusal.value)
    assert all(part in said for part in (str(damaged), str(table), counts.takes))
    nothing, unused = predict_rows(model, damaged, table)
    assert not nothing, "the error says it, once"
    with pytest.raises(UnusableInputs, match=r"c\.png: not an image"):
        report_rejected(unused, strict=False)


def test_names_of_a_list_are_read_as_those_of_training_or_each_is_named(model, tmp_path):
    (tmp_path / "test").mkdir()
    picture(1).save(tmp_path / "elsewhere.jpg")
    (tmp_path / "test" / "0a.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    for names, rejected in ((["0a"], 0), (["0a", "none"], 2)):
        (tmp_path / "list.csv").write_text("\n".join(["path", *names]))
        rows, counts = predict_rows(model, tmp_path / "list.csv")
        assert (len(rows), counts.rejected) == (len(names) - rejected, rejected)


@pytest.mark.slow
def test_equal_files_that_are_converted_at_once_are_all_predicted(model, tmp_path):
    for number in range(20):
        picture(2).save(tmp_path / f"{number}.webp")
    rows, counts = predict_rows(model, tmp_path)
    assert (counts.predicted, counts.rejected) == (20, 0)
    # Of batches of different sizes the sums may be rounded otherwise.
    first, *others = [float(row["probability"]) for row in rows]
    assert others == pytest.approx([first] * 19, abs=1e-5)


@pytest.mark.slow
def test_a_saved_model_answers_jpeg_bytes_as_predict_does(model, photo_folder, tmp_path):
    files = sorted(photo_folder.glob("cat/*.jpg"))[:3]
    rows, _ = predict_rows(model, *files)
    assert export_file(model, tmp_path / "served") == "image: string"
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(tf.constant([file.read_bytes() for file in files]))["probabilities"]
    expected = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(answer.numpy().max(axis=1), expected, atol=2e-6)
    classes = np.array((tmp_path / "served" / CLASSES).read_text().splitlines())
    assert classes[answer.numpy().argmax(axis=1)].tolist() == [row["class"] for row in rows]
    with pytest.raises(UnexpectedFiles, match="name another folder"):
        export_file(model, tmp_path / "served")


def with_member(model: Path, folder: Path, member: str, change) -> Path:
    """A copy of a model's file in which a member is changed, or left out (None)."""
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(folder / "copy.keras", "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            content = change(content) if name == member else content
            if content is not None:
                copy.writestr(name, content)
    return folder / "copy.keras"


def with_spec(model: Path, folder: Path, change) -> Path:
    def changed(content: bytes) -> bytes:
        spec = json.loads(content)
        change(spec)
        return json.dumps(spec).encode()

    return with_member(model, folder, SPEC, changed)


def check_refused(error: type[Exception], said: str, file: Path, *, trusted: bool = True) -> None:
    with pytest.raises(error, match=said), open_trained_model(file, trusted=trusted):
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(objects={"layer": "subprocess:Popen"}),
        lambda spec: spec["ops"].append({"op": {"antigravity:Op": {}}, "identity": ""}),
        lambda spec: spec.update(safe=False),
    ],
    ids=["a class", "an op", "a Lambda layer"],
)
def test_a_file_of_anyone_runs_no_code_but_the_projects(model, tmp_path, change):
    file = with_spec(model, tmp_path, change)
    check_refused(UntrustedModel, "which --model does not run", file, trusted=False)
    assert "antigravity" not in sys.modules


def test_a_file_that_does_not_say_how_it_is_used_is_refused(model, tmp_path):
    file = with_member(model, tmp_path, SPEC, lambda content: None)
    check_refused(OutdatedModel, "does not describe its inputs and classes", file)
    for change, said in (
        (lambda spec: spec["ops"][1]["op"]["resize"].update(shorter=21), "another resize than"),
        (lambda spec: spec["classes"].pop(), "gives 3 numbers for 2 classes"),
    ):
        check_refused(OutdatedModel, said, with_spec(model, tmp_path, change))


@pytest.mark.parametrize(
    ("member", "half"),
    [
        ("config.json", "cannot be loaded"),
        ("model.weights.h5", "is damaged, or not a model.keras"),
        (SPEC, "was saved by another version"),
    ],
)
def test_a_damaged_file_is_refused(model, tmp_path, member, half):
    with zipfile.ZipFile(model) as file:
        start = file.getinfo(member).header_offset + len(member) + 100
    damaged = Path(shutil.copy(model, tmp_path / "damaged.keras"))
    flip_bit(damaged, start)
    check_refused(OutdatedModel, r"is damaged, or not a model.keras \(Bad CRC-32", damaged)
    cut = with_member(model, tmp_path, member, lambda content: content[: len(content) // 2])
    check_refused(OutdatedModel, half, cut)


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


def trained_on(schema, *layers, source="table", dtype="float32", shape=None, **spec):
    """A model of layers that takes what the input of a schema has, or this shape."""
    inputs = keras.Input(shape or schema.input.shape, dtype=dtype)
    model = keras.Sequential([inputs, *layers])
    usual = {"classes": ("a", "b")} if spec.get("task", "class") == "class" else {}
    return TrainedModel(model=model, spec=make_spec(source, schema=schema, **usual | spec), ops=())


def softmax(units=2):
    return keras.layers.Dense(units, "softmax")


def probabilities(rows):
    return [float(row["probability"]) for row in rows]


def test_images_that_the_model_never_saw_the_like_of_are_refused(tmp_path):
    layers = keras.layers.Rescaling(0.1), keras.layers.Flatten(), softmax()
    schema = labeled(pixels_feature((12, 10, 1)))
    trained = trained_on(schema, *layers, source="arrays", dtype="uint8")
    values = np.random.default_rng(0).integers(0, 256, (2, 12, 10, 1), np.uint8)
    names = ("gray.png", "color.png", "large.png", "broken.npz", "values.npy", "X.NPZ", "first.npy")
    gray, color, large, broken, array, several, first = (tmp_path / name for name in names)
    Image.fromarray(values[0, ..., 0]).save(gray)
    picture(1, size=(10, 12)).save(color)
    picture(2, size=(20, 12), mode="L").save(large)
    broken.write_bytes(b"PK\x03\x04nonsense")
    np.save(array, values)
    with several.open("wb") as file:
        np.savez(file, x=values)
    np.save(first, np.moveaxis(values, -1, 1))  # channels first, as ingest takes them, too
    rows, _ = predict_with(trained, *(tmp_path / name for name in names))
    said = [row["error"].partition(",")[0].partition(" (")[0] for row in rows]
    assert said == ["", "in color", "20×12 pixels", "x cannot be read", *[""] * 6]
    expected = np.asarray(trained.model(values)).max(axis=1)
    assert probabilities(rows[4:]) == pytest.approx([*expected] * 3, abs=2e-6)
    assert probabilities(rows[:1]) == pytest.approx(expected[:1], abs=2e-6)
    assert export_model(trained, tmp_path / "served") == "image: string"
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(tf.constant([gray.read_bytes()]))["probabilities"].numpy()
    assert answer.max() == pytest.approx(expected[0], abs=2e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected"):
        served.serve(tf.constant([large.read_bytes()]))


def check_refusals(trained: TrainedModel, refused: dict[Path, str], *, takes: str) -> None:
    """Fail unless each path is refused for its reason, with what the model takes, and without
    parameters of its training, which nobody who predicts can set.
    """
    for path, reason in refused.items():
        _, counts = predict_with(trained, path)
        with pytest.raises(UnusableInputs) as refusal:
            report_rejected(counts, strict=False)
        said = str(refusal.value)
        assert said.startswith(f"{path}: ") and reason in said and takes in said
        assert "data." not in said


def test_texts_are_files_lines_or_rows(tmp_path):
    layers = keras.layers.Embedding(300, 2), keras.layers.GlobalAveragePooling1D(), softmax()
    schema, more = labeled(text_feature()), {"dtype": "int32", "shape": (None,)}
    trained = trained_on(schema, *layers, source="text_folder", **more)
    trained = replace(trained, ops=(Tokenize(kind="bytes"),))
    files = {
        "a.txt": "the fox\n\nthe dog\n",
        "a.csv": "id,text,split\n1,the fox,dev\n2,the dog,\n3,,\n",
        "a.jsonl": '{"text": "the fox", "split": "dev"}\n',
        "other.csv": "words\nthe fox\n",
        "blank.txt": "\n\n",
    }
    lines, table, objects, other, blank = (write_files(tmp_path, files) / name for name in files)
    (whole,), _ = predict_with(trained, lines)
    split, _ = predict_with(trained, lines, lines=True)
    rows, _ = predict_with(trained, table)
    (only,), _ = predict_with(trained, objects)
    assert not whole["error"] and rows[2]["error"] == "text missing"
    assert probabilities([*split, only]) == probabilities([*rows[:2], rows[0]])
    named = [row["input"] for row in split]
    assert named == [f"{lines}:1", f"{lines}:3"], "the blank line is none, and counted"
    assert [row["input"] for row in rows] == [f"{table}:{number}" for number in (1, 2, 3)]
    folder = write_files(tmp_path / "folder", {"ham/1.txt": "the fox", "spam/2.txt": "the dog"})
    in_classes, _ = predict_with(trained, folder)
    assert probabilities(in_classes) == probabilities(split), "classes are not looked at"
    takes = "texts (utf-8): files, folders of them, and .jsonl, .csv, .tsv or .parquet files"
    check_refusals(trained, {other: "no column text", blank: "empty text"}, takes=takes)


def test_columns_are_found_by_their_names_and_misfits_are_refused(tmp_path):
    size = "Größe (m²)"  # a name that TensorFlow does not take
    columns = TableColumns(names=(size, "price", "color"), categories=(("blue", "red"),))
    trained = trained_on(labeled(array_feature("numbers", (3,), "float32", columns)), softmax())
    files = {
        "other.csv": f"price,color,more,{size}\n1,blue,x,2\n1,pink,x,2\n,red,x,2\n",
        "a.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        "names.csv": f"{size},price,color\n",
        "columns.csv": f"{size};width\n1;2\n",
    }
    other, image, names, lacking = (write_files(tmp_path, files) / name for name in files)
    rows, _ = predict_with(trained, other)
    said = [row["error"].partition(",")[0] for row in rows]
    unseen = "color is a category that the training has not seen: 'pink'"
    assert said == ["", unseen, "price is missing"]
    (expected,) = np.asarray(trained.model(np.array([[2.0, 1.0, 0.0]]))).max(axis=1)
    gap = {size: [2.0], "price": [np.nan], "color": ["blue"]}
    pd.DataFrame({**gap, "price": [1.0]}).to_parquet(tmp_path / "T.PARQUET")
    (row,), _ = predict_with(trained, tmp_path / "T.PARQUET")
    assert probabilities([rows[0], row]) == pytest.approx([expected] * 2, abs=2e-6)
    takes = f"features: {size} float32, price float32, color string"
    assert export_model(trained, tmp_path / "served") == takes
    served = tf.saved_model.load(str(tmp_path / "served"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="price: missing, or not finite"):
        served.serve({name: tf.constant(cells) for name, cells in gap.items()})
    refused = {tmp_path: "is a folder", image: "is a PNG image", names: "holds no example"}
    takes = f"tables (CSV, TSV (utf-8) or Parquet) with the columns {size}, price, color."
    check_refusals(trained, {**refused, lacking: "no column price"}, takes=takes)


def test_a_series_is_continued_from_its_last_window_or_every_one(tmp_path):
    columns, horizon = TableColumns(names=("load", "wind")), (2, 1)
    schema = Schema(features=(array_feature("series", (2,), "float32", columns),))
    layers = keras.layers.Flatten(), keras.layers.Dense(2), keras.layers.Reshape(horizon)
    spec = {"task": "regression", "targets": ("wind",)}
    spec["window"] = WindowSettings(length=6, horizon=2, targets=["wind"])
    spec["data"] = DataSettings(source="time_series", path="unused", time_column="time")
    trained = trained_on(schema, *layers, shape=(6, 2), **spec)
    steps = np.random.default_rng(2).normal(size=(20, 2)).round(4)
    lines = [f"{number},{one:.4f},{two:.4f}" for number, (one, two) in enumerate(steps)]
    files = {
        "series.csv": "\n".join(["time,load,wind", *lines]) + "\n",
        "wind.csv": "load,wind\n1,2\n",
        "short.csv": "time,load,wind\n1,2,3\n",
    }
    series, wind, short = (write_files(tmp_path, files) / name for name in files)
    windows = np.float32([steps[start : start + 6] for start in range(15)])
    expected = np.asarray(trained.model(windows))
    every, _ = predict_with(trained, series, every_window=True)
    found = np.reshape([float(row["wind"]) for row in every], (15, *horizon))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    last, _ = predict_with(trained, series)
    assert list(last[0]) == ["input", "row", "wind", "error"]
    assert [row["row"] for row in last] == [row["row"] for row in every[-2:]] == ["21", "22"]
    with (tmp_path / "S.NPY").open("wb") as file:
        np.save(file, steps)
    of_array, _ = predict_with(trained, tmp_path / "S.NPY")
    assert [row["wind"] for row in of_array] == [row["wind"] for row in last]
    refused = {wind: "no column time", short: "has 1 time steps"}
    check_refusals(trained, refused, takes="series of at least 6 time steps")
    export_model(trained, tmp_path / "served")
    assert (tmp_path / "served" / TARGETS).read_text() == "wind\n"
    judged = judge(
        trained.model, {"features": windows, "label": 0 * expected}, schema, classes=False
    )
    np.testing.assert_allclose(judged["losses"], np.abs(expected).mean(axis=(1, 2)), rtol=1e-5)


def test_arrays_of_numbers_are_predicted_and_served_as_they_are(tmp_path):
    columns = TableColumns(names=("x[0]", "x[1]"))
    schema = labeled(array_feature("numbers", (3, 2), "float32", columns))
    trained = trained_on(schema, keras.layers.Flatten(), softmax(), source="tfrecord")
    values = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    expected = np.asarray(trained.model(values)).max(axis=1)
    values[2, 0, 0] = np.nan
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "flat.npy", values.reshape(4, 6))
    (tmp_path / "x.csv").write_text("x[0],x[1]\n1,2\n")
    rows, counts = predict_with(
        trained, *(tmp_path / one for one in ("x.npy", "flat.npy", "x.csv"))
    )
    assert counts.takes == "This model takes .npy or .npz arrays (examples, 3, 2) of float32."
    assert [row["error"].partition(" (")[0] for row in rows] == [
        *("", "", "holds values that are not finite", ""),
        "has dtype float32 and shape",
        "x cannot be read",
    ]
    usable = [0, 1, 3]
    found = probabilities(rows[place] for place in usable)
    np.testing.assert_allclose(found, expected[usable], atol=2e-6)
    assert export_model(trained, tmp_path / "served") == "features: float32"
    served = tf.saved_model.load(str(tmp_path / "served"))
    likeliest = served.serve(tf.constant(values[:2]))["probabilities"].numpy().max(axis=1)
    np.testing.assert_allclose(likeliest, expected[:2], atol=2e-6)
