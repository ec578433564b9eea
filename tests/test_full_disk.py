"""A full disk ends a stage with one paragraph and leaves what was there; a real file system of one megabyte shows it."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from conftest import SPLIT

from tasks.data.manifest import read_manifest
from tasks.errors import told_plainly
from tasks.ingest import ingest
from tasks.settings import DataSettings


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of one megabyte; skipped, loudly, where the system does not let us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here: needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_plainly_and_leaves_the_earlier_manifest(small_disk, array_settings, tmp_path, capsys):
    ingest(array_settings, small_disk / "manifest")
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "big.npz", x=draw.integers(0, 256, (2000, 30, 30), np.uint8), y=np.arange(2000) % 3)
    with pytest.raises(SystemExit) as ended, told_plainly():
        ingest(DataSettings(source="arrays", path=str(tmp_path / "big.npz"), split=SPLIT), small_disk / "manifest")
    assert ended.value.code == 2
    assert "DiskFull: no space is left" in capsys.readouterr().err
    assert len(read_manifest(small_disk / "manifest").examples) == 200
    shutil.rmtree(small_disk / "manifest.partial")
