"""Command lines, parsed by the parsers of the programs that they start."""

import argparse
import importlib
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
    match command:
        case ["prefect", *arguments]:
            return _parse_prefect(arguments)
        case ["dvc", *arguments]:
            return _parse_dvc(arguments)
        case ["python", "-m", name, *arguments]:
            return _parse_module(name, arguments)
    raise NotAccepted(f"{list(command)[:3]} starts none of our programs")


def _parse_module(name: str, arguments: list[str]) -> dict[str, Any]:
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
        group, (chosen, *arguments) = get_command(module.app), arguments or [""]
        if chosen not in group.commands:
            raise NotAccepted(f"{chosen!r} is none of its commands: {', '.join(group.commands)}")
        return _make_context(group.commands[chosen], arguments)
    if isinstance(getattr(module, "main", None), click.Command):
        return _make_context(module.main, arguments)
    if hasattr(module, "command"):
        app = typer.Typer(add_completion=False)
        app.command()(module.command)
        return _make_context(get_command(app), arguments)
    return _parse_by_argparse(name, module.main, arguments)


def _refuse(parser: argparse.ArgumentParser, message: str, command: Any = None) -> None:
    raise NotAccepted(message)


def _parse_by_argparse(name: str, main: Callable[[], None], arguments: list[str]) -> dict[str, Any]:
    own = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
        parser.format_help()  # fails where a text has a % of its own
        raise _Parsed(own(parser, *given, **named))

    with (
        patch.object(sys, "argv", [name, *arguments]),
        patch.multiple(argparse.ArgumentParser, parse_args=stop, error=_refuse),
    ):
        try:
            main()
        except _Parsed as parsed:
            return vars(parsed.args[0])
    raise NotAccepted(f"{name} reads no command line")


def _make_context(command: Any, arguments: list[str]) -> dict[str, Any]:
    """What click, or typer's copy of it, makes of arguments."""
    try:
        with command.make_context(command.name or "", arguments) as context:
            return dict(context.params)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise NotAccepted(error.format_message()) from error


def _parse_prefect(arguments: list[str]) -> dict[str, Any]:
    from cyclopts import CycloptsError
    from prefect.cli._app import _app

    try:
        _, bound, _ = _app.parse_args(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise NotAccepted(str(error)) from error
    return dict(bound.arguments)


def _parse_dvc(arguments: list[str]) -> dict[str, Any]:
    from dvc.cli import parse_args
    from dvc.cli.parser import DvcParser

    with patch.object(DvcParser, "error", _refuse):
        return vars(parse_args(arguments))
