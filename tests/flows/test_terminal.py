"""What a flow shows on a terminal: stages as a list, a failure once, everything else in a file."""

import asyncio
import io
import json
import logging
import re

import pytest
from prefect.logging.loggers import PrefectLogAdapter
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.states import Cancelled, exception_to_failed_state
from rich.console import Console

from flows.orchestration import terminal
from flows.orchestration.artifacts import failure_reason
from flows.orchestration.stages import _should_retry
from flows.orchestration.terminal import (
    KEPT_LOGS,
    LOG_ONLY,
    LOGS,
    RAN,
    STAGE_EVENT,
    STAGE_OUTPUT,
    STARTED,
    StageView,
    show_on_terminal,
)
from tests.support.project import ROOT
from throughline.shared.errors import DataNotFound, StageFailed
from throughline.shared.failures import FAILURE_FILE, Failure, report_user_errors


def test_a_fact_fills_three_lines_of_the_terminal_at_most_and_is_cut_between_its_items():
    out = io.StringIO()
    view = StageView(Console(file=out, width=60))
    readings = " · ".join(f"column_{number} category (12 values)" for number in range(9))
    for line in ("✓ 9 columns", f"· {readings}"):
        view.handle(of_stage("ingest", STAGE_OUTPUT, line))
    view.handle(of_stage("ingest", STAGE_EVENT, RAN))
    lines = out.getvalue().splitlines()[1:]
    assert len(lines) == 3 and all(len(line) <= 60 for line in lines)
    assert lines[0] == "    column_0 category (12 values) ·", "an item is not parted"
    assert lines[2].endswith(" …")


@pytest.fixture
def stage():
    """The logger that a task run named `ingest` has."""
    logger = logging.getLogger("prefect.task_runs")
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield PrefectLogAdapter(logger, extra={"task_run_name": "ingest"})


def logs(folder):
    return sorted((folder / LOGS).glob("*.log"))


def test_stages_are_lines_with_their_results_and_everything_is_in_the_log(tmp_path, capsys, stage):
    with show_on_terminal("training", tmp_path):
        stage.info("ingest starts", extra={STAGE_EVENT: STARTED})
        lines = ("[60,000] of 70,000", "! 3 × corrupt [JPEG]", "· resuming")
        for line in (*lines, "✓ 70,000 examples [of 3]", "· price number · day date"):
            stage.info(line, extra={STAGE_OUTPUT: True})
        stage.info("a traceback", extra={LOG_ONLY: True})
        stage.info("ingest ran", extra={STAGE_EVENT: RAN})
        stage.info("ingest is up to date", extra={STAGE_EVENT: "up to date"})
        stage.warning("look [here]")
        logging.getLogger("somebody").warning("mind this")
        logging.getLogger("somebody").info("and not this")
        # A line that Prefect logs is of a file of Prefect's, which may be below the project.
        own = {"pathname": str(ROOT / ".venv/lib/python3.11/site-packages/prefect/engine.py")}
        own |= {"name": "prefect.task_runs", "levelno": 40, "msg": "Finished in state Failed()"}
        logging.getLogger("prefect.task_runs").handle(logging.makeLogRecord(own))
    shown = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"! ingest +3 × corrupt \[JPEG\]", shown[0]), "a problem, at once"
    assert shown[1].split() == ["·", "ingest", "resuming"], "a fact, at once"
    assert re.fullmatch(r"✓ ingest +0\.\d s  70,000 examples \[of 3\]", shown[2])
    assert shown[3] == "    price number · day date", "what is known of the result, below it"
    assert shown[4].split() == ["·", "ingest", "up", "to", "date"]
    assert shown[5:] == ["look [here]", "mind this"]
    (log,) = logs(tmp_path)
    text = log.read_text()
    assert "prefect.task_runs ingest | a traceback" in text and "Finished in state" in text
    assert "ingest | [60,000] of 70,000" in text, "details"


def test_in_a_log_a_long_stage_shows_at_ever_longer_intervals_that_it_is_at_work(monkeypatch):
    screen, now = io.StringIO(), 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    view = StageView(Console(file=screen, width=80))
    view.handle(of_stage("train@naive", STAGE_EVENT, STARTED))
    for now in range(0, 400, 10):
        view.handle(of_stage("train@naive", STAGE_OUTPUT, f"epoch {now}"))
    signs = [line.split() for line in screen.getvalue().splitlines()]
    assert signs == [["train", "naive", f"{at}", "s", "epoch", f"{at}"] for at in (60, 120, 240)]


def of_stage(stage, event, text):
    """A record of a stage, as its task logs it."""
    record = {"name": "x", "levelno": 20, "msg": text, "task_run_name": stage, event: text}
    return logging.makeLogRecord(record)


def test_on_a_terminal_the_running_stage_is_one_line():
    screen = io.StringIO()
    view = StageView(Console(file=screen, force_terminal=True, width=100))
    with view.progress:
        for event, text in ((STAGE_EVENT, STARTED), (STAGE_OUTPUT, "[60,000] of 70,000")):
            view.handle(of_stage("ingest", event, text))
        view.progress.refresh()
        assert "[60,000] of 70,000" in screen.getvalue()
    assert screen.getvalue().count("\n") <= 3, "it is drawn over"


@pytest.mark.parametrize("debug", [False, True])
def test_a_bug_is_one_line_and_its_traceback_is_in_the_log(tmp_path, capsys, debug):
    with pytest.raises(SystemExit) as ended, show_on_terminal("training", tmp_path, debug=debug):
        raise RuntimeError("odd")
    shown = capsys.readouterr().err
    assert ended.value.code == 1
    assert shown.startswith("RuntimeError: odd\n") and "bug" in shown
    assert ("Traceback" in shown) == debug
    (log,) = logs(tmp_path)
    assert str(log) in shown and "Traceback" in log.read_text()


def test_what_a_user_can_repair_is_told_without_a_log(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"^2$"), show_on_terminal("training", tmp_path):
        raise DataNotFound("data.path: x does not exist")
    assert capsys.readouterr().err == "DataNotFound: data.path: x does not exist\n"
    assert logs(tmp_path) == []


def test_a_stage_fails_in_its_own_words_of_which_the_state_of_a_run_has_the_first_line(
    tmp_path, capsys, stage
):
    failure = Failure(kind="TooManyRejects", message="12 of 100 examples:\n  - 12 × corrupt")
    error = StageFailed(f"ingest: {failure.first_line}", stage="ingest", failure=failure)
    with pytest.raises(SystemExit, match=r"^2$"), show_on_terminal("training", tmp_path):
        stage.info("ingest starts", extra={STAGE_EVENT: STARTED})
        raise error
    (log,) = logs(tmp_path)
    assert capsys.readouterr().err == f"ingest failed: {failure}\n\nLog: {log}\n"
    state = asyncio.run(exception_to_failed_state(error))
    said = "ingest: TooManyRejects: 12 of 100 examples:"
    assert state.message == f"StageFailed: {said}"
    assert failure_reason(state) == f"{said}\n  - 12 × corrupt"
    assert failure_reason(Cancelled(message="by hand")) == "by hand"


def test_old_logs_go_and_all_that_stages_print_is_shown_on_demand(tmp_path, capsys, stage):
    (tmp_path / LOGS).mkdir(parents=True)
    for number in range(KEPT_LOGS + 5):
        (tmp_path / LOGS / f"training-20200101-{number:06}-1.log").touch()
    (tmp_path / LOGS / "mlflow.log").touch()
    with show_on_terminal("training", tmp_path, verbose=True):
        stage.info("ingest starts", extra={STAGE_EVENT: STARTED})
        stage.info("[60,000] of 70,000", extra={STAGE_OUTPUT: True})
    assert capsys.readouterr().err == "  [60,000] of 70,000\n"
    kept = [log.name for log in logs(tmp_path)]
    assert len(kept) == KEPT_LOGS + 1 and "mlflow.log" in kept
    assert "training-20200101-000000-1.log" not in kept


def test_a_project_that_cannot_be_written_is_a_paragraph(tmp_path, capsys):
    (tmp_path / ".throughline").symlink_to("/sys/kernel")  # refuses root, too
    with pytest.raises(SystemExit, match=r"^2$"), show_on_terminal("training", tmp_path):
        pytest.fail("the block was entered")
    said = capsys.readouterr().err
    assert str(LOGS) in said and "Traceback" not in said and "bug" not in said


def test_a_disk_that_refuses_the_log_is_told_of_once_and_the_run_goes_on(tmp_path, capsys, stage):
    with show_on_terminal("training", tmp_path):
        (tmp_path / LOGS).rmdir()
        for _ in range(3):
            stage.warning("look")
    said = capsys.readouterr().err.splitlines()
    assert said.count("look") == 3 and len(said) == 4
    assert "training-" in said[1] and "ends here: " in said[1]


@pytest.mark.parametrize(
    ("error", "code"), [(DataNotFound("nothing there"), 2), (ZeroDivisionError("odd"), 1)]
)
def test_a_stage_leaves_its_failure_to_the_flow_or_prints_it_where_it_cannot(
    tmp_path, monkeypatch, capsys, error, code
):
    left = tmp_path / "left" / "failure.json"
    monkeypatch.setenv(FAILURE_FILE, str(left))
    with pytest.raises(SystemExit if code == 2 else type(error)), report_user_errors():
        raise error
    assert capsys.readouterr().err == (f"DataNotFound: {error}\n" if code == 2 else "")
    left.parent.mkdir()
    with pytest.raises(SystemExit) as ended, report_user_errors():
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (code, "")
    told = json.loads(left.read_text())
    assert (told["kind"], told["message"]) == (type(error).__name__, str(error))
    assert told["traceback"].startswith("Traceback") is (code == 1)


@pytest.mark.parametrize(
    ("stage_name", "failure", "retried"),
    [
        ("ingest", None, True),
        ("ingest", Failure(kind="OSError", message="", traceback="…"), True),
        ("ingest", Failure(kind="DataNotFound", message=""), False),
        ("train@naive", None, False),
    ],
)
def test_a_stage_is_tried_again_where_that_can_help(stage_name, failure, retried):
    error = StageFailed("it ended", stage=stage_name, failure=failure)
    assert _should_retry(stage_name, error) is retried


def test_a_record_that_is_wrong_ends_no_log(tmp_path, capsys):
    log = terminal._open_log(tmp_path, "training")
    log.handle(logging.makeLogRecord({"msg": "one %s %s", "args": (1,)}))
    log.handle(logging.makeLogRecord({"msg": "another"}))
    log.close()
    assert "another" in logs(tmp_path)[0].read_text()
    assert "not enough arguments" in capsys.readouterr().err
