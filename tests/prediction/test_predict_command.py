"""The commands that use trained models: which model is meant, what they print, and where they
refuse.
"""

from __future__ import annotations

import csv
import importlib
import os
import shutil
import sys
from argparse import Namespace
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.predict import declare_options, main
from tests.support.made_up import made_up
from throughline.config.cli import enter_run, trained_model_cli
from throughline.results.train import HeldOut, TrainResult
from throughline.shared.errors import MissingInput
from throughline.shared.layout import STORE_HOME, Layout

pytestmark = pytest.mark.integration


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
        "predict: test accuracy 0.625 on 12 examples is not better beyond chance than a constant"
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
    assert "--pipeline NAME must say which model is meant; trained in run wide are: p, q" in (
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
