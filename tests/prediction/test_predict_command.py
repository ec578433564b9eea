"""The predict command, and the rows that it writes."""

import csv
import importlib
import os
import re
import shutil
import signal
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from tasks.predict import declare_options, main
from tests.support.made_up import made_up
from tests.support.project import run_python
from tests.support.saved_models import make_spec
from tests.support.small_data import write_files
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
    run = Layout(tmp_path).run("wide").root
    write_files(run, {"params.yaml": "{}", "code_of_mine.py": ""})
    write_files(tmp_path, {"code_of_mine.py": ""})
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


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A function that runs a command in the test's folder: its exit code and both streams."""
    monkeypatch.chdir(tmp_path)

    def run(*options, main=main):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, options)])
        with suppress(SystemExit):
            main()
            return 0, *capsys.readouterr()
        return 2, *capsys.readouterr()

    return run


def test_predict_uses_the_model_of_the_named_run(photo_model, photo_folder, tmp_path, command):
    run = Layout(tmp_path).run("wide")
    run.results("p").mkdir(parents=True)
    (run.root / "params.yaml").write_text("{}")
    shutil.copy(photo_model[2], run.results("p") / "model.keras")
    held_out = HeldOut(split="test", examples=12, constant_metric=0.5, constant_stderr=0.1)
    accuracy = {"metric": "accuracy", "test": {"accuracy": 0.625}}
    replace(made_up(TrainResult), held_out=held_out, **accuracy).write(run.results("p"))
    shutil.copy(next(photo_folder.glob("cat/*.jpg")), tmp_path / "a.jpg")
    options = ["--pipeline", "p", "a.jpg", "--name", "wide", "--out", "out.csv"]
    code, out, said = command(*options)
    assert code == 0 and "predict: 1 predictions in out.csv" in out
    assert said.endswith(
        "predict: test accuracy 0.625 on 12 examples is not better, beyond chance, than a constant"
        " prediction's 0.5\n"
    )
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert row["input"] == "a.jpg" and row["class"] in ("bird/owl", "cat", "dog")
    (run.results("p") / "model.keras").write_bytes(b"cut off")
    code, _, said = command(*options)
    assert code == 2
    assert "`dvc repro --force train@NAME`. These are paths in .throughline/workspaces/wide" in said
    assert "with --name wide and its --overlay and --set" in said
    code, _, said = command(*options[:3])
    assert code == 2 and "runs/p/model.keras does not exist; run `dvc repro train@p`" in said


def test_paths_that_do_not_exist_are_refused_before_the_model_is_opened(command):
    for name in ("model.keras", "there.jpg"):
        Path(name).touch()
    paths = ["gone.jpg", "there.jpg", "lost.jpg"]
    code, out, said = command("--model", "model.keras", *paths)
    assert code == 2 and not out
    assert "gone.jpg, lost.jpg do not exist; nothing is predicted" in said


@pytest.mark.slow
def test_standard_output_stays_empty_where_a_strict_prediction_fails(
    photo_model, photo_folder, tmp_path, command
):
    (tmp_path / "c.png").write_bytes(b"no image")
    photo = next(photo_folder.glob("cat/*.jpg"))
    for strict in (["--strict"], []):
        code, out, said = command("--model", photo_model[2], photo, tmp_path / "c.png", *strict)
        assert (code == 2, not out) == (bool(strict),) * 2
        assert "1 of 2 inputs" in said and "c.png: not an image" in said


def test_the_only_trained_configuration_is_the_one_that_is_meant(tmp_path, command):
    chosen = []

    def choose(*options):
        def note():
            with trained_model_cli(main, declare_options) as context:
                chosen.append(str(context.model))

        return command("a.jpg", *options, main=note)[2]

    run = Layout(tmp_path).run("wide")
    run.root.mkdir(parents=True)
    (run.root / "params.yaml").write_text("{}")
    assert "none is trained in this project; run `dvc repro train@N" in choose()
    missing = "none is trained in run wide; run `python -m flows.training --pipeline NAME --name w"
    assert missing in choose("--name", "wide")
    for name in ("p", "q"):
        run.results(name).mkdir(parents=True)
    (run.results("p") / "model.keras").touch()
    choose("--name", "wide")
    assert chosen == [".throughline/workspaces/wide/runs/p/model.keras"]
    (run.results("q") / "model.keras").touch()
    said = choose("--name", "wide")
    assert "choose a model with --pipeline NAME; trained in run wide: p, q" in said


def test_every_command_that_reads_runs_takes_their_name(command):
    pipeline = ["--pipeline", "p"]
    for stage, options in (
        ("verify", []),
        ("race", pipeline),
        ("export", [*pipeline, "--out", "served"]),
    ):
        called = importlib.import_module(f"tasks.{stage}").main
        code, _, said = command(*options, "--name", "gone", main=called)
        assert code == 2 and "--name gone: there is no such run of this project" in said


COMMAS, XY = {"decimal": ","}, {"categories": (("x", "y"),)}
WHOLE, FRACTION = "1.234 in column a is a whole number", "1.234 in column a is a fraction"
MISSING, TRUE = "a is missing", "a is not a number: 'true'"
UNSEEN = "b is a category that the training has not seen: 'z'"


@pytest.mark.parametrize(
    ("names", "trained", "text", "expected", "note"),
    [
        ("ab", XY, "a,b\n1,x\n 2.5 ,y\n,x\n3,z\n", [[1, 0], [2.5, 1], MISSING, UNSEEN], ""),
        ("a", {}, "a,b\n1,x\n1e99,x\n", [[1], "a exceeds the range of float32"], ""),
        # Words are numbers, too, but not next to numbers.
        ("a", {}, "a,b\nTrue,1\n?,1\nfalse,1\n", [[1], "a is not a number: '?'", [0]], ""),
        ("a", {}, "a\ntrue\n2\n", [TRUE, [2]], ""),
        ("a", COMMAS, "a;other\n1.234;1\n", [[1234]], WHOLE),
        # A file shows its own mark where the training had commas.
        ("ab", COMMAS, 'a,b\n"1,5","2,25"\n"2.000","4,0"\n', [[1.5, 2.25], [2000, 4]], ""),
        ("ab", COMMAS, 'a,b\n"1.234","2.000"\n', [[1.234, 2]], FRACTION),
        ("ab", COMMAS, "a;b;other\n1.234;2;0,5\n", [[1234, 2]], WHOLE),
        # Where commas divide cells, numbers have points.
        ("ab", COMMAS, "a,b\n70.500,1\n", [[70.5, 1]], None),
        # Columns that are passed over show nothing.
        ("a", {}, 'a,other\n1.5,"2,5"\n', [[1.5]], ""),
    ],
)
def test_cells_become_numbers_as_they_were_in_training(
    tmp_path, capsys, names, trained, text, expected, note
):
    columns = TableColumns(names=tuple(names), **trained)
    schema = labeled(array_feature("numbers", (len(names),), "float32", columns))
    model = TrainedModel(model=keras.Model(), spec=make_spec(schema=schema), ops=())
    path = write_files(tmp_path, {"rows.csv": text}) / "rows.csv"
    for row, wanted in zip(read_rows(path, model, Wanted()).items, expected, strict=True):
        found = row.reason if isinstance(row, Rejected) else row.value.tolist()
        assert found == (wanted if isinstance(wanted, str) else np.float32(wanted).tolist())
    said = capsys.readouterr().err
    assert note is None or (note in said and bool(said) == bool(note))


def test_the_likeliest_classes_are_named_with_their_probabilities():
    spec = make_spec(classes=("cat", "dog"))
    item = Prediction(example=Example(id="1", value=b""), output=np.array([0.25, 0.75]))
    rows = [make_header(spec), *make_rows(item, spec)]
    rows += make_rows(Rejected(id="2", reason="empty file"), spec)
    assert [",".join(row) for row in rows] == [
        "input,class,probability,class_2,probability_2,error",
        "1,dog,0.750000,cat,0.250000,",
        "2,,,,,empty file",
    ]


def test_each_predicted_step_of_a_series_is_a_row():
    columns = TableColumns(names=("a", "b"))
    series = Schema(features=(array_feature("series", (2,), "float32", columns),))
    spec = make_spec(task="regression", schema=series, targets=("b",))
    example = Example(id="s", value=np.zeros(0), row=9)
    item = Prediction(example=example, output=np.array([[1.5], [2.0]]))
    assert list(make_rows(item, spec)) == [["s", "10", "1.5", ""], ["s", "11", "2", ""]]


def test_a_folder_without_images_is_refused_and_other_files_are_counted(tmp_path, capsys):
    how = DataSettings(source="image_folder", path="unused"), find_encoding("image")
    write_files(tmp_path, {"a.svg": "", "b.txt": ""})
    with pytest.raises(DataNotFound, match="holds no images"):
        list_files(tmp_path, *how)
    write_files(tmp_path, {"sub/c.PNG": ""})
    (found,) = list_files(tmp_path, *how).files
    assert found.id == "sub/c.PNG"
    assert "skipped 1 .svg, 1 .txt: not images" in capsys.readouterr().err


CHATTER = """
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


@pytest.mark.parametrize(
    ("end", "code_of_end"), [("os.abort()", -signal.SIGABRT), ("sys.exit(3)", 3)]
)
def test_only_tensorflows_chatter_is_kept_from_standard_error(end, code_of_end):
    """By throughline/shared/line_filter.py, where the machine has no program but Python, too."""
    done = run_python(CHATTER + end, ends_with=code_of_end)
    shown = re.sub(r"00:\S+ \d+ ", "", done.stderr).splitlines()
    assert shown == ["ours", "E0000 dnn.cc:1] Loaded CuDNN 9.1.0", "F0000 why.cc:1] Check failed"]


def test_chatter_is_shown_to_who_asks_tensorflow_for_it():
    assert "oneDNN" in run_python(CHATTER, TF_CPP_MIN_LOG_LEVEL="0").stderr
