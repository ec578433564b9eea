"""Predictions with a trained model: what it says of the original files is what evaluation says of
the stored examples, in words, and what cannot be used is named.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from argparse import Namespace
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import picture
from made_up import made_up
from PIL import Image
from project import ROOT
from texts import params_of as text_params
from texts import prepare_texts

from tasks.export import export
from tasks.predict import declare_options, main, report_rejected
from throughline.assembly.evaluation import write_evaluation
from throughline.assembly.fingerprint import layer_modules
from throughline.assembly.inference import (
    describe_changed_data,
    find_changed_data,
    inference_ops,
    make_inference_spec,
)
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.config.cli import enter_run, trained_model_cli
from throughline.config.params import check
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.models.inference import SPEC, open_trained_model, read_spec, save_trained_model
from throughline.models.model_files import check_savable
from throughline.models.serving import CLASSES, TARGETS
from throughline.pipelines.read.prepared_data import list_files
from throughline.pipelines.write.snapshot import snapshot
from throughline.prediction import texts
from throughline.prediction.examples import Wanted
from throughline.prediction.table import Counts, write_predictions
from throughline.results.evaluation import WORST_PICTURE, Evaluation
from throughline.results.train import HeldOut, TrainResult
from throughline.settings import ShardSettings
from throughline.shared.errors import (
    MissingInput,
    OutdatedModel,
    UnexpectedFiles,
    UntrustedModel,
    UnusableInputs,
)
from throughline.shared.layout import STORE_HOME, Layout

pytestmark = pytest.mark.integration
ON_DEVICE = {"read": "snapshot", "shuffle": {"kind": "global"}, "postprocess_on": "device"}


def save_untrained(params, layout, name="p") -> Path:
    """Save the model of a configuration with its first weights, as train does in the end."""
    data = open_inputs(params, layout)
    path = layout.results(name) / "model.keras"
    path.parent.mkdir(parents=True, exist_ok=True)
    model = build_models_for(params, data).full_model
    for weights in model.trainable_variables:  # so that classes differ
        weights.assign(tf.random.stateless_normal(weights.shape, [len(weights.path), 7]))
    needs = check_savable(model, sorted(layer_modules(params)))
    spec = make_inference_spec(params, name, data, needs)
    save_trained_model(model, path, spec, inference_ops(params, name, data))
    return path


def predict_rows(model: Path, *paths: Path, **wanted) -> tuple[list[dict[str, str]], Counts]:
    """The lines of the CSV for these paths, and the counts."""
    out = io.StringIO()
    with open_trained_model(model) as trained:
        counts = write_predictions(
            trained, paths, out, wanted=Wanted(**wanted), batch_size=7, show_progress=False
        )
    return list(csv.DictReader(io.StringIO(out.getvalue()))), counts


def list_files_of(layout):
    """The files of the test split, in the order of the shards."""
    return list_files(layout.manifest, "test")


def evaluated(params, layout, model: Path, out: Path) -> Evaluation:
    """What train writes about single examples."""
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    models.full_model.load_weights(model)
    return write_evaluation(models, params, data, layout, out)


def export_file(model: Path, out: Path) -> str:
    """Export the model of a file."""
    with open_trained_model(model) as trained:
        return export(trained, out)


def evaluate(params, layout, split, name="p") -> np.ndarray:
    """What the full model says of a split in its evaluation, in storage order."""
    data = open_inputs(params, layout)
    pipeline = open_input_pipeline(params, name, data, split=split, purpose="evaluate")
    model = keras.saving.load_model(layout.results(name) / "model.keras", compile=False)
    return np.concatenate([model(inputs, training=False) for inputs, _ in pipeline.dataset()])


def photo_params(folder: Path, **sections):
    """Parameters for the photos: resized by the shorter side, then cropped to one size."""
    usual = {
        "data": {"source": "image_folder", "path": str(folder)},
        "preprocess": ["decode", {"resize": {"shorter": 20}}],
        "augment": [{"random_crop": {"height": 16, "width": 16}}, "flip"],
        "postprocess": ["rescale"],
        "batch_size": 8,
        "model": {"name": "mlp", "options": {"width": 8}},
        "pipelines": {"p": ON_DEVICE},
    }
    return check({**usual, **sections})


@pytest.fixture(scope="module")
def photo_model(photos, photo_folder, tmp_path_factory):
    """Photos of variable size, cropped to one size after resizing by the shorter side."""
    root = tmp_path_factory.mktemp("photo-model")
    layout = Layout(root)
    (root / "data").mkdir()
    for part in ("manifest", "shards"):
        (root / "data" / part).symlink_to(photos / part)
    params = photo_params(photo_folder)
    snapshot(
        read_shard_index(layout.shards),
        layout.shards,
        layout.snapshot,
        preprocess=params.preprocess,
    )
    return params, layout, save_untrained(params, layout)


def test_predictions_of_the_files_of_a_split_are_those_of_evaluation(photo_model, photo_folder):
    params, layout, model = photo_model
    files = list_files_of(layout).paths
    expected = tf.nn.softmax(evaluate(params, layout, "test")).numpy()
    rows, counts = predict_rows(model, *map(Path, files))
    classes = read_manifest(layout.manifest).classes
    assert counts.predicted == len(files) == len(expected)
    assert [row["input"] for row in rows] == list(files)
    assert [row["class"] for row in rows] == [classes[place] for place in expected.argmax(axis=1)]
    np.testing.assert_allclose(
        [float(row["probability"]) for row in rows], expected.max(axis=1), atol=2e-6
    )
    assert list(rows[0]) == [
        "input", "class", "probability", "class_2", "probability_2", "class_3", "probability_3",
        "error",
    ]  # fmt: skip


def test_the_confused_classes_and_the_worst_examples_are_those_of_evaluation(photo_model, tmp_path):
    params, layout, model = photo_model
    written = evaluated(params, layout, model, tmp_path / "evaluation")
    assert Evaluation.read(tmp_path) == written
    logits, labels = evaluate(params, layout, "test"), np.array(list_files_of(layout).labels)
    counts = np.array(written.confusion.counts)
    assert written.examples == counts.sum() == len(labels)
    assert np.trace(counts) == (logits.argmax(axis=1) == labels).sum()
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    expected = np.sort(np.asarray(losses))[::-1][:12]
    np.testing.assert_allclose([item.loss for item in written.worst], expected, rtol=1e-4)
    names = {file.rpartition("/")[2] for file in list_files_of(layout).paths}
    assert {item.id.rpartition("/")[2] for item in written.worst} <= names
    picture = Image.open(tmp_path / "evaluation" / WORST_PICTURE)
    assert picture.size == (16, 16 * len(written.worst))


def test_labels_that_are_vectors_are_judged_as_their_classes(photo_model, photo_folder, tmp_path):
    params, layout, model = photo_model
    mixed = photo_params(
        photo_folder,
        augment=[{"random_crop": {"height": 16, "width": 16}}, "mixup"],
        postprocess=["rescale", "one_hot"],
    )
    plain = evaluated(params, layout, model, tmp_path / "plain")
    vectors = evaluated(mixed, layout, model, tmp_path / "vectors")
    assert vectors.confusion == plain.confusion
    np.testing.assert_allclose(
        [item.loss for item in vectors.worst], [item.loss for item in plain.worst], rtol=1e-4
    )


def test_what_cannot_be_used_is_named_and_the_rest_is_predicted(photo_model, tmp_path, capsys):
    *_, model = photo_model
    folder = tmp_path / "new"
    (folder / "sub").mkdir(parents=True)
    picture(1).save(folder / "a.jpg")
    picture(2).save(folder / "sub" / "b.webp")
    (folder / "c.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("not an image")
    (tmp_path / "list.csv").write_text("file\na.jpg\n")
    rows, counts = predict_rows(model, folder, tmp_path / "list.csv")
    named = {Path(row["input"]).name: row for row in rows}
    assert list(named) == ["a.jpg", "c.png", "b.webp", "list.csv"]
    assert named["a.jpg"]["class"] and named["b.webp"]["class"]
    assert named["c.png"]["error"] == "not an image in JPEG, PNG, GIF, BMP or WebP format"
    assert named["list.csv"]["error"] == "has no column path, which would name images"
    assert (counts.predicted, counts.rejected) == (2, 2)
    report_rejected(counts, strict=False)
    said = capsys.readouterr().err
    assert "2 of 4 inputs not used. This model takes images (JPEG" in said
    with pytest.raises(UnusableInputs) as refusal:
        report_rejected(counts, strict=True)
    assert str(refusal.value).splitlines() == [
        "2 of 4 inputs cannot be used:",
        f"  {folder / 'c.png'}: not an image in JPEG, PNG, GIF, BMP or WebP format",
        f"  {tmp_path / 'list.csv'}: has no column path, which would name images",
        counts.takes,
        "Without --strict the others are predicted.",
    ]
    nothing, unused = predict_rows(model, folder / "c.png", tmp_path / "list.csv")
    assert not nothing, "the error says it, once"
    with pytest.raises(UnusableInputs, match=r"c\.png: not an image"):
        report_rejected(unused, strict=False)


def test_equal_files_that_are_converted_at_once_are_all_predicted(photo_model, tmp_path):
    *_, model = photo_model
    picture(2).save(tmp_path / "0.webp")
    for number in range(1, 60):
        shutil.copy(tmp_path / "0.webp", tmp_path / f"{number}.webp")
    rows, counts = predict_rows(model, tmp_path)
    assert (counts.predicted, counts.rejected) == (60, 0)
    # Of batches of different sizes the sums may be rounded otherwise.
    first, *others = [float(row["probability"]) for row in rows]
    assert others == pytest.approx([first] * 59, abs=1e-5)


def test_a_saved_model_answers_jpeg_bytes_as_predict_does(photo_model, photo_folder, tmp_path):
    *_, model = photo_model
    files = sorted(photo_folder.glob("cat/*.jpg"))[:3]
    rows, _ = predict_rows(model, *files)
    assert export_file(model, tmp_path / "served") == "image: string"
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(tf.constant([file.read_bytes() for file in files]))["probabilities"]
    np.testing.assert_allclose(
        answer.numpy().max(axis=1), [float(row["probability"]) for row in rows], atol=2e-6
    )
    classes = (tmp_path / "served" / CLASSES).read_text().splitlines()
    assert [classes[place] for place in answer.numpy().argmax(axis=1)] == [
        row["class"] for row in rows
    ]
    with pytest.raises(UnexpectedFiles, match="name another folder"):
        export_file(model, tmp_path / "served")


@pytest.mark.slow
def test_the_file_is_a_keras_model_anywhere(photo_model, tmp_path):
    *_, model = photo_model
    shutil.copy(model, tmp_path / "model.keras")
    code = (
        "import keras, json, zipfile; m = keras.saving.load_model('model.keras');"
        "print(m.input_shape, json.loads(zipfile.ZipFile('model.keras')"
        f".read('{SPEC}'))['classes'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("(None, 16, 16, 3) ['bird/owl', 'cat', 'dog']")


@pytest.mark.slow
def test_a_model_keeps_its_classes_and_its_tokenizer_when_the_data_changes(tmp_path):
    layout = prepare_texts(tmp_path / "texts")
    words = tmp_path / "words.txt"
    words.write_text("[UNK]\nthe\nfox\ndog\n")
    preprocess = [{"tokenize": {"kind": "wordpiece", "model": str(words)}}]
    params = text_params({}, train={"seed": 1}, preprocess=preprocess)
    shutil.rmtree(layout.snapshot)
    index = read_shard_index(layout.shards)
    snapshot(index, layout.shards, layout.snapshot, preprocess=params.preprocess)
    model = save_untrained(params, layout)
    text = tmp_path / "texts" / "source" / "ham" / "000.txt"
    before, _ = predict_rows(model, text)
    with open_trained_model(model) as trained:
        assert find_changed_data(trained, layout) == []
    words.write_text("[UNK]\ndog\nthe\nfox\n")
    (layout.snapshot / "tokenizer.txt").write_text(words.read_text())
    index = layout.shards / "index.json"
    index.write_text(index.read_text().replace('"ham"', '"spam!"'))
    after, _ = predict_rows(model, text)
    assert before == after
    with open_trained_model(model) as trained:
        assert find_changed_data(trained, layout) == ["the classes", "the tokenizer"]
        shown = describe_changed_data(trained, "p", layout)
    assert shown is not None
    assert "the classes and the tokenizer. The model is used with those of its training" in shown
    assert export_file(model, tmp_path / "served") == "text: string"
    assert (tmp_path / "served" / CLASSES).read_text().splitlines() == ["ham", "spam"]


@pytest.mark.slow
def test_texts_are_files_lines_or_rows(tmp_path):
    layout = prepare_texts(tmp_path / "texts")
    model = save_untrained(text_params({}, train={"seed": 1}), layout)
    judged = evaluated(text_params({}), layout, model, tmp_path / "evaluation")
    assert judged.worst[0].value == (layout.root / "source" / judged.worst[0].id).read_text()
    lines = tmp_path / "some.txt"
    lines.write_text("the fox\n\nthe dog\n")
    table = tmp_path / "some.csv"
    table.write_text("id,text\n1,the fox\n2,the dog\n3,\n")
    whole, _ = predict_rows(model, lines)
    split, _ = predict_rows(model, lines, lines=True)
    rows, _ = predict_rows(model, table)
    assert len(whole) == 1
    assert [row["probability"] for row in split] == [row["probability"] for row in rows][:2]
    named = [row["input"] for row in split]
    assert named == [f"{lines}:1", f"{lines}:3"], "the blank line is none, and counted"
    assert [row["input"] for row in rows] == [f"{table}:{number}" for number in (1, 2, 3)]
    with open_trained_model(model) as trained:
        documents = list(texts.read(lines.parent / "texts" / "source", trained, Wanted()).items)
    assert len(documents) == 150  # also those in class folders, whose classes are not looked at
    assert rows[2]["error"] == "text missing"
    other = tmp_path / "other.csv"
    other.write_text("words\nthe fox\n")
    check_refusals(
        model,
        {
            other: "no column text; known: words.",
            make_misfit(tmp_path / "a.png"): "is a PNG image.",
            make_misfit(tmp_path / "blank.txt", b"\n\n"): "empty text.",
        },
        takes="This model takes texts (utf-8): files, folders of them, and .jsonl, .csv, .tsv or"
        " .parquet files whose column text holds the text.",
    )


def make_misfit(path: Path, content: bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") -> Path:
    path.write_bytes(content)
    return path


def check_refusals(model: Path, refused: dict[Path, str], *, takes: str) -> None:
    """Fail unless each path is refused for its reason, with what the model takes, and without
    parameters of its training, which nobody who predicts can set.
    """
    for path, reason in refused.items():
        _, counts = predict_rows(model, path)
        with pytest.raises(UnusableInputs) as refusal:
            report_rejected(counts, strict=False)
        assert str(refusal.value) == f"{path}: {reason} {takes}"
        assert counts.first[0].reason == reason.removesuffix(".")


def with_spec(model: Path, folder: Path, change) -> Path:
    """A copy of a model's file whose description is changed."""
    copied = folder / "changed.keras"
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(copied, "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            if name == SPEC:
                spec = json.loads(content)
                change(spec)
                content = json.dumps(spec).encode()
            copy.writestr(name, content)
    return copied


def set_size(spec: dict) -> None:
    spec["ops"][1]["op"]["resize"]["shorter"] = 21


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(objects={"layer": "subprocess:Popen"}),
        lambda spec: spec["ops"].append({"op": {"antigravity:Op": {}}, "identity": ""}),
        lambda spec: spec.update(safe=False),
    ],
    ids=["a class", "an op", "a Lambda layer"],
)
def test_a_file_of_anyone_runs_no_code_but_the_projects(photo_model, tmp_path, change):
    *_, model = photo_model
    with (
        pytest.raises(UntrustedModel, match="which --model does not run"),
        open_trained_model(with_spec(model, tmp_path, change), trusted=False),
    ):
        pass
    assert "antigravity" not in sys.modules


def test_a_file_that_does_not_say_how_it_is_used_is_refused(photo_model, tmp_path):
    *_, model = photo_model
    plain = tmp_path / "plain.keras"
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(plain, "w") as copy:
        for name in source.namelist():
            if name != SPEC:
                copy.writestr(name, source.read(name))
    with pytest.raises(OutdatedModel, match="does not say what its inputs and classes are"):
        read_spec(plain)
    with (
        pytest.raises(OutdatedModel, match="another resize than there is now"),
        open_trained_model(with_spec(model, tmp_path, set_size)),
    ):
        pass


def save_of_table(folder: Path, table: str, *, label: str, **settings) -> tuple:
    """Ingest a table up to its snapshot, and save the model for it."""
    (folder / "table.csv").write_text(table)
    layout = Layout(folder)
    data = {"source": "table", "path": str(folder / "table.csv"), "label_column": label}
    params = check(
        {
            "data": {**data, "split": {"validation": 0.2, "test": 0.2}, **settings},
            "augment": [],
            "postprocess": ["standardize", "categories"],
            "batch_size": 8,
            "model": {"name": "mlp", "options": {"width": 4}},
            "pipelines": {"p": ON_DEVICE},
        }
    )
    prepare(params, layout)
    return params, layout, save_untrained(params, layout)


def prepare(params, layout: Layout) -> None:
    """Ingest, shards and snapshot of the parameters' data."""
    manifest = replace(ingest(params.data, layout.manifest), folder=layout.manifest)
    shard(manifest, layout.shards, settings=ShardSettings(min_shards=2, writers=1))
    index = read_shard_index(layout.shards)
    snapshot(index, layout.shards, layout.snapshot, preprocess=params.preprocess)


def make_table(rows: int) -> str:
    draw = np.random.default_rng(5)
    colors = ("red", "green", "blue")
    lines = [
        f"{size:.3f},{colors[number % 3]},{price:.3f},c{number % 2}"
        for number, (size, price) in enumerate(draw.normal(size=(rows, 2)))
    ]
    return "\n".join(["size,color,price,kind", *lines]) + "\n"


def test_rows_of_a_table_are_predicted_by_the_names_of_its_columns(tmp_path):
    params, layout, model = save_of_table(tmp_path, make_table(60), label="kind")
    manifest, values = read_manifest(layout.manifest), np.load(layout.manifest / "values.npy")
    chosen = manifest.for_split("test")["row"].tolist()
    full = keras.saving.load_model(model, compile=False)
    expected = tf.nn.softmax(full(values[chosen])).numpy().max(axis=1)
    rows, _ = predict_rows(model, tmp_path / "table.csv")
    got = [float(rows[row]["probability"]) for row in chosen]
    np.testing.assert_allclose(got, expected, atol=2e-6)
    other = tmp_path / "other.csv"
    other.write_text("price,color,more,size\n1,blue,x,2\n1,pink,x,2\n,red,x,2\nlow,red,x,2\n")
    named, _ = predict_rows(model, other)
    assert [row["error"] for row in named] == [
        "",
        "color is 'pink', a category that the training has not seen",
        "price is missing",
        "price is 'low', no number",
    ]
    check_refusals(
        model,
        {
            tmp_path: "is a folder, not a file.",
            tmp_path / "gone.csv": "does not exist.",
            make_misfit(tmp_path / "a.png"): "is a PNG image.",
            make_misfit(tmp_path / "sheet.xlsx", b"PK\x03\x04"): (
                "is a ZIP archive, as Excel's files are."
            ),
            make_misfit(tmp_path / "bytes.csv", b"size\0"): "is binary, not text.",
            make_misfit(tmp_path / "empty.csv", b""): "is empty.",
            make_misfit(tmp_path / "names.csv", b"size,price,color\n"): "holds no example.",
            make_misfit(tmp_path / "latin.csv", b"size,price,color\n1,2,\xfc\n"): (
                "is not utf-8: 'utf-8' codec can't decode byte 0xfc in position 21: invalid start"
                " byte."
            ),
            make_misfit(tmp_path / "column.csv", b"size;kolor;price\n1;red;2\n"): (
                "no column color; did you mean kolor?"
            ),
            make_misfit(tmp_path / "quote.csv", b'size,price,color\n1,2,"red\n3,4,red\n'): (
                "line 2: a quoted cell that goes on for 1 more lines does not end as one; a stray"
                " quote?"
            ),
            make_misfit(tmp_path / "fields.csv", b"size,price,color\n1,2,red,4\n"): (
                "1 of 1 rows have other fields than the header's 3: line 2 has 4. Quote cells that"
                " hold the delimiter."
            ),
        },
        takes="This model takes tables (CSV, TSV (utf-8) or Parquet) with the columns size, price,"
        " color.",
    )
    worst = evaluated(params, layout, model, tmp_path / "evaluation").worst[0]
    row = manifest.examples.set_index("id").loc[worst.id]["row"]
    color = ("blue", "green", "red")[int(values[row][2])]
    size, price = values[row][:2]
    assert worst.value == f"size: {size:.4g}, price: {price:.4g}, color: {color}"
    assert (
        export_file(model, tmp_path / "served")
        == "features: size float32, price float32, color string"
    )
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(
        {"size": tf.constant([2.0]), "price": tf.constant([1.0]), "color": tf.constant(["blue"])}
    )
    likeliest = float(answer["probabilities"].numpy().max())
    assert abs(likeliest - float(named[0]["probability"])) < 2e-6


def test_empty_cells_are_predicted_as_they_were_trained(tmp_path):
    lines = make_table(60).splitlines()
    for row in (3, 20, 40):
        lines[row] = "," + lines[row].partition(",")[2]
        lines[row + 1] = lines[row + 1].replace("red", "").replace("green", "").replace("blue", "")
    # A name that TensorFlow does not take.
    lines[0] = lines[0].replace("size", "Größe (m²)")
    _, layout, model = save_of_table(tmp_path, "\n".join(lines), label="kind", missing="median")
    values = np.load(layout.manifest / "values.npy")
    assert len(values) == 60 and np.isfinite(values).all()
    full = keras.saving.load_model(model, compile=False)
    expected = tf.nn.softmax(full(values)).numpy().max(axis=1)
    rows, _ = predict_rows(model, tmp_path / "table.csv")
    got = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(got, expected, atol=2e-6)
    export_file(model, tmp_path / "served")
    cells = [line.split(",") for line in lines[1:]]
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(
        {
            "Größe (m²)": tf.constant([float(row[0] or "nan") for row in cells]),
            "price": tf.constant([float(row[2]) for row in cells]),
            "color": tf.constant([row[1] for row in cells]),
        }
    )
    np.testing.assert_allclose(answer["probabilities"].numpy().max(axis=1), expected, atol=2e-6)


def test_numbers_are_predicted_by_the_name_of_the_target(tmp_path):
    params, layout, model = save_of_table(
        tmp_path, make_table(60), label="price", label_kind="number"
    )
    judged = evaluated(params, layout, model, tmp_path / "evaluation")
    assert judged.confusion is None
    assert all(
        abs(abs(float(item.truth) - float(item.predicted)) - item.loss) < 0.01 * item.loss + 1e-3
        for item in judged.worst
    )
    rows, _ = predict_rows(model, tmp_path / "table.csv")
    assert list(rows[0]) == ["input", "price", "error"]
    assert len({row["price"] for row in rows}) > 2
    export_file(model, tmp_path / "served")
    assert (tmp_path / "served" / TARGETS).read_text() == "price\n"


def test_a_series_is_continued_from_its_last_window_or_every_one(tmp_path):
    steps = np.random.default_rng(2).normal(size=(120, 2))
    lines = [f"{number},{one:.4f},{two:.4f}" for number, (one, two) in enumerate(steps)]
    (tmp_path / "series.csv").write_text("\n".join(["time,load,wind", *lines]) + "\n")
    layout = Layout(tmp_path)
    params = check(
        {
            "data": {
                "source": "time_series",
                "path": str(tmp_path / "series.csv"),
                "time_column": "time",
                "split": {"validation": 0.2, "test": 0.2},
            },
            "augment": [],
            "postprocess": ["standardize"],
            "window": {"length": 6, "horizon": 2, "targets": ["wind"]},
            "batch_size": 8,
            "model": {"name": "mlp", "options": {"width": 4}},
            "pipelines": {"p": ON_DEVICE},
        }
    )
    prepare(params, layout)
    model = save_untrained(params, layout)
    last, _ = predict_rows(model, tmp_path / "series.csv")
    assert [(row["row"], list(row)) for row in last] == [
        ("121", ["input", "row", "wind", "error"]),
        ("122", ["input", "row", "wind", "error"]),
    ]
    every, _ = predict_rows(model, tmp_path / "series.csv", every_window=True)
    assert len(every) == 2 * (120 - 6 + 1)
    # Alone, or one of a batch: alike up to how sums are rounded.
    assert [row["row"] for row in every[-2:]] == ["121", "122"]
    assert [float(row["wind"]) for row in every[-2:]] == pytest.approx(
        [float(row["wind"]) for row in last], rel=1e-5
    )
    expected = evaluate(params, layout, "test")  # windows of the last 24 steps
    first = 2 * (120 - 24)
    got = np.array([float(row["wind"]) for row in every[first : first + 2 * len(expected)]])
    judged = evaluated(params, layout, model, tmp_path / "evaluation")
    assert judged.examples == len(expected)
    assert judged.worst[0].id.startswith("window from time step ")
    check_refusals(
        model,
        {
            make_misfit(tmp_path / "wind.csv", b"load,wind\n1,2\n"): (
                "no column time; known: load, wind."
            ),
            make_misfit(tmp_path / "short.csv", b"time,load,wind\n1,2,3\n"): (
                "has 1 time steps, and the model needs 6."
            ),
            tmp_path: "is a folder, not a file.",
        },
        takes="This model takes series of at least 6 time steps: tables (CSV, TSV (utf-8) or"
        " Parquet) with the columns time, load, wind, or .npy arrays of load, wind.",
    )
    np.testing.assert_allclose(got.reshape(-1, 2), expected[..., 0], rtol=1e-4, atol=1e-5)


def test_a_command_reads_the_run_that_is_named(tmp_path, monkeypatch):
    run = tmp_path / ".throughline" / "workspaces" / "wide"
    run.mkdir(parents=True)
    (run / "params.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STORE_HOME, "")
    monkeypatch.delenv(STORE_HOME)
    enter_run(Namespace(name="wide"))
    assert Path.cwd() == run
    assert os.environ[STORE_HOME] == str(tmp_path), "MLflow's store is the project's"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInput, match=r"--name wid: there is no such run.*did you mean wide"):
        enter_run(Namespace(name="wid"))


def test_predict_uses_the_model_of_the_run_that_is_named(
    photo_model, photo_folder, tmp_path, monkeypatch, capsys
):
    *_, model = photo_model
    run = Layout(tmp_path).run("wide")
    run.results("p").mkdir(parents=True)
    (run.root / "params.yaml").write_text("{}")
    shutil.copy(model, run.results("p") / "model.keras")
    shutil.copy(next(photo_folder.glob("cat/*.jpg")), tmp_path / "a.jpg")
    monkeypatch.chdir(tmp_path)
    command = ["python -m tasks.predict", "--pipeline", "p", "a.jpg"]
    monkeypatch.setattr(sys, "argv", [*command, "--name", "wide", "--out", "out.csv"])
    main()
    assert "predict: 1 predictions in out.csv" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert row["input"] == "a.jpg" and row["class"] in ("bird/owl", "cat", "dog")
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    assert "runs/p/model.keras does not exist; run `dvc repro train@p`" in capsys.readouterr().err


def test_paths_that_do_not_exist_are_refused_before_the_model_is_opened(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in ("model.keras", "there.jpg"):
        Path(name).touch()
    paths = ["gone.jpg", "there.jpg", "lost.jpg"]
    monkeypatch.setattr(sys, "argv", ["predict", "--model", "model.keras", *paths])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert "gone.jpg, lost.jpg do not exist; nothing is predicted" in shown.err and not shown.out


def test_standard_output_stays_empty_where_a_strict_prediction_fails(
    photo_model, photo_folder, tmp_path, monkeypatch, capsys
):
    *_, model = photo_model
    (tmp_path / "c.png").write_bytes(b"no image")
    photo = str(next(photo_folder.glob("cat/*.jpg")))
    command = ["predict", "--model", str(model), photo, str(tmp_path / "c.png")]
    for strict in (["--strict"], []):
        monkeypatch.setattr(sys, "argv", [*command, *strict])
        with pytest.raises(SystemExit) if strict else nullcontext():
            main()
        shown = capsys.readouterr()
        assert bool(shown.out) is not bool(strict)
        assert "1 of 2 inputs" in shown.err and "c.png: not an image" in shown.err


def test_the_only_trained_configuration_is_the_one_that_is_meant(tmp_path, monkeypatch, capsys):
    def choose(*options: str) -> str | None:
        monkeypatch.setattr(sys, "argv", ["predict", "a.jpg", *options])
        with suppress(SystemExit), trained_model_cli(main, declare_options) as context:
            return str(context.model)
        return None

    monkeypatch.chdir(tmp_path)
    run = Layout(tmp_path).run("wide")
    run.root.mkdir(parents=True)
    (run.root / "params.yaml").write_text("{}")
    assert choose() is None
    assert "none is trained in this project; run `dvc repro train@N" in capsys.readouterr().err
    assert choose("--name", "wide") is None
    missing = "none is trained in run wide; run `python -m flows.training --pipeline NAME --name w"
    assert missing in capsys.readouterr().err
    for name in ("p", "q"):
        (run.results(name)).mkdir(parents=True)
    (run.results("p") / "model.keras").touch()
    assert choose("--name", "wide") == ".throughline/workspaces/wide/runs/p/model.keras"
    (run.results("q") / "model.keras").touch()
    assert choose("--name", "wide") is None
    assert "--pipeline NAME must say which model is meant; trained in run wide are: p, q" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_standard_error_has_what_predict_says_and_no_chatter(photo_model, photo_folder, tmp_path):
    *_, model = photo_model
    shutil.copy(model, tmp_path / "model.keras")
    held_out = HeldOut(split="test", examples=12, constant_metric=0.5, constant_stderr=0.1)
    accuracy = {"metric": "accuracy", "test": {"accuracy": 0.625}}
    replace(made_up(TrainResult), held_out=held_out, **accuracy).write(tmp_path)
    photo = next(photo_folder.glob("cat/*.jpg"))
    command = [sys.executable, "-m", "tasks.predict", "--model", "model.keras", str(photo)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 2
    assert done.stderr == (
        "predict: test accuracy 0.625 on 12 examples is not better beyond chance than a constant"
        " prediction's 0.5\n"
    )


@pytest.mark.parametrize(
    "command", [["verify"], ["profiling", "--pipeline", "p"], ["export", "--pipeline", "p"]]
)
def test_every_command_that_reads_runs_takes_their_name(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stage, *options = command
    out = ["--out", "served"] if stage == "export" else []
    monkeypatch.setattr(sys, "argv", [stage, *options, *out, "--name", "gone"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"tasks.{stage}").main()
    assert "--name gone: there is no such run of this project" in capsys.readouterr().err


def test_images_that_the_model_never_saw_the_like_of_are_refused(arrays, tmp_path):
    layout = Layout(tmp_path)
    (tmp_path / "data").mkdir()
    for part in ("manifest", "shards"):
        (tmp_path / "data" / part).symlink_to(arrays / part)
    params = check(
        {
            "data": {"source": "arrays", "path": "unused"},
            "model": {"name": "mlp", "options": {"width": 8}},
            "pipelines": {"p": ON_DEVICE},
        }
    )
    index = read_shard_index(layout.shards)
    snapshot(index, layout.shards, layout.snapshot, preprocess=params.preprocess)
    model = save_untrained(params, layout)
    values = np.load(layout.manifest / "values.npy")[:2]
    names = ("gray.png", "color.png", "large.png", "values.npy")
    gray, color, large, array = (tmp_path / name for name in names)
    Image.fromarray(values[0, ..., 0]).save(gray)
    picture(1, size=(10, 12)).save(color)
    picture(2, size=(20, 12), mode="L").save(large)
    np.save(array, values)
    rows, _ = predict_rows(model, gray, color, large, array)
    assert [row["error"].partition(";")[0] for row in rows] == [
        "",
        "in color, and the model was trained on gray images",
        "20×12 pixels, and the model takes 10×12",
        "",
        "",
    ]
    assert rows[0]["probability"] == rows[3]["probability"]
    assert export_file(model, tmp_path / "served") == "image: string"
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(tf.constant([gray.read_bytes()]))["probabilities"].numpy()
    assert abs(answer.max() - float(rows[0]["probability"])) < 2e-6
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected"):
        served.serve(tf.constant([large.read_bytes()]))
