"""The memory that a search says a training takes is what a training takes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from project import environment

from throughline.config.params import load_params
from throughline.shared.limits import own_memory
from throughline.tuning.budgets import find_limits, read_budgets
from throughline.tuning.contestant import do_once
from throughline.tuning.footprint import watched


def test_the_most_that_a_block_holds_is_seen():
    before = own_memory()
    with watched() as samples:
        held = b"x" * (64 << 20)
        time.sleep(0.2)
        del held
    assert max(samples) > before + (48 << 20)


@pytest.mark.slow
def test_a_training_takes_no_more_than_its_search_says(first, tmp_path):
    folder, _ = first
    survey = do_once(
        "survey",
        load_params(folder / "params.yaml"),
        folder,
        (),
        find_limits(read_budgets(epochs=2), folder),
        log=tmp_path / "survey.log",
    )
    training = subprocess.Popen(
        [sys.executable, "-m", "tasks.train", "--pipeline", "naive"],
        cwd=folder,
        env=environment(folder),
    )
    most = 0
    while training.poll() is None:
        most = max(most, own_memory(Path(f"/proc/{training.pid}")))
        time.sleep(0.02)
    assert training.returncode == 0
    assert 0 < survey.besides_steps_bytes < most < survey.needs["naive"].ram_bytes < 1.5 * most
