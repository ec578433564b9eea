"""The command line that the flows share, and their logging."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.orchestration.terminal import show_on_terminal
from flows.run.parameters import OVERRIDE, Changes
from flows.run.resolution import resolve_command
from flows.servers.credentials import use_running_servers
from flows.servers.temporary_server import prefect_server
from throughline.reporting.table import TIED_NOTE, comparison_table, to_text
from throughline.results.comparison import Comparison
from throughline.shared.errors import UserError
from throughline.shared.gc_pause import collect_garbage_as_usual

MEASURE_AGAIN = "--measure-again"
MeasureAgainOption = Annotated[
    list[str] | None,
    typer.Option(
        MEASURE_AGAIN,
        metavar="NAME",
        help="race this configuration, and the others, once more although nothing has changed;"
        " repeatable",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that all flows have."""

    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="override a key of params.yaml, e.g. train.epochs=5; repeatable",
        ),
    ] = None
    overlay: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="a YAML file merged into params.yaml; repeatable, later ones win"
        ),
    ] = None
    show: Annotated[
        bool,
        typer.Option("--show", help="print the parameters that the run would have; run nothing"),
    ] = False
    name: Annotated[
        str | None,
        typer.Option(
            help="name of a run with changes, its worktree and experiment; default: the flow run's"
        ),
    ] = None
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="show all output of the stages, not only their results"),
    ] = False
    debug: Annotated[
        bool,
        typer.Option("--debug", help="show all output of Prefect and the stages, and tracebacks"),
    ] = False


def run_command(command: Callable[..., None]) -> None:
    """Run a flow's command with the options of this process."""
    collect_garbage_as_usual()
    if several := find_lonely_override(sys.argv[1:]):
        raise SystemExit(f"{several} needs its own --set: --set KEY=VALUE --set KEY=VALUE")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    app()


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take each of the `RunOptions` instead of `options`, after its own options."""
    shared = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(RunOptions)
    ]
    own = [one for one in signature(command).parameters.values() if one.name != "options"]

    @wraps(command)
    def run(**given: Any) -> None:
        names = [field.name for field in fields(RunOptions) if field.name in given]
        command(options=RunOptions(**{name: given.pop(name) for name in names}), **given)

    run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
    return run


def find_lonely_override(arguments: Sequence[str]) -> str | None:
    """Return the first KEY=VALUE argument that follows no option, or None.

    >>> find_lonely_override(["--set", "batch_size=8", "train.epochs=1"])
    'train.epochs=1'
    """
    pairs = zip(["", *arguments], arguments, strict=False)
    lonely = (one for before, one in pairs if OVERRIDE.fullmatch(one) and before[:1] != "-")
    return next(lonely, None)


def print_comparison(compared: Comparison, where: Sequence[str]) -> None:
    """Print the table, the conclusion, and where to find more."""
    lines = ["", to_text(comparison_table(compared)), ""]
    lines += [TIED_NOTE, ""] if len(compared.tied) > 1 else []
    lines += [compared.headline, *filter(None, [compared.warning])]
    lines += [f"During the race {compared.disturbed_by}"] if compared.disturbed_by else []
    lines += [f"{name} is left out: {why}" for name, why in compared.missing.items()]
    typer.echo("\n".join([*lines, "", *where]))


def compose_measure_again(flow: str, arguments: Sequence[str], name: str) -> str:
    """Return a line with the same command that races `name`, and all others, again.

    >>> options = ["--name", "x", "--measure-again", "a", "--measure-again=c"]
    >>> compose_measure_again("comparison", options, "b")
    'Race again while nothing else runs: python -m flows.comparison --name x --measure-again b'
    """
    kept = [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if MEASURE_AGAIN not in (argument.partition("=")[0], before)
    ]
    command = shlex.join(["python", "-m", f"flows.{flow}", *kept, MEASURE_AGAIN, name])
    return f"Race again while nothing else runs: {command}"


@contextmanager
def flow_command(flow: str, pipelines: Sequence[str], options: RunOptions) -> Iterator[Changes]:
    """Yield the changes that a command asks for, in a block that is ready to run flows.

    In it a Prefect server runs, stages are shown on the terminal, and a failure is one panel. With
    `options.show`, this prints the parameters and ends the process.
    """
    configure_logging()
    project = Path.cwd()
    with show_on_terminal(flow, project, verbose=options.verbose, debug=options.debug):
        changes, resolved = resolve_command(options.set, options.overlay, options.name, pipelines)
        if options.show:
            typer.echo(resolved.text, nl=False)
            raise SystemExit(0)
        with use_running_servers(project) as running, prefect_server(running):
            yield changes


def configure_logging() -> None:
    """Set defaults for Prefect's logging and analytics; variables that are set already win."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_LOGGING_SERVER_LEVEL", "ERROR")
    logging.getLogger("prefect.events").setLevel(logging.CRITICAL)
    for name in ("APILogWorker", "EventsWorker"):  # they warn that they send their last lines
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_users_traceback)


def _without_users_traceback(record: logging.LogRecord) -> bool:
    """Drop the traceback of a UserError, which is reported in one paragraph."""
    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.msg, record.args = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}", ()
        record.exc_info = record.exc_text = None
    return True
