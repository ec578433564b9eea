"""The examples of docs/training.md run as they stand, one after another, in a project after its
first `dvc repro`.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.project import ROOT


@pytest.mark.slow
@pytest.mark.integration
def test_every_example_of_the_training_guide_runs(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.chdir(folder)
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL
    )
    assert len(blocks) == 6
    names: dict = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/training.md, example {number + 1}", "exec"), names)
    assert np.isfinite(float(names["loss"]))
    assert names["next_step"] == 2 * names["mapped"].steps_per_epoch
    alone, whole = names["resident"], names["mapped"]
    assert all(
        np.array_equal(one[0], other[0])
        for one, other in zip(alone.batches(epochs=1), whole.dataset(), strict=True)
    )
