"""The terminal output of a flow: a line per finished stage, problems, and a panel if it fails.

A log file below .throughline/logs has everything that Prefect, DVC and the stages print; --verbose
shows what stages print, --debug also Prefect's lines.
"""

import logging
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

import typer
from prefect.exceptions import TerminationSignal
from prefect.logging import loggers
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from throughline.shared.errors import StageFailed
from throughline.shared.failures import Failure, describe_failure
from throughline.shared.progress import FACT_MARK, PROBLEM_MARK, RESULT_MARK

LOGS = Path(".throughline") / "logs"
KEPT_LOGS = 50
# Attributes of a log record: an event of its stage, a line that the stage printed, or a record for
# the log file only.
STAGE_EVENT, STAGE_OUTPUT, LOG_ONLY = "stage_event", "stage_output", "log_only"
STARTED, RAN = "started", "ran"  # events; other values are reasons for not running
DVC_WARNING = "WARNING: "
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(task_run_name)s | %(message)s"
FIRST_SIGN_S = 60.0  # without a terminal, a running stage shows a line after 60, 120, 240, … s
FACT_LINES = 3  # longest fact on the terminal; the log has all of it
_ROOT = f"{Path(__file__).parents[2]}{os.sep}"


class StageView(logging.Handler):
    """Shows a flow's log records: a line per finished stage, and problems as they come.

    A terminal's last line shows what the running stage does; `verbose` shows all that stages print.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(logging.INFO)
        self._console, self._verbose = console, verbose
        self._started_at: dict[str, float] = {}
        self._results: dict[str, str] = {}
        self._facts: list[str] = []  # facts of the running stage, shown below its result
        self._next_sign_s = FIRST_SIGN_S
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[stage]:<22}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._running = self.progress.add_task("", stage="starting", total=None)

    def emit(self, record: logging.LogRecord) -> None:
        stage, event = getattr(record, "task_run_name", ""), getattr(record, STAGE_EVENT, None)
        if event == STARTED:
            self._started_at[stage] = time.monotonic()
            self._results.pop(stage, None)
            self._facts.clear()
            self._next_sign_s = FIRST_SIGN_S
            self.progress.reset(self._running, description="", stage=_title(stage))
        elif event:
            shown = f"· {_title(stage):<22}  {event}"
            if event == RAN:
                shown = f"✓ {self._label(stage)}  {self._results.pop(stage, '')}".rstrip()
            self._print(shown)
            for fact in self._facts:
                self._print(_fill(fact, self._console.width))
            self._facts.clear()
            self._started_at.pop(stage, None)
            self.progress.reset(self._running, description="", stage="")
        elif getattr(record, STAGE_OUTPUT, False):
            self._take_output(stage, record.getMessage())
        elif not getattr(record, LOG_ONLY, False) and _concerns_users(record):
            self._print(record.getMessage())

    def _take_output(self, stage: str, text: str) -> None:
        """Show problems and facts; show the result, and facts after it, once the stage ends."""
        if text.startswith(RESULT_MARK):
            self._results[stage] = text.removeprefix(RESULT_MARK)
        elif text.startswith(FACT_MARK):
            fact = text.removeprefix(FACT_MARK)
            if stage in self._results:
                self._facts.append(fact)
            else:
                self._print(f"{FACT_MARK}{_title(stage):<30}  {fact}")
        elif text.startswith((PROBLEM_MARK, DVC_WARNING)):
            self._print(f"{PROBLEM_MARK}{_title(stage):<30}  {text.removeprefix(PROBLEM_MARK)}")
        elif self._verbose:
            self._print(f"  {text}")
        elif self._console.is_terminal:
            width = max(self._console.width - 40, 20)
            self.progress.update(self._running, description=escape(text.strip()[:width]))
        elif (seconds := self._seconds(stage)) >= self._next_sign_s:
            self._next_sign_s = 2 * seconds
            self._print(f"  {self._label(stage)}  {text.strip()}")

    def _label(self, stage: str) -> str:
        seconds = self._seconds(stage)
        digits = 1 if seconds < 10 else 0  # noqa: PLR2004
        return f"{_title(stage):<22}{seconds:>6,.{digits}f} s"

    def _seconds(self, stage: str) -> float:
        now = time.monotonic()
        return now - self._started_at.get(stage, now)

    def _print(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


def _fill(text: str, width: int) -> str:
    """Wrap a fact between its items, indented, in at most FACT_LINES lines."""
    kept = "\N{NO-BREAK SPACE}"
    whole = text.replace(" ", kept).replace(f"{kept}·{kept}", " · ")
    lines = textwrap.wrap(
        whole if " " in whole else text,
        max(width, 40),
        initial_indent="    ",
        subsequent_indent="    ",
        max_lines=FACT_LINES,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(kept, " ")


def _title(stage: str) -> str:
    return stage.replace("@", " ")


def _concerns_users(record: logging.LogRecord) -> bool:
    if record.name.startswith("prefect"):
        ours = record.pathname.startswith(_ROOT) and "site-packages" not in record.pathname
        return ours or record.pathname == loggers.__file__  # Prefect logs our print() there
    return record.levelno >= logging.WARNING


@contextmanager
def show_on_terminal(
    flow: str, project: Path, *, verbose: bool = False, debug: bool = False
) -> Iterator[None]:
    """Show what the flow in the block does; if it fails, print one panel and end the process.

    Exits with 2 for a user error or a failed stage, with 1 for a bug in the flow's process, and
    with 128 plus a signal's number, without a panel. `verbose` shows what stages print, `debug`
    also what Prefect prints and a bug's traceback.
    """
    console, root = Console(stderr=True), logging.getLogger()
    view = StageView(console, verbose=verbose)
    handlers, log = root.handlers, None
    try:
        log = _open_log(project, flow)
        root.handlers = [*handlers, log] if debug else [view, log]
        with nullcontext() if debug else view.progress:
            yield
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except TerminationSignal as ended:
        raise SystemExit(128 + ended.signal) from None
    except Exception as error:  # noqa: BLE001 - errors of every kind are reported
        failure = describe_failure(error)
        if failure.traceback:
            logging.getLogger("prefect").error(failure.traceback, extra={LOG_ONLY: True})
        _show_failure(console, error, failure, log.baseFilename if log else "", debug=debug)
        raise SystemExit(1 if failure.traceback else 2) from None
    finally:
        root.handlers = handlers
        if log:
            with suppress(OSError):  # a full disk refuses the rest
                log.close()


class _LogFile(logging.FileHandler):
    """A log file that reports a full disk once; the run continues without its log."""

    _refused = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._refused:
            try:
                super().emit(record)
            except OSError:
                self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """If the file cannot be written, say so once; report other errors as logging does."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)
        elif not self._refused:
            self._refused = True
            typer.echo(f"{self.baseFilename} ends here: {sys.exception()}", err=True)


def _open_log(project: Path, flow: str) -> logging.FileHandler:
    """Open a log file, created at its first line, and remove the flow's oldest logs."""
    folder = project / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob(f"{flow}-*.log"))[: -KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    name = f"{flow}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
    log = _LogFile(folder / name, encoding="utf-8", errors="replace", delay=True)
    log.setFormatter(logging.Formatter(LOG_FORMAT, defaults={"task_run_name": "-"}))
    return log


def _show_failure(
    console: Console, error: Exception, failure: Failure, log: str, *, debug: bool
) -> None:
    stage = error.stage if isinstance(error, StageFailed) else ""
    reason = (isinstance(error, StageFailed) and error.failure) or failure
    lines = [str(error) if reason is failure and stage else str(reason)]
    if reason.traceback:
        lines += ["", "This is a bug in the program or in your own code."]
        lines += [reason.traceback] if debug else ["--debug shows its traceback here."]
    if (stage or reason.traceback) and Path(log).is_file():
        lines += ["", f"Log: {log}"]
    text, title = "\n".join(lines), f"{stage} failed" if stage else "failed"
    if console.is_terminal:
        console.print(Panel(escape(text), title=title, title_align="left", border_style="red"))
    else:
        typer.echo(f"{title}: {text}" if stage else text, err=True)
