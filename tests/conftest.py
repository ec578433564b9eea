"""What pytest loads for all tests: tests/support/README.md says what each is for."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.support")
pytest_plugins = (
    "tests.support.lanes",
    "tests.support.failures",
    "tests.support.quick",
    "tests.support.skips",
    "tests.support.object_stores",
    "tests.support.stored_snapshots",
    "tests.support.trainings",
    "tests.support.fixtures",
)
