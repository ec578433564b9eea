"""The command line that the flows share, and their quiet entry and exit."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from flows.form import Changes
from tasks.errors import InvalidParams, UserError
from tasks.params import read_document

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key of params.yaml, e.g. train.epochs=5; repeatable")]
Overlay = Annotated[Path | None, typer.Option("--overlay", metavar="FILE", help="a YAML file laid over params.yaml")]
Name = Annotated[str | None, typer.Option("--name", help="name of the isolated workspace and of the DVC experiment; default: the flow run's name")]


def changes_of(overrides: list[str] | None, overlay: Path | None) -> Changes:
    """What --set and --overlay ask for.

    Raises:
      InvalidParams: an override is not KEY=VALUE, or the file cannot be read.
    """
    wrong = [text for text in overrides or [] if "=" not in text]
    if wrong:
        raise InvalidParams([f"--set: {text!r} is not KEY=VALUE, such as train.epochs=5" for text in wrong])
    return Changes(overrides=overrides or [], overlay=read_document(overlay) if overlay else {})


def quiet() -> None:
    """Set Prefect's defaults for running without a server set up by hand; what the user has set stays."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_LOGGING_SERVER_LEVEL", "ERROR")
    logging.getLogger("prefect.events").setLevel(logging.CRITICAL)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_users_traceback)


def _without_users_traceback(record: logging.LogRecord) -> bool:
    """A user's mistake is told in one paragraph; only bugs keep their traceback."""
    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.msg, record.args = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}", ()
        record.exc_info = record.exc_text = None
    return True
