"""Two kills of the storm, at fresh instants each time; `python tests/faults/storm.py --kills 100`
is the whole of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_two_kills_a_run_gives_the_bytes_and_losses_of_an_undisturbed_one():
    storm = Path(__file__).with_name("storm.py")
    done = subprocess.run(
        [sys.executable, str(storm), "--kills", "2", "--no-measure"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
