"""What every stage shares: where its files lie, and the door through which a command enters."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.allocator import keep_freed_memory
from tasks.errors import InvalidParams, nearest, told_plainly
from tasks.params import PARAMS_FILE, Params, load_params


@dataclass(frozen=True)
class Layout:
    """Where the stages' outputs lie, relative to the folder of params.yaml."""

    root: Path = Path()

    @property
    def manifest(self) -> Path:
        """Folder of the manifest, written by ingest."""
        return self.root / "data" / "manifest"

    @property
    def shards(self) -> Path:
        """Folder of the TFRecord shards, written by shard."""
        return self.root / "data" / "shards"

    @property
    def snapshot(self) -> Path:
        """Folder of the mapped columns, written by snapshot."""
        return self.root / "data" / "snapshot"

    @property
    def raw(self) -> Path:
        """Folder of known data sets, written by fetch."""
        return self.root / "data" / "raw"

    def run(self, pipeline: str) -> Path:
        """Folder of one configuration's results."""
        return self.root / "runs" / pipeline

    @property
    def report(self) -> Path:
        """Folder of the comparison."""
        return self.root / "report"


@dataclass(frozen=True, kw_only=True)
class Entered:
    """What a stage of one configuration begins with; `keeps_freed_memory`: whether the allocator agreed to (see `allocator.py`)."""

    params: Params
    name: str
    options: argparse.Namespace
    keeps_freed_memory: bool


@contextmanager
def door(command: Callable[[], None]) -> Iterator[Params]:
    """Parse a stage's command line, check all parameters, and tell user errors plainly. Imports no TensorFlow."""
    with told_plainly():
        _parser(command).parse_args()
        yield load_params()


@contextmanager
def pipeline_door(command: Callable[[], None], add: Callable[[argparse.ArgumentParser], object] | None = None) -> Iterator[Entered]:
    """As `door`, for a stage that runs once per configuration; `add` declares options of its own."""
    with told_plainly():
        parser = _parser(command)
        parser.add_argument("--pipeline", required=True, metavar="NAME", help="a key of `pipelines:` in params.yaml")
        if add:
            add(parser)
        options = parser.parse_args()
        params, name = load_params(), options.pipeline
        if name not in params.pipelines:
            raise InvalidParams([f"{PARAMS_FILE}: pipelines.{name} does not exist; {nearest(name, list(params.pipelines))}"])
        yield Entered(params=params, name=name, options=options, keeps_freed_memory=keep_freed_memory())


def _parser(command: Callable[[], None]) -> argparse.ArgumentParser:
    module = inspect.getmodule(command)
    stage = Path(inspect.getfile(command)).stem
    explanation = (module.__doc__ or "") if module else ""
    return argparse.ArgumentParser(
        prog=f"python -m tasks.{stage}",
        description=inspect.getdoc(command),
        epilog=f"{explanation}\nReads params.yaml of the current folder. `dvc repro {stage}` runs it only if something changed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
