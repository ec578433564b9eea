"""The command line of a stage: parameters, checks, and user errors as a paragraph."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.allocator import raise_malloc_thresholds
from tasks.errors import InvalidParams, did_you_mean, report_user_errors
from tasks.files import clear_leftovers
from tasks.garbage import collect_garbage_as_usual
from tasks.layout import Layout
from tasks.libraries import check_versions
from tasks.params import Params, load_params
from tasks.params_file import PARAMS_FILE
from tasks.scratch import clear_scratch, temporary_files_in_scratch


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """What a stage gets for one configuration; `malloc_tuned`: whether the allocator's thresholds
    are set (`allocator.py`).
    """

    params: Params
    name: str
    options: argparse.Namespace
    malloc_tuned: bool


@contextmanager
def stage_cli(command: Callable[[], None]) -> Iterator[Params]:
    """Parse a stage's command line, check all parameters, and report user errors. Imports no
    TensorFlow.
    """
    collect_garbage_as_usual()
    with report_user_errors():
        parse_command(command)
        check_versions(_stage_of(command), root=Path())
        params = load_params()
        clear_after_kills(Layout())
        with temporary_files_in_scratch(Path.cwd()):
            yield params


@contextmanager
def pipeline_stage_cli(
    command: Callable[[], None], add: Callable[[argparse.ArgumentParser], object] | None = None
) -> Iterator[StageContext]:
    """As `stage_cli`, for a stage that runs once per configuration; `add` declares options of its
    own.
    """
    collect_garbage_as_usual()
    with report_user_errors():
        parser = _parser(command)
        parser.add_argument(
            "--pipeline", required=True, metavar="NAME", help="a key of `pipelines:` in params.yaml"
        )
        if add:
            add(parser)
        options = parser.parse_args()
        check_versions(_stage_of(command), root=Path())
        params, name = load_params(), options.pipeline
        if name not in params.pipelines:
            raise InvalidParams(
                [
                    f"{PARAMS_FILE}: pipelines.{name} does not exist;"
                    f" {did_you_mean(name, list(params.pipelines))}"
                ]
            )
        clear_after_kills(Layout())
        with temporary_files_in_scratch(Path.cwd()):
            yield StageContext(
                params=params, name=name, options=options, malloc_tuned=raise_malloc_thresholds()
            )


def parse_command(command: Callable[[], None]) -> None:
    """Parse the command line of a stage that has no options but --help."""
    _parser(command).parse_args()


def _stage_of(command: Callable[[], None]) -> str:
    """Name of the stage in dvc.yaml; `profile` would be a module of the standard library."""
    stem = Path(inspect.getfile(command)).stem
    return "profile" if stem == "profiling" else stem


def clear_after_kills(layout: Layout) -> None:
    """Remove what stages that were killed have left, temporary files and caches, but not what can
    be continued.
    """
    clear_scratch(layout.root)
    data, runs = layout.root / "data", layout.root / "runs"
    for folder in (layout.root, data, *data.glob("*/"), *runs.glob("*/"), layout.report):
        clear_leftovers(folder)


def _parser(command: Callable[[], None]) -> argparse.ArgumentParser:
    module = inspect.getmodule(command)
    stage = _stage_of(command)
    explanation = (module.__doc__ or "") if module else ""
    return argparse.ArgumentParser(
        prog=f"python -m tasks.{Path(inspect.getfile(command)).stem}",
        description=inspect.getdoc(command),
        epilog=(
            f"{explanation}\nReads params.yaml of the current folder. `dvc repro {stage}` runs it"
            " only if something changed."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
