"""The command of a search: what it refuses, and its answer from an earlier search."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import psutil
import pytest

from tasks import tune as stage
from tasks.tune import apply, find_key, read_answer, tune
from tests.support.answers import ANSWER
from tests.support.kills import signaled_at
from tests.support.prepared import link_data
from tests.support.project import ROOT, SMALL, TOGETHER, write_params
from tests.support.stack import wait_for
from throughline.config.params import check, load_params
from throughline.results.snapshot import SnapshotCost
from throughline.results.tuning import TuningResult
from throughline.shared.errors import Untunable
from throughline.shared.layout import Layout
from throughline.tuning.budgets import find_limits, read_budgets
from throughline.tuning.question import FOLDER


@pytest.fixture
def project(layout, tmp_path):
    write_params(tmp_path, SMALL)
    link_data(layout.root / "data", tmp_path)
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    """A function that runs the command with options; returns its exit code and both streams."""
    monkeypatch.setattr(stage, "exit_on_sigterm", lambda: None)  # of the tests' process

    def run(project, *options):
        monkeypatch.chdir(project)
        monkeypatch.setattr(sys, "argv", ["python -m tasks.tune", *options])
        capsys.readouterr()
        code = 0
        try:
            stage.main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return run


def test_wrong_options_are_one_paragraph_and_data_that_is_not_prepared_is_said(tmp_path, command):
    write_params(tmp_path, SMALL)
    code, _, said = command(tmp_path, "--ram", "8", "--epochs", "0")
    assert code == 2 and said.startswith("InvalidBudget: --ram: ") and "--epochs: " in said
    assert not (tmp_path / FOLDER).exists()
    code, _, said = command(tmp_path)
    assert code == 2 and said.startswith("MissingInput: data/shards holds no complete set")


@pytest.mark.integration
def test_the_same_question_is_answered_from_the_earlier_search(
    project, command, monkeypatch, tmp_path
):
    monkeypatch.chdir(project)
    params, budgets, layout, answer = check(SMALL), read_budgets(), Layout(), ANSWER
    key = find_key(params, layout, budgets)
    answer.write(project / FOLDER / key)
    assert tune(params, layout, budgets) == answer
    limits = find_limits(budgets, project)
    assert read_answer(project / FOLDER / key, 0.3, 300.0, limits) == answer
    large = replace(answer.needed, ram_bytes=2.0**60)
    lacks = ({"outcome": "undecided"}, {"lost": ["arrays"]}, {"stored": 0.3}, {"time_s": 60.0},
             {"needed": large}, {"refused": [large, answer.needed]})  # fmt: skip
    for lacking in lacks:
        replace(answer, **lacking).write(tmp_path / "other")
        found = read_answer(tmp_path / "other", 1.0, 300.0, limits)
        assert found is None, "it is raced again"
    path = project / "params.yaml"
    before = path.read_text()
    _, said, _ = command(project, "--apply", "--out", "copy")
    assert said.splitlines()[-1] == answer.sentence
    assert TuningResult.read(project / "copy") == answer
    assert path.read_text().startswith(before[: before.index("model:")])
    assert load_params(path).pipelines["tuned"].prefetch == 7
    assert command(project, "--apply")[0] == 0, "what is there is as it was found"
    path.write_text(path.read_text().replace("prefetch: 7", "prefetch: 8"))
    code, said, problem = command(project, "--apply")
    assert code == 2 and "exists with other settings" in problem
    assert said.splitlines()[-1] == answer.sentence


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_search_waits_and_one_that_is_killed_or_interrupted_goes_on(project, start):
    pipelines = {"naive": SMALL["pipelines"]["naive"]}  # each one more is a process more
    write_params(project, {**SMALL, "batch_size": 4, "pipelines": pipelines})
    cost = SnapshotCost(seconds=0.5, examples_per_s=400.0, bytes_per_example=128.0)
    cost.write(project / "data")
    first = start(signal.SIGSTOP)
    process = psutil.Process(first.pid)
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED, 480)  # others may measure first
    below = process.children(recursive=True)
    assert below, "contestants"
    second = start(signal.SIGKILL)
    assert f"waits: process {first.pid} of user" in second.stdout.readline()
    second.send_signal(signal.SIGINT)
    assert_stopped(second, signal.SIGINT)
    first.kill()
    first.wait()
    assert not psutil.wait_procs(below, timeout=240)[1], "nothing stays, stopped ones neither"
    raced = list_rounds(project)
    assert raced
    assert_stopped(start(signal.SIGTERM), signal.SIGTERM)
    again = list_rounds(project)
    assert again[: len(raced)] == raced and len(again) > len(raced), "it has gone on there"
    assert not list(project.glob(".throughline/scratch/*"))


def list_rounds(project):
    """The rounds that the journal of a project's one search has."""
    (journal,) = project.glob(f"{FOLDER}/*/journal.json")
    return json.loads(journal.read_bytes())["rounds"]


def assert_stopped(process, number):
    rest = process.communicate(timeout=300)[0]
    assert process.returncode == 128 + number
    assert rest.splitlines()[-1] == "stopped; the same command continues from here"


@pytest.fixture
def start(project):
    """Starts a search that sends itself a signal at the twelfth write of its journal."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start_one(number: signal.Signals) -> subprocess.Popen[str]:
        command = signaled_at(12, "journal.json", number, "tasks.tune", "--time", "1min")
        search = subprocess.Popen(command, cwd=project, env=variables, bufsize=1, **TOGETHER)
        started.enter_context(search)
        started.callback(search.kill)  # a stopped one would hold the machine forever
        return search

    with ExitStack() as started:
        yield start_one


def test_nothing_is_applied_to_a_file_that_has_changed_meanwhile(tmp_path, capsys):
    path, text = tmp_path / "params.yaml", "pipelines:\n  naive: {read: shards}\n"
    path.write_text(text)
    with pytest.raises(Untunable, match="was changed during the search"):
        apply(ANSWER, path, "pipelines: {}\n")
    for outcome, said in (("kept", "there is nothing better"), ("undecided", "it is undecided")):
        apply(replace(ANSWER, outcome=outcome), path, text)
        assert f"stays as it is: {said}" in capsys.readouterr().out
    assert path.read_text() == text
