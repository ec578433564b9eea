"""How stages are run, by themselves and by a server that has their libraries, and how they end;
what a terminal shows of them: a list, a failure once, everything else in a file.
"""

import asyncio
import io
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger
from prefect.logging.loggers import PrefectLogAdapter
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.states import Cancelled, exception_to_failed_state
from rich.console import Console

from flows.orchestration import stages, terminal
from flows.orchestration.artifacts import failure_reason
from flows.orchestration.terminal import STAGE_EVENT, STAGE_OUTPUT, STARTED, show_on_terminal
from flows.run import fork_server as server_module
from flows.run.dvc_calls import dvc_environment
from flows.run.fork_server import list_imported_files, serve, stage_server
from flows.run.processes import run_supervised, supervised
from flows.run.workspace import Workspace
from tests.support.project import ROOT, Started, environment, start
from tests.support.small_data import write_files
from tests.support.stack import processes_of, wait_for
from throughline.shared import fork_client, machine_lock
from throughline.shared.errors import DataNotFound, StageFailed
from throughline.shared.failures import FAILURE_FILE, Failure, report_user_errors
from throughline.shared.fork_client import REFUSED, STAGE_SERVER, hand_over


@pytest.mark.integration
def test_an_overdue_stage_is_ended_with_its_children_told_by_what_allowed_so_long_and_not_retried(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(stages.TIMEOUT_S, "0.2")
    command = ["sh", "-c", "sleep 20 & sleep 20; touch ended"]
    process = supervised(command, folder=tmp_path, environment=dvc_environment({}))
    with disable_run_logger(), pytest.raises(StageFailed, match="stage_timeout_s") as failed:
        stages._run_once("shard", process, deque())
    assert not stages._should_retry("shard", failed.value)
    assert not (tmp_path / "ended").exists() and not processes_of(tmp_path, "sleep")


@pytest.mark.integration
def test_a_process_that_is_ended_as_it_starts_is_asked_to_and_not_killed(tmp_path, monkeypatch):
    variables = dvc_environment({})
    monkeypatch.setenv(stages.TIMEOUT_S, "600")
    quick = supervised(["true"], folder=tmp_path, environment=variables)
    with quick as process, stages.with_timeout(process) as timed_out:
        assert process.wait() == 0 and not timed_out.is_set(), "it is left alone"
    with supervised(["sleep", "100"], folder=tmp_path, environment=variables) as process:
        pass
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.integration
def test_what_a_stage_prints_is_read_whatever_the_locale_and_the_bytes(tmp_path, monkeypatch):
    for key in ("PYTHONCOERCECLOCALE", "PYTHONUTF8"):
        monkeypatch.setenv(key, "0")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    program = "import sys; print('✓ größe'); sys.stdout.flush(); sys.stdout.buffer.write(b'\\xff')"
    command, variables = [sys.executable, "-c", program], dvc_environment({})
    with supervised(command, folder=tmp_path, environment=variables) as process:
        read = process.stdout.read()
    assert read == run_supervised(command, tmp_path, variables).stdout
    assert read == "✓ größe\n\N{REPLACEMENT CHARACTER}"


def test_a_training_alone_waits_for_no_measurement_and_disturbs_none_that_is_kept(
    tmp_path, monkeypatch
):
    # Others may measure on this machine.
    monkeypatch.setattr(machine_lock, "MACHINE_ADDRESS", f"\0throughline-test-{os.getpid()}")
    workspace = Workspace(root=tmp_path, project=tmp_path)
    measured = stages.StageEnvironment(workspace, frozenset())
    alone = stages.StageEnvironment(workspace, frozenset(), measures=False)

    def locks(stage: str, stage_env: stages.StageEnvironment) -> int:
        with disable_run_logger(), stages.measurement_lock(stage, stage_env) as lock_fds:
            return len(lock_fds)

    assert [locks(stage, measured) for stage in ("train@a", "race")] == [2, 2], "it takes turns"
    assert [locks(stage, measured) for stage in ("build@a", "shard")] == [1, 1]
    assert locks("train@a", alone) == 1


def test_a_reason_that_a_full_disk_has_cut_is_told_by_the_last_lines(tmp_path):
    reason = tmp_path / "failure.json"
    reason.write_text("")
    failed = stages._describe_failure("shard", 2, ["DiskFull: no space is left"], reason)
    assert "DiskFull: no space is left" in str(failed) and failed.failure is None


@pytest.fixture
def listener(tmp_path, monkeypatch):
    """Where stages look for a server that has their libraries; nobody answers yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STAGE_SERVER, "stages")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("stages")
        listener.listen()
        yield listener


def asked_for(content: bytes, size: int, known: dict[str, int]) -> bytes:
    """What a server that has imported known files answers to a request of a size."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        socket.send_fds(ours, [size.to_bytes(4, "big")], [0, 1, 2])
        ours.sendall(content)
        ours.shutdown(socket.SHUT_WR)
        return serve(theirs, known)


def test_a_stage_is_refused_once_a_file_of_the_program_has_changed_and_what_is_no_request():
    asked = {"module": "tasks.build", "arguments": [], "prefix": sys.prefix}
    asked |= {"folder": str(Path.cwd()), "environment": dict(os.environ)}
    content, known = json.dumps(asked).encode(), list_imported_files()
    known[server_module.__file__] -= 1
    assert asked_for(content, len(content), known) == REFUSED
    for size in (0, 1 << 30):
        with pytest.raises(SystemExit, match="not a request to run a program"):
            asked_for(b"", size, {})


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_refused_stage_goes_on_by_itself_with_its_own_signals(listener):
    before = signal.getsignal(signal.SIGTERM)

    def refuse():
        connection, _ = listener.accept()
        with connection:
            connection.recv(4)
            connection.sendall(REFUSED)
            connection.recv(1 << 20)

    refusal = in_background(refuse)
    hand_over("tasks.build", [], server=STAGE_SERVER)
    refusal.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_imports_is_waited_for_unless_it_ends(listener):
    end = in_background(lambda: (select.select([listener], [], []), listener.close()))
    hand_over("tasks.build", [], server=STAGE_SERVER)
    assert listener.fileno() == -1, "it was asked before it ended"
    end.join()


def test_a_stage_that_imports_little_waits_for_no_server_that_imports(listener, monkeypatch):
    hand_over("tasks.ingest", [], server=STAGE_SERVER)
    assert not select.select([listener], [], [], 0)[0], "nobody has asked"
    monkeypatch.setenv(STAGE_SERVER, "nobody")
    hand_over("tasks.build", [], server=STAGE_SERVER)  # goes on by itself


STARTED_AS = {
    "-m tasks.build --pipeline naive": "build",
    "-m throughline.config.cli": None,
    "-m flows.build": None,
    "tasks/build.py": None,
    "-c pass": None,
}


@pytest.mark.parametrize(("command", "stage"), STARTED_AS.items())
def test_only_a_stage_that_python_starts_is_handed_over(monkeypatch, command, stage):
    # While Python looks for a module, `-m` stands for its name.
    shown = re.sub("^-m [^ ]+", "-m", command).split()
    monkeypatch.setattr(fork_client.sys, "argv", shown)
    monkeypatch.setattr(fork_client.sys, "orig_argv", ["python", *command.split()])
    assert fork_client.find_started_module("tasks", ["build"]) == stage


@pytest.mark.slow
def test_served_stages_end_as_stages_do_and_with_who_asked_for_them(first):
    folder, _ = first

    def start_stage(name: str, pipeline: str, **served: str) -> Started:
        command = (sys.executable, "-m", f"tasks.{name}", "--pipeline", pipeline)
        return start(folder, *command, shared=served)

    def count_processes() -> int:
        """Two of them are the server itself, the others run stages."""
        return len(processes_of(folder, "flows.run.fork_server"))

    alone = start_stage("build", "absent")
    sleeping_model = "import pathlib, time\npathlib.Path('asleep').touch()\ntime.sleep(1000)\n"
    (folder / "asleep.py").write_text(sleeping_model)
    with stage_server(folder, environment(folder)) as served:
        wait_for(Path(served[STAGE_SERVER] + fork_client.READY).exists)
        idle = count_processes()
        wrong = start_stage("build", "absent", **served)
        # What TensorFlow says when it is imported comes first, where it is imported.
        assert alone.communicate()[0].endswith(wrong.communicate()[0])
        assert wrong.returncode == alone.returncode == 2
        right = start_stage("build", "naive", **served)
        assert "build naive: read" in right.communicate()[0] and right.returncode == 0

        params = folder / "params.yaml"
        params.write_text(params.read_text().replace("name: mlp", "name: 'asleep:build'"))
        for number, code in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)):
            train = start_stage("train", "naive", **served)
            wait_for((folder / "asleep").exists)
            assert count_processes() > idle
            train.send_signal(number)
            assert train.wait() == code
            wait_for(lambda: count_processes() == idle)
            (folder / "asleep").unlink()
    assert not count_processes()


def say(view: terminal.StageView, stage: str, event: str, text: str) -> None:
    """Handle a record of a stage, as its task logs it."""
    record = {"name": "x", "levelno": 20, "msg": text, "task_run_name": stage, event: text}
    view.handle(logging.makeLogRecord(record))


def test_a_fact_fills_three_lines_of_the_terminal_at_most_and_is_cut_between_its_items():
    out = io.StringIO()
    view = terminal.StageView(Console(file=out, width=60))
    say(view, "ingest", STAGE_OUTPUT, "✓ 9 columns")
    items = [f"column_{number} category (12 values)" for number in range(9)]
    say(view, "ingest", STAGE_OUTPUT, f"· {' · '.join(items)}")
    say(view, "ingest", STAGE_EVENT, terminal.RAN)
    _, first, second, third = out.getvalue().splitlines()
    assert first == f"    {items[0]} ·", "an item is not parted"
    assert third.endswith(" …") and max(len(second), len(third)) <= 60


def test_in_a_log_a_long_stage_shows_at_ever_longer_intervals_that_it_is_at_work(monkeypatch):
    screen, now = io.StringIO(), 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    view = terminal.StageView(Console(file=screen, width=80))
    say(view, "train@naive", STAGE_EVENT, STARTED)
    for now in range(0, 400, 10):
        say(view, "train@naive", STAGE_OUTPUT, f"epoch {now}")
    signs = [line.split() for line in screen.getvalue().splitlines()]
    assert signs == [["train", "naive", f"{at}", "s", "epoch", f"{at}"] for at in (60, 120, 240)]


def test_on_a_terminal_the_running_stage_is_one_line():
    screen = io.StringIO()
    view = terminal.StageView(Console(file=screen, force_terminal=True, width=100))
    with view.progress:
        say(view, "ingest", STAGE_EVENT, STARTED)
        say(view, "ingest", STAGE_OUTPUT, "[60,000] of 70,000")
        view.progress.refresh()
        assert "[60,000] of 70,000" in screen.getvalue()
    assert screen.getvalue().count("\n") <= 3, "it is drawn over"


@pytest.fixture
def stage():
    """The logger that a task run named `ingest` has."""
    logger = logging.getLogger("prefect.task_runs")
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield PrefectLogAdapter(logger, extra={"task_run_name": "ingest"})


def logs(folder):
    return sorted((folder / terminal.LOGS).glob("*.log"))


def test_stages_are_lines_with_their_results_and_everything_is_in_the_log(tmp_path, capsys, stage):
    with show_on_terminal("training", tmp_path):
        stage.info("ingest starts", extra={STAGE_EVENT: STARTED})
        lines = ("[60,000] of 70,000", "! 3 × corrupt [JPEG]", "· resuming")
        for line in (*lines, "✓ 70,000 examples [of 3]", "· price number · day date"):
            stage.info(line, extra={STAGE_OUTPUT: True})
        stage.info("a traceback", extra={terminal.LOG_ONLY: True})
        stage.info("ingest ran", extra={STAGE_EVENT: terminal.RAN})
        stage.info("ingest is up to date", extra={STAGE_EVENT: "up to date"})
        stage.warning("look [here]")
        logging.getLogger("somebody").warning("mind this")
        logging.getLogger("somebody").info("and not this")
        # A line that Prefect logs is of a file of Prefect's, which may be below the project.
        own = {"pathname": str(ROOT / ".venv/lib/python3.11/site-packages/prefect/engine.py")}
        own |= {"name": "prefect.task_runs", "levelno": 40, "msg": "Finished in state Failed()"}
        logging.getLogger("prefect.task_runs").handle(logging.makeLogRecord(own))
    shown = [re.sub("  +", "  ", line) for line in capsys.readouterr().err.splitlines()]
    assert re.fullmatch(r"✓ ingest  0\.\d s  70,000 examples \[of 3\]", shown.pop(2))
    assert shown == [
        *("! ingest  3 × corrupt [JPEG]", "· ingest  resuming"),  # a problem and a fact, at once
        *("  price number · day date", "· ingest  up to date"),  # what is known of the result
        *("look [here]", "mind this"),
    ]
    (log,) = logs(tmp_path)
    for line in ("task_runs ingest | a traceback", "Finished in state", "ingest | [60,000] of 70,"):
        assert line in log.read_text()


def test_old_logs_go_and_all_that_stages_print_is_shown_on_demand(tmp_path, capsys, stage):
    names = [f"training-20200101-{n:06}-1.log" for n in range(terminal.KEPT_LOGS + 5)]
    write_files(tmp_path / terminal.LOGS, dict.fromkeys(("mlflow.log", *names), ""))
    with show_on_terminal("training", tmp_path, verbose=True):
        stage.info("ingest starts", extra={STAGE_EVENT: STARTED})
        stage.info("[60,000] of 70,000", extra={STAGE_OUTPUT: True})
    assert capsys.readouterr().err == "  [60,000] of 70,000\n"
    mlflow_log, *kept = [log.name for log in logs(tmp_path)]
    assert mlflow_log == "mlflow.log" and kept[:-1] == names[6:]


def test_a_log_outlives_a_wrong_record_and_a_disk_that_refuses_it_is_told_of_once(tmp_path, capsys):
    log = terminal._open_log(tmp_path, "training")
    for record in ({"msg": "one %s %s", "args": (1,)}, {"msg": "another"}):
        log.handle(logging.makeLogRecord(record))
    log.close()
    assert "another" in logs(tmp_path)[0].read_text()
    assert "not enough arguments" in capsys.readouterr().err
    with show_on_terminal("training", tmp_path):
        shutil.rmtree(tmp_path / terminal.LOGS)
        for _ in range(3):
            logging.getLogger("somebody").warning("look")
    first, told, *others = capsys.readouterr().err.splitlines()
    assert [first, *others] == ["look"] * 3 and "training-" in told and "ends here: " in told


def test_a_mistake_is_a_paragraph_and_a_bug_one_line_whose_traceback_is_in_a_log(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"^2$"), show_on_terminal("training", tmp_path):
        raise DataNotFound("data.path: x does not exist")
    assert capsys.readouterr().err == "DataNotFound: data.path: x does not exist\n"
    assert logs(tmp_path) == []
    for debug in (False, True):
        opened = show_on_terminal("training", tmp_path / f"{debug}", debug=debug)
        with pytest.raises(SystemExit, match=r"^1$"), opened:
            raise RuntimeError("odd")
        shown, (log,) = capsys.readouterr().err, logs(tmp_path / f"{debug}")
        assert shown.startswith("RuntimeError: odd\n") and "bug" in shown and str(log) in shown
        assert ("Traceback" in shown) == debug and "Traceback" in log.read_text()
    shutil.rmtree(tmp_path / ".throughline")
    (tmp_path / ".throughline").symlink_to("/sys/kernel")  # cannot be written, by root neither
    with pytest.raises(SystemExit, match=r"^2$"), show_on_terminal("training", tmp_path):
        pytest.fail("the block was entered")
    said = capsys.readouterr().err
    assert str(terminal.LOGS) in said and "Traceback" not in said and "bug" not in said


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
    with pytest.raises(SystemExit, match=f"^{code}$"), report_user_errors():
        raise error
    told = json.loads(left.read_text())
    assert (told["kind"], told["message"]) == (type(error).__name__, str(error))
    assert told["traceback"].startswith("Traceback") is (code == 1)
    assert not capsys.readouterr().err


def test_a_stage_is_tried_again_where_that_can_help():
    def is_retried(stage: str, failure: Failure | None) -> bool:
        return stages._should_retry(stage, StageFailed("it ended", stage=stage, failure=failure))

    assert is_retried("ingest", None)
    assert is_retried("ingest", Failure(kind="OSError", message="", traceback="…"))
    assert not is_retried("ingest", Failure(kind="DataNotFound", message=""))
    assert not is_retried("train@naive", None)


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (SystemExit(), 0, ""),
        (SystemExit(3), 3, ""),
        (SystemExit("no data"), 1, "no data"),
        (KeyboardInterrupt(), 130, ""),
        (ValueError("a fault"), 1, "a fault"),
        (None, 0, ""),
    ],
)
def test_a_program_of_the_server_ends_with_the_code_that_python_would_give(
    ending, code, said, capsys
):
    def program() -> None:
        if ending:
            raise ending

    assert server_module.call(program) == code
    assert said in capsys.readouterr().err
