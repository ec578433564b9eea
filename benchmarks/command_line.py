"""What the command lines of benchmarks have in common."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def command_line(
    name: str, description: str | None, *, results: bool = True
) -> argparse.ArgumentParser:
    """Return the parser of a benchmark; `results` adds an option that writes them to a file."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if results:
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    return parser


def data_command_line(
    name: str, description: str | None, *, photos_required: bool = False
) -> argparse.ArgumentParser:
    parser = command_line(name, description)
    without = "" if photos_required else "; without it, photos are left out and this is said"
    parser.add_argument(
        "--photos",
        type=Path,
        required=photos_required,
        metavar="DIR",
        help=f"class folders of JPEG photos{without}",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="keep the prepared data there for the next time; default: a temporary folder",
    )
    return parser


@contextmanager
def open_work(kept: Path | None) -> Iterator[Path]:
    """Yield the folder of prepared data: a temporary one, unless one is kept."""
    with tempfile.TemporaryDirectory() as temporary:
        work = kept or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        yield work


def write_results(path: Path | None, results: Any) -> None:
    if path:
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
