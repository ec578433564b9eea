"""The predict command, and the rows that it writes."""

import csv
import importlib
import os
import re
import shutil
import signal
import sys
from argparse import Namespace
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from tasks.predict import declare_options, main
from tests.support.made_up import made_up
from tests.support.project import run_python
from tests.support.saved_models import make_spec
from throughline.config.cli import enter_run, trained_model_cli
from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import labeled
from throughline.data.found import Rejected
from throughline.models.inference import TrainedModel
from throughline.plan.schema import Schema, TableColumns, find_encoding
from throughline.prediction.examples import Example, Wanted
from throughline.prediction.files import list_files
from throughline.prediction.table import Prediction, make_header, make_rows
from throughline.prediction.tables import read_rows
from throughline.results.train import HeldOut, TrainResult
from throughline.settings import DataSettings
from throughline.shared.code_identity import find_source
from throughline.shared.errors import DataNotFound, MissingInput
from throughline.shared.layout import STORE_HOME, Layout

pytestmark = pytest.mark.integration


def test_a_command_reads_the_run_that_is_named(tmp_path, monkeypatch):
    run = tmp_path / ".throughline" / "workspaces" / "wide"
    run.mkdir(parents=True)
    (run / "params.yaml").write_text("{}")
    for folder in (tmp_path, run):
        (folder / "code_of_mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(STORE_HOME, "")
    monkeypatch.delenv(STORE_HOME)
    enter_run(Namespace(name="wide"))
    assert Path.cwd() == run
    assert find_source("code_of_mine") == run / "code_of_mine.py"
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
    held_out = HeldOut(split="test", examples=12, constant_metric=0.5, constant_stderr=0.1)
    accuracy = {"metric": "accuracy", "test": {"accuracy": 0.625}}
    replace(made_up(TrainResult), held_out=held_out, **accuracy).write(run.results("p"))
    shutil.copy(next(photo_folder.glob("cat/*.jpg")), tmp_path / "a.jpg")
    monkeypatch.chdir(tmp_path)
    command = ["python -m tasks.predict", "--pipeline", "p", "a.jpg"]
    monkeypatch.setattr(sys, "argv", [*command, "--name", "wide", "--out", "out.csv"])
    main()
    shown = capsys.readouterr()
    assert "predict: 1 predictions in out.csv" in shown.out
    assert shown.err.endswith(
        "predict: test accuracy 0.625 on 12 examples is not better, beyond chance, than a constant"
        " prediction's 0.5\n"
    )
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert row["input"] == "a.jpg" and row["class"] in ("bird/owl", "cat", "dog")
    (run.results("p") / "model.keras").write_bytes(b"cut off")
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "`dvc repro --force train@NAME`. These are paths in .throughline/workspaces/wide" in said
    assert "with --name wide and its --overlay and --set" in said
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


@pytest.mark.slow
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
    assert "choose a model with --pipeline NAME; trained in run wide: p, q" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command", [["verify"], ["race", "--pipeline", "p"], ["export", "--pipeline", "p"]]
)
def test_every_command_that_reads_runs_takes_their_name(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stage, *options = command
    out = ["--out", "served"] if stage == "export" else []
    monkeypatch.setattr(sys, "argv", [stage, *options, *out, "--name", "gone"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"tasks.{stage}").main()
    assert "--name gone: there is no such run of this project" in capsys.readouterr().err


def read_table(folder, text, *names, **columns):
    """The rows that a file of this text gives to a model of these columns."""
    path = folder / "rows.csv"
    path.write_text(text)
    known = TableColumns(names=names, **columns)
    schema = labeled(array_feature("numbers", (len(names),), "float32", known))
    trained = TrainedModel(model=keras.Model(), spec=make_spec(schema=schema), ops=())
    return list(read_rows(path, trained, Wanted()).items)


def test_cells_become_numbers_and_those_of_categories_their_places_in_the_vocabulary(tmp_path):
    text = "a,b\n1,x\n 2.5 ,y\n,x\n1e99,x\n3,z\n"
    first, second, *others = read_table(tmp_path, text, "a", "b", categories=(("x", "y"),))
    assert isinstance(first, Example) and isinstance(second, Example)
    np.testing.assert_array_equal([first.value, second.value], [[1, 0], [2.5, 1]])
    assert [item.reason for item in others if isinstance(item, Rejected)] == [
        "a is missing",
        "a exceeds the range of float32",
        "b is a category that the training has not seen: 'z'",
    ]


def test_true_and_false_are_numbers_next_to_a_cell_that_is_none(tmp_path):
    one, odd, other, empty = read_table(tmp_path, "a,b\nTrue,1\n?,1\nfalse,1\n,1\n", "a")
    assert [item.value.tolist() for item in (one, other)] == [[1], [0]]
    assert [item.reason for item in (odd, empty)] == ["a is not a number: '?'", "a is missing"]
    mixed, number = read_table(tmp_path, "a\ntrue\n2\n", "a")
    assert (mixed.reason, number.value.tolist()) == ("a is not a number: 'true'", [2])


WHOLE, FRACTION = "1.234 in column a is a whole number", "1.234 in column a is a fraction"


@pytest.mark.parametrize(
    ("decimal", "text", "numbers", "note"),
    [
        (".", "a\n1.234\n", [[1.234]], ""),
        (",", "a;other\n1.234;1\n", [[1234]], WHOLE),
        # A file shows its own mark where the training had commas.
        (",", 'a,b\n"1,5","2,25"\n"2.000","4,0"\n', [[1.5, 2.25], [2000, 4]], ""),
        (",", 'a,b\n"1.234","2.000"\n', [[1.234, 2]], FRACTION),
        (",", "a;b;other\n1.234;2;0,5\n", [[1234, 2]], WHOLE),
        # Where commas divide cells, numbers have points.
        (",", "a,b\n70.500,1\n", [[70.5, 1]], None),
        # Columns that are passed over show nothing.
        (".", 'a,other\n1.5,"2,5"\n', [[1.5]], ""),
    ],
)
def test_numbers_have_the_decimal_mark_of_the_training_or_of_their_file(
    tmp_path, capsys, decimal, text, numbers, note
):
    names = ("a", "b")[: len(numbers[0])]
    rows = read_table(tmp_path, text, *names, decimal=decimal)
    assert [row.value.tolist() for row in rows] == np.float32(numbers).tolist()
    said = capsys.readouterr().err
    assert note is None or (note in said and bool(said) == bool(note))


def test_the_likeliest_classes_are_named_with_their_probabilities():
    spec = make_spec(classes=("cat", "dog"))
    item = Prediction(example=Example(id="1", value=b""), output=np.array([0.25, 0.75]))
    assert make_header(spec) == [
        "input", "class", "probability", "class_2", "probability_2", "error",
    ]  # fmt: skip
    assert list(make_rows(item, spec)) == [["1", "dog", "0.750000", "cat", "0.250000", ""]]
    rejected = Rejected(id="2", reason="empty file")
    assert list(make_rows(rejected, spec)) == [["2", "", "", "", "", "empty file"]]


def test_each_predicted_step_of_a_series_is_a_row():
    columns = TableColumns(names=("a", "b"))
    series = Schema(features=(array_feature("series", (2,), "float32", columns),))
    spec = make_spec(task="regression", schema=series, targets=("b",))
    example = Example(id="s", value=np.zeros(0), row=9)
    item = Prediction(example=example, output=np.array([[1.5], [2.0]]))
    assert list(make_rows(item, spec)) == [["s", "10", "1.5", ""], ["s", "11", "2", ""]]


def test_a_folder_without_images_is_refused_and_other_files_are_counted(tmp_path, capsys):
    settings = DataSettings(source="image_folder", path="unused")
    (tmp_path / "a.svg").touch()
    (tmp_path / "b.txt").touch()
    with pytest.raises(DataNotFound, match="holds no images"):
        list_files(tmp_path, settings, find_encoding("image"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.PNG").touch()
    (found,) = list_files(tmp_path, settings, find_encoding("image")).files
    assert found.id == "sub/c.PNG"
    assert "skipped 1 .svg, 1 .txt: not images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "code_of_end"), [("os.abort()", -signal.SIGABRT), ("sys.exit(3)", 3)]
)
def test_only_tensorflows_chatter_is_kept_from_standard_error(end, code_of_end):
    """By throughline/shared/line_filter.py, where the machine has no program but Python, too."""
    code = (
        """
import os, sys
os.environ["PATH"] = ""
from throughline.shared.chatter import hide_tensorflow_chatter
hide_tensorflow_chatter()
print("ours", file=sys.stderr)
os.write(2, b"I0000 00:00:1795565131.603004 29111 port.cc:153] oneDNN\\n")
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called\\n")
os.write(2, b"E0000 00:00:1795565131.603004 29111 dnn.cc:1] Loaded CuDNN 9.1.0\\n")
os.write(2, b"F0000 00:00:1795565131.603004 29111 why.cc:1] Check failed\\n")
"""
        + end
    )
    done = run_python(code, ends_with=code_of_end)
    shown = re.sub(r"00:\S+ \d+ ", "", done.stderr).splitlines()
    expected = ["ours", "E0000 dnn.cc:1] Loaded CuDNN 9.1.0", "F0000 why.cc:1] Check failed"]
    assert shown == expected


def test_chatter_is_shown_to_who_asks_tensorflow_for_it():
    code = "from throughline.shared.chatter import hide_tensorflow_chatter as hide\nhide()\n"
    code += "import os\nos.write(2, b'I0000 00:00:1795565131.603004 29111 port.cc:153] oneDNN')"
    assert run_python(code, TF_CPP_MIN_LOG_LEVEL="0").stderr.endswith("oneDNN")
