"""Predictions with a trained model of images: what it says of the original files is what evaluation
says of the stored examples, in words, and what cannot be used is named.
"""

import json
import shutil
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tasks.predict import report_rejected
from tests.support.predictions import (
    ON_DEVICE,
    evaluate,
    export_file,
    judge_split,
    photo_params,
    predict_rows,
    save_untrained,
    write_evaluation_of,
)
from tests.support.prepared import link_data, take_snapshot
from tests.support.small_data import flip_bit, picture
from throughline.config.params import check
from throughline.data.manifest import read_manifest
from throughline.models.inference import SPEC, open_trained_model
from throughline.models.serving import CLASSES
from throughline.pipelines.read.prepared_data import list_files
from throughline.results.evaluation import Evaluation
from throughline.shared.errors import OutdatedModel, UnexpectedFiles, UntrustedModel, UnusableInputs

pytestmark = pytest.mark.integration


@pytest.fixture
def model(photo_model) -> Path:
    return photo_model[2]


def test_predictions_of_the_files_of_a_split_are_those_of_evaluation(photo_model, photo_folder):
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
    assert list(rows[0]) == [
        "input", "class", "probability", "class_2", "probability_2", "class_3", "probability_3",
        "error",
    ]  # fmt: skip


def losses_of(params, layout, model) -> np.ndarray:
    """The losses of the test split."""
    labels, logits = list_files(layout.manifest, "test").labels, evaluate(params, layout, model)
    entropy = keras.losses.sparse_categorical_crossentropy
    return entropy(np.array(labels), logits, from_logits=True).numpy()


@pytest.fixture(scope="module")
def evaluation(photo_model, tmp_path_factory):
    """What is written about the test split of the photos, and its folder."""
    folder = tmp_path_factory.mktemp("evaluation")
    return write_evaluation_of(*photo_model, folder / "evaluation"), folder


def test_confused_classes_and_losses_are_those_of_evaluation(photo_model, evaluation):
    (_, layout, _), (written, folder) = photo_model, evaluation
    assert Evaluation.read(folder) == written
    listed, logits = list_files(layout.manifest, "test"), evaluate(*photo_model)
    labels, counts = np.array(listed.labels), np.array(written.confusion.counts)
    assert written.examples == counts.sum() == len(labels)
    assert np.trace(counts) == (logits.argmax(axis=1) == labels).sum()
    found = judge_split(*photo_model)["losses"]
    np.testing.assert_allclose(found, losses_of(*photo_model), rtol=1e-4)


def test_an_approximate_configuration_is_evaluated_on_its_pixels(photo_model, photo_folder):
    _, layout, model = photo_model
    decoded = {"read": "shards", "decode": {"ratio": 2}, "postprocess_on": "device"}
    params = photo_params(photo_folder, pipelines={"p": decoded})
    found = judge_split(params, layout, model)["losses"]
    np.testing.assert_allclose(found, losses_of(params, layout, model), rtol=1e-4)
    assert not np.allclose(found, losses_of(*photo_model), rtol=1e-4)


def test_vector_labels_are_judged_as_their_classes(photo_model, photo_folder, evaluation, tmp_path):
    augment = [{"random_crop": {"height": 16, "width": 16}}, "mixup"]
    mixed = photo_params(photo_folder, augment=augment, postprocess=["rescale", "one_hot"])
    written = write_evaluation_of(mixed, *photo_model[1:], tmp_path / "v")
    assert written.confusion == evaluation[0].confusion
    vectors, plain = (judge_split(one, *photo_model[1:]) for one in (mixed, photo_model[0]))
    np.testing.assert_allclose(vectors["losses"], plain["losses"], rtol=1e-4)


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
    picture(2).save(tmp_path / "0.webp")
    for number in range(1, 20):
        shutil.copy(tmp_path / "0.webp", tmp_path / f"{number}.webp")
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
    file = with_spec(
        model, tmp_path, lambda spec: spec["ops"][1]["op"]["resize"].update(shorter=21)
    )
    check_refused(OutdatedModel, "another resize than there is now", file)
    file = with_spec(model, tmp_path, lambda spec: spec["classes"].pop())
    check_refused(OutdatedModel, "gives 3 numbers for 2 classes", file)


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
def test_images_that_the_model_never_saw_the_like_of_are_refused(arrays, tmp_path):
    layout = link_data(arrays, tmp_path, snapshot=False)
    model = {"name": "mlp", "options": {"width": 8}}
    data = {"source": "arrays", "path": "unused"}
    params = check({"data": data, "model": model, "pipelines": {"p": ON_DEVICE}})
    take_snapshot(params, layout)
    model = save_untrained(params, layout)
    values = np.load(layout.manifest / "values.npy")[:2]
    names = ("gray.png", "color.png", "large.png", "values.npy")
    gray, color, large, array = (tmp_path / name for name in names)
    Image.fromarray(values[0, ..., 0]).save(gray)
    picture(1, size=(10, 12)).save(color)
    picture(2, size=(20, 12), mode="L").save(large)
    np.save(array, values)
    rows, _ = predict_rows(model, gray, color, large, array)
    said = [row["error"].partition(",")[0] for row in rows]
    assert said == ["", "in color", "20×12 pixels", "", ""]
    assert rows[0]["probability"] == rows[3]["probability"]
    np.savez(tmp_path / "x.npz", x=values)
    (tmp_path / "x.npz").rename(tmp_path / "X.NPZ")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04nonsense")
    *several, broken = predict_rows(model, tmp_path / "X.NPZ", tmp_path / "broken.npz")[0]
    shown = [float(row["probability"]) for row in rows[3:]]
    assert [float(row["probability"]) for row in several] == pytest.approx(shown, abs=1e-5)
    assert broken["error"].startswith("x cannot be read (")
    np.save(array, np.moveaxis(values, -1, 1))  # channels first, as ingest takes them, too
    turned = [float(row["probability"]) for row in predict_rows(model, array)[0]]
    assert turned == pytest.approx(shown, abs=1e-5)
    assert export_file(model, tmp_path / "served") == "image: string"
    served = tf.saved_model.load(str(tmp_path / "served"))
    answer = served.serve(tf.constant([gray.read_bytes()]))["probabilities"].numpy()
    assert abs(answer.max() - float(rows[0]["probability"])) < 2e-6
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected"):
        served.serve(tf.constant([large.read_bytes()]))
