"""What is installed is what uv.lock names."""

from __future__ import annotations

import numpy as np
import pytest

from throughline.shared.errors import WrongVersion
from throughline.shared.libraries import LIBRARIES, check_versions, installed_versions


def test_another_version_than_the_locked_one_is_refused(tmp_path):
    check_versions(LIBRARIES["build"], root=tmp_path)  # nothing is locked
    lock = tmp_path / "uv.lock"
    lock.write_text(f'[[package]]\nname = "numpy"\nversion = "{np.__version__}"\n')
    check_versions(LIBRARIES["build"], root=tmp_path)
    lock.write_text('[[package]]\nname = "numpy"\nversion = "0.1"\n')
    with pytest.raises(
        WrongVersion, match=f"numpy {np.__version__} is installed, .*uv.lock names 0.1"
    ):
        check_versions(LIBRARIES["build"], root=tmp_path)


def test_what_pillow_brings_is_part_of_the_versions():
    versions = installed_versions(["pillow"])
    assert set(versions) == {"pillow", "libjpeg", "zlib"}
    assert all(version[0].isdigit() for version in versions.values())
