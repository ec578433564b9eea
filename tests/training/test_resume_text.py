"""A training on batches by length goes on after any step with the very losses and weights of one
that never stopped.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_resume import Stop, run
from texts import params_of, prepare_texts

SNAPSHOT = {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2}
TRAIN = {"epochs": 2, "checkpoint_every": "1 step", "deterministic": True, "schedule": "constant"}


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("texts"))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [{"tokens": 256}, {"pack": 64}], ids=str)
def test_stopping_in_mid_epoch_changes_nothing(layout, tmp_path, batch):
    check_resume(params_of({**SNAPSHOT, "batch": batch}, train=TRAIN), layout, tmp_path)


@pytest.mark.slow
def test_windows_of_text_resume_as_well(layout, tmp_path):
    sections = {"window": {"tokens": 24}, "model": {"options": {"width": 8, "blocks": 1}}}
    check_resume(params_of(SNAPSHOT, train=TRAIN, **sections), layout, tmp_path)


def check_resume(params, layout, tmp_path):
    """Train undisturbed, and with a stop in the first epoch."""
    rows, weights = run(params, layout, tmp_path / "undisturbed", pipeline="p")
    with pytest.raises(Stop):
        run(params, layout, tmp_path / "stopped", stop_after=3, pipeline="p")
    again, same_weights = run(params, layout, tmp_path / "stopped", pipeline="p")
    assert again == rows
    assert all(np.array_equal(one, other) for one, other in zip(weights, same_weights, strict=True))
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
