"""What a command asks for is checked as a whole before its flow starts, and a user's mistake has no
traceback.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from flows.orchestration.cli import (
    RunOptions,
    compose_measure_again,
    configure_logging,
    flow_command,
)
from flows.orchestration.stages import list_profiles
from flows.run.access_policy import CONFINED
from flows.run.parameters import OWN_PIPELINES, select_pipelines
from flows.run.resolution import resolve, resolved_changes
from tests.support.project import SMALL, write_params
from throughline.config.params_file import read_yaml
from throughline.shared.errors import (
    InvalidParams,
    MissingInput,
    UnknownPipeline,
    WorkspaceProblem,
)


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    write_params(tmp_path, SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_flow_of_the_block_has_the_parameters_that_were_checked(project):
    (project / "more.yaml").write_text("train: {epochs: 5}\nbatch_size: 8\n")
    with resolved_changes(["batch_size=16"], [Path("more.yaml")], "mine", ["naive"]) as changes:
        shared = resolve(project, changes, ["naive"])
        assert (shared.params.train.epochs, shared.params.batch_size) == (5, 16)
        assert resolve(project, changes, ["naive"]) is shared
    assert resolve(project, changes, ["naive"]) is not shared


@pytest.mark.parametrize(
    ("overrides", "overlay", "name", "error", "reason"),
    [
        (["epochs"], None, None, InvalidParams, "--set: 'epochs' is not KEY=VALUE"),
        (["[a]=1"], None, None, InvalidParams, r"'\[a\]=1' is not KEY=VALUE"),
        (["a b=1"], None, None, InvalidParams, "'a b=1' is not KEY=VALUE"),
        (["pipelines.[1]=2"], None, None, InvalidParams, "is not KEY=VALUE"),
        (["postprocess={a: 1}"], None, None, InvalidParams, "postprocess: expected a list of ops"),
        (["preprocess=decode"], None, None, InvalidParams, "preprocess: expected a list of ops"),
        (["train.seed=4294967296"], None, None, InvalidParams, r"train\.seed: .*less than"),
        (["train.epoch=1"], None, None, InvalidParams, r"train\.epoch is not a field"),
        (None, "absent.yaml", None, InvalidParams, r"absent\.yaml"),
        (None, None, "../out", WorkspaceProblem, "cannot be the name of a run"),
        (None, None, "mine", WorkspaceProblem, "--name mine is for a run with changes"),
        (None, "wrong.yaml", None, InvalidParams, r"wrong\.yaml: train\.epoch is not a field"),
    ],
)
def test_nothing_starts_with_a_mistake(project, overrides, overlay, name, error, reason):
    (project / "wrong.yaml").write_text("train: {epoch: 3}\n")
    with (
        pytest.raises(error, match=reason),
        resolved_changes(overrides, [Path(overlay)] if overlay else None, name, []),
    ):
        pytest.fail("the block was entered")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MissingInput("run `dvc repro shard`"), "MissingInput: run `dvc repro shard`"),
        (KeyError("label"), "the run failed"),
    ],
)
def test_only_bugs_keep_their_traceback_in_the_log_of_a_run(monkeypatch, caplog, error, text):
    for key in ("LOGGING_LEVEL", "SERVER_ANALYTICS_ENABLED", "LOGGING_SERVER_LEVEL"):
        monkeypatch.setenv(f"PREFECT_{key}", "ERROR")
    configure_logging()
    logger = logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "propagate", True)
    logger.addHandler(caplog.handler)
    try:
        with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
            logger.error("the run failed", exc_info=error)
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records[0].getMessage() == text
    assert bool(caplog.records[0].exc_info) is isinstance(error, KeyError)


def test_configurations_that_a_command_names_are_the_run_s_even_if_all_of_params_yaml(monkeypatch):
    monkeypatch.delenv(CONFINED, raising=False)
    assert select_pipelines(OWN_PIPELINES) == OWN_PIPELINES and OWN_PIPELINES
    monkeypatch.setenv(CONFINED, "1")
    assert select_pipelines(OWN_PIPELINES) == [], "what the form shows before anybody chooses"
    assert select_pipelines(OWN_PIPELINES[:1]) == OWN_PIPELINES[:1]


def test_overlays_are_merged_in_their_order(project):
    """Even where both have the same key."""
    texts = ("train: {epochs: 7}\nbatch_size: 8\n", "train: {seed: 3}\nbatch_size: 4\n")
    files = [project / f"{number}.yaml" for number, _ in enumerate(texts)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    with resolved_changes(None, files, None, []) as changes:
        params = resolve(project, changes).params
    assert (params.train.epochs, params.train.seed, params.batch_size) == (7, 3, 4)


def test_what_a_run_would_have_is_shown_and_nothing_runs(project, capsys):
    options = RunOptions(set_=["train.epochs=9"], overlay=None, name=None, show=True)
    with pytest.raises(SystemExit) as ended, flow_command("training", ["naive"], options):
        pytest.fail("the block was entered")
    assert ended.value.code == 0
    (project / "shown.yaml").write_text(capsys.readouterr().out)
    assert read_yaml(project / "shown.yaml")["train"]["epochs"] == 9


def test_the_command_that_measures_again_is_the_same_but_for_what_it_measures():
    said = compose_measure_again(
        "comparison", ["--set", "data.path=my data", "--measure-again", "a"], ["b", "c"]
    )
    assert said.endswith(
        ": python -m flows.comparison --set 'data.path=my data' --measure-again b --measure-again c"
    )


def test_only_configurations_of_the_run_are_measured_again():
    assert list_profiles(["naive"], ["naive", "optimized"]) == ["profile@naive"]
    with pytest.raises(UnknownPipeline, match=r"--measure-again nave: .*did you mean naive"):
        list_profiles(["nave"], ["naive", "optimized"])
