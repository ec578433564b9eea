"""What the command lines of benchmarks have in common, and where their results are kept."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WORK = Path(".throughline") / "benchmarks"


def parse_by(description: str | None) -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=form)


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    parser = parse_by(description)
    parser.prog = f"python -m benchmarks.{name}"
    text = f"folder of prepared data and results (default: {WORK})"
    parser.add_argument("--work", type=_absolute, default=WORK.absolute(), metavar="DIR", help=text)
    return parser


def _absolute(text: str) -> Path:
    return Path(text).absolute()


def add_photos(parser: argparse.ArgumentParser) -> None:
    text = "class folders of JPEGs (default: those of `make demo DATA=photos`)"
    parser.add_argument("--photos", type=_absolute, metavar="DIR", help=text)


def add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")


def run_cases(
    path: Path, names: Sequence[str], run: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run the cases whose results are not in the file yet; print and return the results of all.

    The file has one JSON object per line. To measure again, remove it, or some of its lines.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    earlier = {result["case"]: result for result in map(json.loads, lines)}
    for name in names:
        if name not in earlier:
            earlier[name] = {"case": name, **run(name)}
            with path.open("a") as file:
                file.write(json.dumps(earlier[name]) + "\n")
        print(json.dumps(earlier[name], ensure_ascii=False), flush=True)
    return [earlier[name] for name in names]
