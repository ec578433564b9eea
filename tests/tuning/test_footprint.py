"""The memory that a search says a training takes is no less than what the train stage takes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.project import SMALL, environment, write_params
from tests.support.stack import wait_for
from throughline.config.params import load_params
from throughline.shared.limits import own_memory
from throughline.tuning.budgets import find_limits, read_budgets
from throughline.tuning.footprint import watched
from throughline.tuning.journal import Journal
from throughline.tuning.question import Question
from throughline.tuning.search import Search

pytestmark = pytest.mark.integration

PARAMS = {
    **SMALL,
    "batch_size": 4,
    "model": {"name": "mlp", "options": {"width": 8000}},
    "train": {**SMALL["train"], "epochs": 8, "early_stopping": {"patience": 20}},
}


def test_the_most_that_a_block_holds_is_seen(monkeypatch):
    held = [1]
    monkeypatch.setattr("throughline.tuning.footprint.own_memory", lambda: held[0])
    with watched() as samples:
        held[0] = 9
        wait_for(lambda: 9 in samples)
        held[0] = 1
    assert (max(samples), samples[-1]) == (9, 1)


@pytest.mark.slow
def test_a_training_takes_no_more_than_its_search_says(first, tmp_path):
    folder, _ = first
    write_params(folder, PARAMS)
    params, budgets = load_params(folder / "params.yaml"), read_budgets()
    limits = find_limits(budgets, folder)
    question = Question(params=params, root=folder, budgets=budgets, limits=limits)
    search = Search(question, Journal(tmp_path))
    with search.open_pool() as pool:
        pool.open(["naive"])
    said, most = search.measured_needs["naive"].ram_bytes, 0
    command = [sys.executable, "-m", "tasks.train", "--pipeline", "naive"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder)) as training:
        while training.poll() is None:
            most = max(most, own_memory(Path(f"/proc/{training.pid}")))
            time.sleep(0.02)
    assert training.returncode == 0 and 0 < most < said
