"""Saves of a script once its model has seen repeated batches: `whowaits.hooks.saves`."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from whowaits.hooks import saves
from whowaits.session import Options, Session


class Trainer:
    """A trainer of a library, which saves by a method."""

    def save(self, path):
        Path(path).write_text("saved by a trainer")
        return path


class Special(Trainer):
    pass


def save(value, file):
    """Save as torch.save does, to a path or a file."""
    file.write(value) if hasattr(file, "write") else Path(file).write_bytes(value)


LIBRARY = SimpleNamespace(__name__="library.io", save=save, Trainer=Special)


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session that leaves saves out from now on, in a folder with a checkpoint of before."""
    for module, names in saves.REMOVING.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", open)
    monkeypatch.setattr(Trainer, "save", Trainer.save)
    monkeypatch.setattr(LIBRARY, "save", save)
    monkeypatch.chdir(tmp_path)
    Path("best").write_text("of before")
    session = Session(Options(script="train.py"), lambda _: None)
    watch = saves.SaveWatch(session)
    watch._patch(LIBRARY, ("save", "Trainer.save", "Trainer.none", "Nobody.save"))
    session.on_other_batches = watch.watch_files
    LIBRARY.Trainer().save("early")
    assert Path("early").read_text() == "saved by a trainer", "nothing has been repeated yet"
    session.leave_saves_out()
    return session


def write(mode):
    with open("best", mode) as file:  # noqa: PTH123 - as scripts do
        pickle.dump([1], file)


@pytest.mark.parametrize(
    "do",
    [
        lambda: LIBRARY.save(b"x", "best"),
        lambda: LIBRARY.Trainer().save("best"),
        lambda: write("wb"),
        lambda: Path("best").write_text("x"),
        lambda: shutil.copyfile("early", "best"),
        lambda: os.replace("early", "best"),
        lambda: os.replace("never written", "best"),
        lambda: Path("best").unlink(),
        lambda: shutil.rmtree("."),
    ],
)
def test_what_was_saved_before_is_neither_replaced_nor_deleted(session, capsys, do):
    do()
    assert Path("best").read_text() == "of before" and Path("early").exists()
    do()
    said = capsys.readouterr().err
    assert said.count("left out") == 1 and "test_saves.py:" in said


def test_what_is_no_save_is_done_as_it_is(session):
    buffer = io.BytesIO()
    LIBRARY.save(b"x", buffer)
    assert buffer.getvalue() == b"x"
    with open("log", "a") as file:  # noqa: PTH123
        file.write("one more line")
    assert Path("log").read_text() == "one more line", "it replaces nothing"
    name = "site-packages/library.py"  # such as one that compiles what it is given
    exec(compile("open('compiled', 'w').close()", name, "exec"), {})
    assert Path("compiled").exists()
