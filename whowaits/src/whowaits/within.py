"""Times trainings within a running program, as they are: nothing is ended or repeated."""

from __future__ import annotations

import sys
from typing import Any

from .hooks import fits
from .report import Report
from .running import observe, observed
from .session import Options, Session


def _write(text: str) -> None:
    sys.stdout.write(text)


class Watch:
    """Times the trainings in its block; `report` is on the one with the most steps."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.report: Report | None = None

    def __enter__(self) -> Watch:
        self._session = Session(Options(script=self._name, keep=True, seconds=1e9), _write)
        self._before = observed()
        observe(self._session)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:  # another session, such as the command's, goes on
            observe(self._before)
        self.report = self._session.make_report()
        _write("\n".join(self.report.lines) + "\n")
        self._session.close()


def make_callback(keras: Any = None) -> Any:
    """Return a callback of the given Keras, or of the imported one, else raise ImportError."""
    found = keras or sys.modules.get("keras") or sys.modules.get("tf_keras")
    if found is None:
        raise ImportError("import keras or tf_keras first, or pass it: whowaits.Callback(keras)")
    session = Session(Options(script="fit", keep=True, seconds=1e9), _write)
    before, observer = observed(), observe(session)
    session.close()  # so that only that `fit` is timed
    if before is not None:
        observe(before)
    return fits.make_callback(found, fits.ReportingClock, session=session, watch=observer)


def register_magic(shell: Any) -> None:
    def whowaits(line: str, cell: str) -> None:
        with Watch(line or "this cell"):
            shell.run_cell(cell).raise_error()

    shell.register_magic_function(whowaits, magic_kind="cell")
