"""Files of one's own below data/raw survive `dvc repro`, whatever data.fetch says and said."""

from __future__ import annotations

import shutil

import pytest

from tests.support.project import SMALL, make_project, run, write_params

pytestmark = pytest.mark.slow

OWN = ("data/raw/mine/data.npz", "data/raw/fashion_mnist/own.npz", "data/raw/none/own.npz")


@pytest.fixture
def project(tmp_path, array_file):
    """A project with the user's own files below data/raw."""
    folder = make_project(tmp_path / "project", array_file)
    for name in OWN:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(array_file, path)
    return folder


def survivors(folder):
    return tuple(name for name in OWN if (folder / name).exists())


def test_files_below_data_raw_survive_every_change_of_fetch(project):
    output = run(project, "dvc", "repro", "fetch", code=None)
    assert "data/raw/none holds files that fetch did not write" in output
    assert survivors(project) == OWN
    shutil.rmtree(project / "data" / "raw" / "none")
    run(project, "dvc", "repro", "fetch")
    assert survivors(project) == OWN[:2]
    write_params(project, SMALL | {"data": SMALL["data"] | {"fetch": "fashion_mnist"}})
    output = run(project, "dvc", "repro", "fetch", code=None)
    assert "UnexpectedFiles" in output or "DataNotFound" in output
    write_params(project, SMALL)
    (project / "data" / "raw" / "none" / "late.txt").write_text("mine")
    run(project, "dvc", "repro", "--force", "fetch", code=None)
    assert survivors(project) == OWN[:2]
    assert (project / "data" / "raw" / "none" / "late.txt").exists()
