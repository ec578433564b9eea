"""Checks a command's parameters before it imports Prefect, which takes seconds."""

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from flows.run.resolution import resolve_command
from flows.run.source_check import check_exists
from throughline.config.table_check import check_table
from throughline.shared.failures import report_user_errors
from throughline.shared.store_address import check_store_address


def check_started_command() -> None:
    """Check this process's command line, as far as it parses here, and keep its parameters."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--pipeline", "--set", "--overlay"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--name")
    with suppress(argparse.ArgumentError):
        options, others = parser.parse_known_args(sys.argv[1:])
        if "--help" in others:
            return
        with report_user_errors():
            overlays = [Path(file) for file in options.overlay]
            _, resolved = resolve_command(options.set, overlays, options.name, options.pipeline)
            if "--show" not in others:
                params = resolved.params
                check_store_address()
                check_exists(Path.cwd(), params.data.path, fetched=params.data.fetch)
                check_table(Path.cwd(), params.data, changed=resolved.changed, window=params.window)
