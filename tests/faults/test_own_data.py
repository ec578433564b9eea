"""Files of one's own below data/raw survive `dvc repro`, whatever data.fetch says and said."""

from __future__ import annotations

import copy
import shutil

import pytest
from ruamel.yaml import YAML

from tests.support.project import SMALL, make_project, run, write_params
from throughline.config.params import check
from throughline.shared.errors import InvalidParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OWN = ("data/raw/mine/data.npz", "data/raw/fashion_mnist/own.npz", "data/raw/none/own.npz")


def params(**data):
    changed = copy.deepcopy(SMALL)
    changed["data"] |= data
    return changed


@pytest.fixture
def project(tmp_path, array_file):
    """A project with files of the user's own below data/raw, made when that was an output as a
    whole.
    """
    folder = make_project(tmp_path / "project", array_file)
    for name in OWN:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(array_file, path)
    lock = {
        "fetch": {
            "cmd": "python -m tasks.fetch",
            "outs": [{"path": "data/raw", "hash": "md5", "md5": "0" * 32 + ".dir"}],
        }
    }
    with (folder / "dvc.lock").open("w") as file:
        YAML().dump({"schema": "2.0", "stages": lock}, file)
    return folder


def survivors(folder):
    return tuple(name for name in OWN if (folder / name).exists())


def test_files_below_data_raw_survive_every_change_of_fetch(project):
    write_params(project, params(path="data/raw/mine/data.npz"))
    output = run(project, "dvc", "repro", "fetch", code=None)
    assert "data.path: data/raw/mine/data.npz is in data/raw" in output, "it is refused there"
    assert survivors(project) == OWN
    write_params(project, SMALL)
    output = run(project, "dvc", "repro", "fetch", code=None)
    assert (
        "data/raw/none holds files that fetch did not write" in output and survivors(project) == OWN
    )
    shutil.rmtree(project / "data" / "raw" / "none")
    run(project, "dvc", "repro", "fetch")
    assert survivors(project) == OWN[:2]
    write_params(project, params(fetch="fashion_mnist"))
    output = run(project, "dvc", "repro", "fetch", code=None)
    assert "UnexpectedFiles" in output or "DataNotFound" in output
    write_params(project, SMALL)
    (project / "data" / "raw" / "none" / "late.txt").write_text("mine")
    run(project, "dvc", "repro", "--force", "fetch", code=None)
    assert (
        survivors(project) == OWN[:2] and (project / "data" / "raw" / "none" / "late.txt").exists()
    )


@pytest.mark.parametrize(
    ("fetch", "path", "fine"),
    [
        ("none", "data/raw/mine", False),
        ("none", "./data/../data/raw", False),
        ("none", "data/rawer", True),
        ("photos", "data/raw/photos", True),
        ("photos", "data/raw/photos/beach", True),
        ("photos", "data/raw/fashion_mnist", False),
        ("photos", "elsewhere", True),
    ],
)
def test_which_data_may_lie_below_data_raw(fetch, path, fine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if fine:
        check(params(fetch=fetch, path=path))
        return
    with pytest.raises(InvalidParams, match=r"is in data/raw, which is for what data\.fetch gets"):
        check(params(fetch=fetch, path=path))
