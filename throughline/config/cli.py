"""The command line of stages: options, parameters, checks, and user errors as a paragraph."""

import argparse
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from throughline.config.params import Params, check_pipelines_exist, load_params
from throughline.plan.training_workers import training_worker_from_tf_config
from throughline.shared.allocator import raise_malloc_thresholds
from throughline.shared.chatter import hide_tensorflow_chatter
from throughline.shared.errors import InvalidCode, MissingInput, UserError, did_you_mean
from throughline.shared.failures import report_user_errors
from throughline.shared.files import clear_leftovers
from throughline.shared.gc_pause import collect_garbage_as_usual
from throughline.shared.layout import MODEL_FILE, STORE_HOME, WORKSPACES, Layout
from throughline.shared.libraries import check_versions, stage_libraries
from throughline.shared.scratch import clear_scratch, temporary_files_in_scratch
from throughline.shared.store_address import check_store_address

Declare = Callable[[argparse.ArgumentParser], object]  # adds options
UTF8_MODE = ("utf-8", "surrogateescape")  # as PYTHONUTF8 sets for output


@dataclass(frozen=True, kw_only=True)
class StageContext:
    params: Params
    name: str


@dataclass(frozen=True, kw_only=True)
class TrainedModelContext:
    """The context of a command with a trained model; `trusted`: this project trained it."""

    model: Path
    trusted: bool
    layout: Layout
    options: argparse.Namespace


def check_started_stage() -> None:
    """Check params.yaml and --pipeline of the started stage before its slow imports.

    The stage itself checks the rest, and the parameters of a run given with --name.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--pipeline", "--name"):
        parser.add_argument(option)
    with suppress(argparse.ArgumentError):
        options, others = parser.parse_known_args(sys.argv[1:])
        if options.name is None and not {"-h", "--help"} & {*others}:
            with report_user_errors():
                named = [options.pipeline] if options.pipeline else []
                check_pipelines_exist(load_params().pipelines, named)


@contextmanager
def _parsed(
    command: Callable[[], None], add: Declare, *, is_stage: bool = False
) -> Iterator[argparse.Namespace]:
    """Start the process, parse its command line, and report user errors of the block."""
    _start_process()
    with report_user_errors():
        parser = _parser(command, is_stage=is_stage)
        add(parser)
        yield parser.parse_args()


@contextmanager
def stage_cli(command: Callable[[], None], *, of_runs: bool = False) -> Iterator[Params]:
    """Parse a stage's command line, check all parameters, and report user errors.

    Removes files of killed stages. Imports no TensorFlow. With `of_runs`, --name is accepted.
    """
    opened = options_stage_cli(command, add_run_option if of_runs else lambda _: None)
    with opened as (params, options), _explain_run(options.name if of_runs else None):
        yield params


@contextmanager
def options_stage_cli(
    command: Callable[[], None], add: Declare
) -> Iterator[tuple[Params, argparse.Namespace]]:
    """Like `stage_cli`, for a stage with options that `add` declares."""
    with _parsed(command, add, is_stage=True) as options:
        enter_run(options)
        params = load_params()
        check_store_address()
        of_ops = [name for op in params.preprocess for name in op.libraries]
        check_versions(stage_libraries(_stage_of(command), of_ops), root=Path())
        if training_worker_from_tf_config(os.environ).index == 0:  # else the first process clears
            clear_after_kills(Layout())
        with temporary_files_in_scratch(Path.cwd()), refuse_early_exit():
            yield params, options


@contextmanager
def refuse_early_exit() -> Iterator[None]:
    """Raise InvalidCode, which names the line, if user code exits before outputs are written."""
    try:
        yield
    except SystemExit as error:
        if error.code:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidCode(
            f"{where.filename}, line {where.lineno}: {where.line} exits before the stage is done;"
            " to end a training early, set self.model.stop_training = True in a callback"
        ) from error


@contextmanager
def command_cli(
    command: Callable[[], None], add: Declare
) -> Iterator[tuple[Params, argparse.Namespace]]:
    """Parse the options that `add` declares, and check all parameters, for other commands."""
    with _parsed(command, add) as options:
        enter_run(options)
        yield load_params(), options


@contextmanager
def pipeline_stage_cli(command: Callable[[], None]) -> Iterator[StageContext]:
    """Like `stage_cli`, for a stage that runs once per configuration."""

    def declare(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--pipeline", required=True, metavar="NAME", help="a key of `pipelines:` in params.yaml"
        )

    with options_stage_cli(command, declare) as (params, options):
        check_pipelines_exist(params.pipelines, [options.pipeline])
        raise_malloc_thresholds()
        yield StageContext(params=params, name=options.pipeline)


@contextmanager
def trained_model_cli(command: Callable[[], None], add: Declare) -> Iterator[TrainedModelContext]:
    """Parse the command line of a command that uses a trained model.

    Reads the model's file instead of params.yaml. Imports no TensorFlow; the block may.

    Raises:
      MissingInput: There is no such run or model; or none is named, and not exactly one exists.
    """

    def declare(parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--pipeline",
            metavar="NAME",
            help="a key of `pipelines:`, whose trained model to use; default: the only one",
        )
        which.add_argument("--model", type=Path, metavar="FILE", help="a model.keras of any run")
        add_run_option(parser)
        add(parser)

    with _parsed(command, declare) as options:
        layout = find_run(options.name) if options.name else Layout()
        sys.path.insert(0, str(layout.root.absolute()))  # for the user's own ops and layers
        if not options.model:
            options.pipeline = _choose_trained(layout, options)
        model = options.model or layout.results(options.pipeline) / MODEL_FILE
        if not model.is_file():
            raise MissingInput(f"{model} does not exist; name a model.keras that train has written")
        with _explain_run(options.name):
            yield TrainedModelContext(
                model=model, trusted=options.model is None, layout=layout, options=options
            )


@contextmanager
def _explain_run(name: str | None) -> Iterator[None]:
    """Add to errors that advise `dvc repro` where run `name` has its files, and how to redo it."""
    try:
        yield
    except UserError as error:
        if name and "`dvc repro" in str(error):
            error.args = (
                f"{error}. These are paths in {WORKSPACES / name}; to redo what is there, instead"
                f" of `dvc repro`, repeat the command of that run, with --name {name} and its"
                " --overlay and --set",
            )
        raise


def _choose_trained(layout: Layout, options: argparse.Namespace) -> str:
    """Return the configuration of --pipeline, or the only trained one; else MissingInput."""
    trained = sorted(path.parent.name for path in layout.root.glob(f"runs/*/{MODEL_FILE}"))
    chosen, run = options.pipeline, options.name
    if not chosen and len(trained) == 1:
        return trained[0]
    if chosen in trained:
        return chosen
    where, name = "in this project", chosen or "NAME"
    train = f"run `dvc repro train@{name}`, or give --name of a run with changes"
    if run:
        where, command = f"in run {run}", f"python -m flows.training --pipeline {name} --name {run}"
        train = f"run `{command}` with the --overlay and --set of that run"
    known = f"trained {where}: {', '.join(trained)}" if trained else f"none is trained {where}"
    if chosen:
        file = layout.results(chosen) / MODEL_FILE
        raise MissingInput(f"{file} does not exist; {train}; {known}")
    if trained:
        raise MissingInput(f"choose a model with --pipeline NAME; {known}")
    raise MissingInput(f"no model to use: {known}; {train}")


def add_run_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name",
        metavar="RUN",
        help="use the files of the run with changes of this name (`flows.* --name RUN`)",
    )


def find_run(name: str) -> Layout:
    """Return the layout of the run with changes `name`; MissingInput names the existing ones."""
    known = Layout().run_names
    if name not in known:
        others = did_you_mean(name, known) if known else "no run with changes exists"
        raise MissingInput(f"--name {name}: there is no such run of this project; {others}")
    return Layout().run(name)


def enter_run(options: argparse.Namespace) -> None:
    """Change to the worktree of the run of `--name`, if any, to import own code there, too."""
    if getattr(options, "name", None) is None:
        return
    root = find_run(options.name).root
    os.environ.setdefault(STORE_HOME, str(Path.cwd()))
    os.chdir(root)
    sys.path.insert(0, str(Path.cwd()))


def parse_command(command: Callable[[], None]) -> None:
    _start_process()
    _parser(command, is_stage=True).parse_args()


def _start_process() -> None:
    """Resume garbage collection, hide TensorFlow's startup messages, and set output to UTF-8."""
    collect_garbage_as_usual()
    hide_tensorflow_chatter()
    out = sys.stdout
    # Within a flow, output is UTF-8 already. A process forked from a server of another encoding
    # cannot change the encoding of its output.
    if isinstance(out, TextIOWrapper) and (out.encoding, out.errors) != UTF8_MODE:
        with suppress(OSError):
            out.reconfigure(encoding="utf-8", errors="backslashreplace")


def _stage_of(command: Callable[[], None]) -> str:
    """Return the stage's name in dvc.yaml; a module `profile` would shadow Python's own."""
    stem = Path(inspect.getfile(command)).stem
    return "profile" if stem == "profiling" else stem


def clear_after_kills(layout: Layout) -> None:
    """Remove temporary files and caches of killed stages, but nothing that can be continued."""
    clear_scratch(layout.root)
    data, runs = layout.root / "data", layout.root / "runs"
    for folder in (layout.root, data, *data.glob("*/"), *runs.glob("*/"), layout.report):
        clear_leftovers(folder)


def _parser(command: Callable[[], None], *, is_stage: bool) -> argparse.ArgumentParser:
    explanation = getattr(inspect.getmodule(command), "__doc__", None) or ""
    if is_stage:
        again = f"`dvc repro {_stage_of(command)}` runs it only if something changed."
        explanation += f"\nReads params.yaml of the current folder. {again}"
    return argparse.ArgumentParser(
        prog=f"python -m tasks.{Path(inspect.getfile(command)).stem}",
        description=inspect.getdoc(command),
        epilog=explanation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
