"""A worker that has loaded other libraries than are installed now computes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from throughline.shared import dask_task
from throughline.shared.dask_task import THREADS, Stage, check_worker, describe_program
from throughline.shared.errors import EngineFailed

MODULES = ("throughline.shared.files",)


def test_a_library_that_was_updated_after_a_worker_has_started_is_named(tmp_path, monkeypatch):
    for name in THREADS:
        monkeypatch.setenv(name, "1")  # as it was, afterwards
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setattr(dask_task, "_VERSIONS", {})
    token = tmp_path / "token"
    token.write_text("drawn")
    stage = Stage(
        root=str(Path.cwd()),
        token=token,
        text="drawn",
        modules=MODULES,
        program=describe_program(MODULES),
    )
    check_worker(stage)
    check_worker.cache_clear()  # it is of another stage, whose environment is the same
    monkeypatch.setitem(dask_task._VERSIONS, "numpy", "0.1")
    with pytest.raises(EngineFailed, match="has started before numpy was updated; restart"):
        check_worker(stage)
