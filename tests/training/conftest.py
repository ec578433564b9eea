"""Code of one's own for trainings."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def own(request, tmp_path, monkeypatch) -> Iterator[str]:
    """The name of a module with the code that a file of tests has as OWN."""
    (tmp_path / "own_code.py").write_text(request.module.OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_code"
    sys.modules.pop("own_code", None)
