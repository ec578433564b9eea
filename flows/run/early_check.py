"""What a command is asked for, looked at before it imports Prefect, which takes seconds: its
parameters, its configurations, and the table that it is to learn from.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from flows.run.resolution import keep_resolved, resolve_command
from flows.run.source_check import check_exists
from throughline.config.params_file import PARAMS_FILE
from throughline.settings import DataSettings
from throughline.shared.failures import report_user_errors
from throughline.shared.layout import Layout

READ_BYTES = 8 << 20  # of a table; it takes about a second


def check_started_command() -> None:
    """Check the command line of this process and keep the parameters for the flow. What cannot be
    read of it here the command itself reports.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--pipeline", "--set", "--overlay"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--name")
    with suppress(argparse.ArgumentError):
        options, others = parser.parse_known_args(sys.argv[1:])
        if "--help" not in others:
            with report_user_errors():
                _check(options, run="--show" not in others)


def _check(options: argparse.Namespace, *, run: bool) -> None:
    overlays = [Path(file) for file in options.overlay]
    _, resolved = resolve_command(options.set, overlays, options.name, options.pipeline)
    keep_resolved(resolved)
    if run:
        data = resolved.params.data
        check_exists(Path.cwd(), data.path, fetched=data.fetch)
        check_table(Path.cwd(), data, changed=resolved.changed)


def check_table(root: Path, data: DataSettings, *, changed: bool) -> None:
    """Read a table that is not too large as ingest does it; not where ingest has done so since,
    unless the parameters are `changed` from those of params.yaml.

    Raises:
      UnreadableSource: all that is wrong.
    """
    table, manifest = root / data.path, Layout(root).manifest / "manifest.json"
    if table.suffix.lower() not in (".csv", ".tsv", ".parquet") or not table.is_file():
        return
    times = [file.stat().st_mtime for file in (root / PARAMS_FILE, table)]
    known = not changed and manifest.is_file() and manifest.stat().st_mtime > max(times)
    if known or table.stat().st_size > READ_BYTES:
        return
    from throughline.data import sources  # pandas

    found = sources.scan(data.model_copy(update={"path": str(table)}))
    if isinstance(found, sources.Texts):
        next(iter(found.documents), None)  # its header
