"""What pytest loads for all tests: tests/support/README.md says what each is for."""

import signal

import pytest
from hypothesis import HealthCheck, settings

from throughline.shared.gc_pause import collect_garbage_as_usual, pause_garbage_collection

pytest.register_assert_rewrite("tests.support")
pytest_plugins = (
    "tests.support.lanes",
    "tests.support.failures",
    "tests.support.quick",
    "tests.support.skips",
    "tests.support.object_stores",
    "tests.support.fixtures",
)

# How fast examples are drawn depends on the machine, and is no property of the program.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

pause_garbage_collection()  # until all libraries are imported


def pytest_collection_finish() -> None:
    collect_garbage_as_usual()
