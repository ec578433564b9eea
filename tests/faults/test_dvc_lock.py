"""A dvc.lock that a kill has left half written does not keep the next run from going on."""

from __future__ import annotations

import pytest
from test_workspaces import cheap_project

from flows.run.dvc_calls import set_damaged_lock_aside, stale_stages
from throughline.shared.errors import StageFailed

LOCKS = {
    "empty": b"",
    "cut in a key": b"schema: '2.0'\nsta",
    "cut in a value": b"schema: '2.0'\nstages:\n  report:\n    cmd: 'echo",
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
}


def test_a_damaged_dvc_lock_is_set_aside(tmp_path):
    for damage, content in LOCKS.items():
        (tmp_path / "dvc.lock").write_bytes(content)
        assert set_damaged_lock_aside(tmp_path), damage
        assert (tmp_path / "dvc.lock.damaged").read_bytes() == content
        assert not (tmp_path / "dvc.lock").exists()


@pytest.mark.slow
def test_stages_of_a_damaged_dvc_lock_run_again(tmp_path):
    project, said = cheap_project(tmp_path / "project"), []
    (project / "dvc.lock").write_bytes(LOCKS["cut in a key"])
    assert stale_stages(project, {}, said.append) == {"report"}
    assert "git checkout dvc.lock" in said[0]


@pytest.mark.slow
def test_a_merge_conflict_in_dvc_lock_is_said_and_left_alone(tmp_path):
    project = cheap_project(tmp_path / "project")
    (project / "dvc.lock").write_text("<<<<<<< HEAD\nschema: '2.0'\n")
    with pytest.raises(StageFailed) as failed:
        stale_stages(project, {}, print)
    assert "dvc.lock" in str(failed.value) and "Traceback" not in str(failed.value)
    assert (project / "dvc.lock").exists()
