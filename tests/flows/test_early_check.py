"""What a command is asked for is looked at before it imports anything that takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from flows.run.early_check import check_started_command
from tests.support.project import ROOT, SMALL, write_params
from throughline.config.table_check import READ_BYTES, check_table
from throughline.settings import DataSettings, WindowSettings
from throughline.shared.errors import InvalidParams, UnreadableSource


def start(folder, module, *options):
    """What `python -m` prints, and which libraries it has imported in the end."""
    code = (
        "import atexit, runpy, sys\n"
        "slow = {'mlflow', 'pandas', 'prefect', 'tensorflow'}\n"
        "atexit.register(lambda: print('imported', *sorted(slow & {*sys.modules})))\n"
        f"sys.orig_argv = [sys.executable, '-m', {module!r}, *sys.argv[1:]]\n"
        "sys.argv = ['-m', *sys.argv[1:]]\n"
        f"import {module.partition('.')[0]}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "options", "said"),
    [
        ("flows.training", ["--pipeline", "nave"], "--pipeline nave: there is no such config"),
        ("flows.comparison", ["--set", "train.epoch=2"], "train.epoch is not a field"),
        ("flows.prepare_data", ["--name", "mine"], "--name mine is for a run with changes"),
        ("flows.comparison", [], "data.path: nowhere does not exist"),
        ("tasks.train", ["--pipeline", "nave"], "did you mean naive?"),
    ],
)
def test_mistakes_are_said_before_anything_slow_is_imported(tmp_path, module, options, said):
    write_params(tmp_path, {**SMALL, "data": {"source": "image_folder", "path": "nowhere"}})
    done = start(tmp_path, module, *options)
    assert done.returncode == 2 and said in done.stderr
    assert done.stdout == "imported\n"


@pytest.mark.parametrize("options", [["--help"], ["--set"], ["--show"]])
def test_what_the_command_itself_answers_is_left_to_it(tmp_path, options):
    write_params(tmp_path, {**SMALL, "data": {"source": "image_folder", "path": "nowhere"}})
    assert start(tmp_path, "flows.comparison", *options).returncode == 0


def test_a_table_is_read_before_the_run_unless_ingest_has_read_it_or_it_is_large(tmp_path):
    (tmp_path / "params.yaml").touch()
    table = tmp_path / "rows.csv"
    table.write_text("size,kind\n1,a\n2,b\n")
    data = DataSettings(source="table", path="rows.csv", label_column="kin", ignore=["colour"])
    with pytest.raises(UnreadableSource, match="2 problems"):
        check_table(tmp_path, data, changed=False)
    manifest = tmp_path / "data" / "manifest" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    os.utime(manifest, (time.time() + 9,) * 2)
    check_table(tmp_path, data, changed=False)
    with pytest.raises(UnreadableSource):
        check_table(tmp_path, data, changed=True)
    os.truncate(table, READ_BYTES + 1)
    check_table(tmp_path, data, changed=True)


def test_a_table_of_texts_is_known_by_its_header(tmp_path):
    (tmp_path / "params.yaml").touch()
    (tmp_path / "texts.csv").write_text("words,label\na,b\n")
    data = DataSettings(source="text_table", path="texts.csv")
    with pytest.raises(UnreadableSource, match="no column text"):
        check_table(tmp_path, data, changed=True)


def test_a_series_is_long_enough_for_its_windows(tmp_path):
    (tmp_path / "params.yaml").touch()
    rows = "".join(f"{number},{number % 7}.5\n" for number in range(120))
    (tmp_path / "power.csv").write_text(f"hour,load\n{rows}")
    data = DataSettings(source="time_series", path="power.csv", time_column="hour")
    check_table(tmp_path, data, changed=True, window=WindowSettings(length=8))
    with pytest.raises(InvalidParams, match="the validation split has 12 time steps, fewer than"):
        check_table(tmp_path, data, changed=True, window=WindowSettings(length=24))
    with pytest.raises(InvalidParams, match="lod is not a column; known: load"):
        check_table(tmp_path, data, changed=True, window=WindowSettings(length=8, targets=["lod"]))


def test_the_parameters_of_the_check_are_the_flows(tmp_path, monkeypatch):
    from flows.run.resolution import resolve, resolve_command

    (tmp_path / "photos").mkdir()
    write_params(tmp_path, {**SMALL, "data": {"source": "image_folder", "path": "photos"}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["-m", "--pipeline", "naive", "--set", "train.epochs=9"])
    check_started_command()
    changes, resolved = resolve_command(["train.epochs=9"], [], None, ["naive"])
    assert resolve(tmp_path, changes, ["naive"]) is resolved
