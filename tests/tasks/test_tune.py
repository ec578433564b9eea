"""The command of a search: what it refuses before anything slow is started, and its answer from an
earlier search.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from tasks.tune import apply, find_key, read_answer, tune
from tests.support.answers import ANSWER
from tests.support.project import ROOT, SMALL, write_params
from tests.support.stack import wait_for
from throughline.config.params import check, load_params
from throughline.results.snapshot import SnapshotCost
from throughline.results.tuning import TuningResult
from throughline.shared.errors import Untunable
from throughline.shared.layout import Layout
from throughline.tuning.budgets import read_budgets
from throughline.tuning.key import FOLDER


@pytest.fixture
def project(layout, tmp_path):
    write_params(tmp_path, SMALL)
    (tmp_path / "data").symlink_to((layout.root / "data").resolve())
    return tmp_path


def command(project, *options):
    return subprocess.run(
        [sys.executable, "-m", "tasks.tune", *options],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_wrong_options_are_one_paragraph(project):
    done = command(project, "--ram", "8", "--epochs", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("InvalidBudget: --ram: a size needs a number and a unit")
    assert "--epochs: expected auto or a whole number from 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project / FOLDER).exists()


def test_several_hosts_are_refused(monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(Untunable, match="TF_CONFIG names several workers"):
        tune(check(SMALL), Layout(), read_budgets())


def test_data_that_is_not_prepared_is_said(tmp_path):
    write_params(tmp_path, SMALL)
    done = command(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("MissingInput: data/shards holds no complete set of shards")


@pytest.mark.slow
def test_the_same_question_is_answered_from_the_earlier_search(project, monkeypatch, tmp_path):
    monkeypatch.chdir(project)
    params, budgets, layout = check(SMALL), read_budgets(), Layout()
    key = find_key(params, layout, budgets)
    answer = ANSWER
    answer.write(project / FOLDER / key)
    assert tune(params, layout, budgets) == answer
    assert read_answer(project / FOLDER / key, 0.3, 300.0) == answer
    lacks = ({"outcome": "undecided"}, {"lost": ["arrays"]}, {"stored": 0.3}, {"time_s": 60.0})
    for lacking in lacks:
        replace(answer, **lacking).write(tmp_path / "other")
        assert read_answer(tmp_path / "other", 1.0, 300.0) is None, (
            "the same question is raced again"
        )
    before = (project / "params.yaml").read_bytes()
    done = command(project, "--apply", "--out", "copy")
    assert done.stdout.splitlines()[-1] == answer.sentence
    assert TuningResult.read(project / "copy") == answer
    after = (project / "params.yaml").read_bytes()
    assert after.startswith(before[: before.index(b"model:")])
    assert load_params(project / "params.yaml").pipelines["tuned"].prefetch == 7
    assert command(project, "--apply").returncode == 0, "what is there is as it was found"
    edited = (project / "params.yaml").read_text().replace("prefetch: 7", "prefetch: 8")
    (project / "params.yaml").write_text(edited)
    refused = command(project, "--apply")
    assert refused.returncode == 2 and "is there and says something else" in refused.stderr
    assert refused.stdout.splitlines()[-1] == answer.sentence


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_second_search_waits_and_one_that_is_killed_or_interrupted_goes_on(project, layout):
    pipelines = {"naive": SMALL["pipelines"]["naive"]}  # each one more is a process more
    write_params(project, {**SMALL, "batch_size": 4, "pipelines": pipelines})
    (project / "data").unlink()
    (project / "data").mkdir()
    for name in ("manifest", "shards", "snapshot"):
        (project / "data" / name).symlink_to((layout.root / "data" / name).resolve())
    cost = SnapshotCost(seconds=0.5, examples_per_s=400.0, bytes_per_example=128.0)
    cost.write(project / "data")
    first = start(project)
    lines = iter(first.stdout.readline, "")
    assert any(line.startswith("heat own") for line in lines)
    below = psutil.Process(first.pid).children(recursive=True)
    assert below
    second = start(project)
    assert f"waits: process {first.pid} of user" in second.stdout.readline()
    interrupt(second)
    wait_for(lambda: list_rounds(project), 120)
    below += psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    first.stdout.close()
    assert not psutil.wait_procs(below, timeout=20)[1], "nothing stays, stopped ones neither"
    raced = list_rounds(project)
    assert raced
    again = start(project)
    wait_for(lambda: len(list_rounds(project)) > len(raced), 120)
    interrupt(again, signal.SIGTERM)
    assert list_rounds(project)[: len(raced)] == raced, "it has gone on there"
    assert not list(project.glob(".throughline/scratch/*"))


def list_rounds(project):
    """The rounds that the journal of a project's one search has."""
    journals = project.glob(f"{FOLDER}/*/journal.json")
    return [one for path in journals for one in json.loads(path.read_bytes())["rounds"]]


def interrupt(process, number=signal.SIGINT):
    process.send_signal(number)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    assert rest.splitlines()[-1] == "stopped; the same command goes on where it was"


def start(project):
    command = [sys.executable, "-m", "tasks.tune", "--time", "1min"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=project, env=variables, text=True, bufsize=1, **streams)


def test_nothing_is_applied_to_a_file_that_has_changed_meanwhile(tmp_path, capsys):
    path = tmp_path / "params.yaml"
    path.write_text("pipelines:\n  naive: {read: shards}\n")
    with pytest.raises(Untunable, match="was changed during the search"):
        apply(ANSWER, path, "pipelines: {}\n")
    apply(replace(ANSWER, outcome="kept"), path, path.read_text())
    assert "stays as it is: there is nothing better" in capsys.readouterr().out
    apply(replace(ANSWER, outcome="undecided"), path, path.read_text())
    assert "is not decided" in capsys.readouterr().out
    assert path.read_text() == "pipelines:\n  naive: {read: shards}\n"
