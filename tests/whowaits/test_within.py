"""What notebooks and programs use: `whowaits.within`."""

from __future__ import annotations

import sys

import keras
import pytest

import whowaits
from whowaits.running import observe
from whowaits.session import Options, Session
from whowaits.within import register_magic


class Shell:
    """As much of IPython as a cell magic needs."""

    def __init__(self):
        self.magics, self.cells = {}, []

    def register_magic_function(self, function, magic_kind):
        self.magics[magic_kind, function.__name__] = function

    def run_cell(self, cell):
        self.cells.append(cell)
        return self

    def raise_error(self):
        self.cells.append("raised")


@pytest.fixture(autouse=True)
def _restored_import(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])


def test_a_cell_is_run_and_said_what_it_lacks(capsys):
    shell = Shell()
    register_magic(shell)
    shell.magics["cell", "whowaits"]("", "1 + 1")
    assert shell.cells == ["1 + 1", "raised"]
    assert capsys.readouterr().out.startswith("this cell: undecided\n  it ended without a training")


def test_the_command_goes_on_after_a_callback_and_a_watch_in_the_script(capsys):
    command = Session(Options(keep=True), print)
    observer = observe(command)
    whowaits.Callback(keras)
    assert observer.session is command and command.here
    with whowaits.watch():
        assert observer.session is not command
    assert observer.session is command and command.here
    command.close()


@pytest.mark.slow
def test_an_error_within_is_the_programs_own(capsys):
    with pytest.raises(ValueError, match="its own"), whowaits.watch("my block") as seen:
        raise ValueError("its own")
    assert seen.report.verdict == "undecided"
    assert capsys.readouterr().out.startswith("my block: undecided\n")
