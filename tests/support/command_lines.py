"""Command lines, parsed by the parsers of the programs that they start."""

import argparse
import contextlib
import importlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import click
import typer
from typer.main import get_command

TRACKING_SERVER = "flows.servers.tracking_server"  # which takes the options of `mlflow server`


class NotAccepted(Exception):
    """A program does not take a command line; says what it says."""


class _Parsed(BaseException):
    """Ends a program as soon as it has parsed its command line."""


def parse(command: Sequence[str]) -> dict[str, Any]:
    """The options of a command by their names, as its program reads them.

    Raises:
      NotAccepted: the program is not one of ours, or refuses the command line.
    """
    if list(command[:1]) == ["prefect"]:
        return _parse_prefect(command[1:])
    if list(command[:1]) == ["dvc"]:
        return _parse_dvc(command[1:])
    if list(command[:2]) != ["python", "-m"]:
        raise NotAccepted(f"{list(command)[:3]} starts none of our programs")
    name, arguments = command[2], list(command[3:])
    try:
        module = importlib.import_module(name)
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise NotAccepted(str(error)) from error
    if name == TRACKING_SERVER:
        from mlflow.cli import cli

        return _make_context(cli.commands["server"], arguments)
    if isinstance(getattr(module, "app", None), typer.Typer):
        return _parse_one_of_several(get_command(module.app), arguments)
    if isinstance(getattr(module, "main", None), click.Command):
        return _make_context(module.main, arguments)
    if hasattr(module, "command"):
        app = typer.Typer(add_completion=False)
        app.command()(module.command)
        return _make_context(get_command(app), arguments)
    return _parse_by_argparse(name, module.main, arguments)


def _parse_by_argparse(name: str, main: Callable[[], None], arguments: list[str]) -> dict[str, Any]:
    own = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
        parser.format_help()  # fails where a text has a % of its own
        raise _Parsed(own(parser, *given, **named))

    said = io.StringIO()
    try:
        with (
            patch.object(sys, "argv", [name, *arguments]),
            patch.object(argparse.ArgumentParser, "parse_args", stop),
            contextlib.redirect_stderr(said),
        ):
            main()
    except _Parsed as parsed:
        return vars(parsed.args[0])
    except SystemExit:
        raise NotAccepted(said.getvalue().strip().rpartition("error: ")[2]) from None
    raise NotAccepted(f"{name} reads no command line")


def _parse_one_of_several(group: Any, arguments: list[str]) -> dict[str, Any]:
    name, *others = arguments or [""]
    if name not in group.commands:
        raise NotAccepted(f"{name!r} is none of its commands: {', '.join(group.commands)}")
    return _make_context(group.commands[name], others)


def _make_context(command: Any, arguments: list[str]) -> dict[str, Any]:
    """What click, or typer's copy of it, makes of arguments."""
    try:
        with command.make_context(command.name or "", arguments) as context:
            return dict(context.params)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise NotAccepted(error.format_message()) from error


def _parse_prefect(arguments: Sequence[str]) -> dict[str, Any]:
    from cyclopts import CycloptsError
    from prefect.cli._app import _app

    try:
        _, bound, _ = _app.parse_args(list(arguments), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise NotAccepted(str(error)) from error
    return dict(bound.arguments)


def _parse_dvc(arguments: Sequence[str]) -> dict[str, Any]:
    from dvc.cli import parse_args
    from dvc.cli.parser import DvcParser

    def refuse(parser: DvcParser, message: str, command: Any = None) -> None:
        raise NotAccepted(message)

    with patch.object(DvcParser, "error", refuse):
        return vars(parse_args(list(arguments)))
