"""Which folder is the project, where stages run in copies of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from throughline.shared.layout import STORE_HOME, Layout


@pytest.mark.parametrize(
    ("root", "project"),
    [
        ("/home/me/project", None),
        ("/home/me/project/.dvc/tmp/exps/tmp1", "/home/me/project"),
        ("/home/me/project/.dvc/tmp/exps/standalone/tmp1", "/home/me/project"),
        ("/home/me/repo/project/.dvc/tmp/exps/tmp1/project", "/home/me/repo/project"),
        ("/a/.dvc/tmp/exps/tmp1/b/.dvc/tmp/exps/tmp2", "/a/.dvc/tmp/exps/tmp1/b"),
        ("/home/me/exps/project", None),
        ("/home/me/.dvc/tmp/project", None),
    ],
)
def test_the_project_of_a_copy_is_that_in_which_dvc_was_started(monkeypatch, root, project):
    monkeypatch.delenv(STORE_HOME, raising=False)
    assert Layout(Path(root)).project == Path(project or root)
    monkeypatch.setenv(STORE_HOME, "/elsewhere")
    assert Layout(Path(root)).project == Path("/elsewhere")
