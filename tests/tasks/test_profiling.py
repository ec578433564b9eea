"""The profile stage measures the training as it is configured."""

from __future__ import annotations

import keras
import pytest
from project import run_stages

RECORDING_MODEL = """
import pathlib
import keras


def build(input_shape, outputs):
    pathlib.Path("policy.txt").write_text(keras.config.dtype_policy().name)
    layers = [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(outputs)]
    return keras.Sequential(layers)
"""


@pytest.fixture
def precision():
    """The policy of this process, which a stage may set, is as before after the test."""
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.slow
@pytest.mark.usefixtures("precision")
def test_the_model_is_profiled_in_the_precision_of_its_training(first, monkeypatch):
    folder, _ = first
    monkeypatch.syspath_prepend(folder)
    (folder / "recording.py").write_text(RECORDING_MODEL)
    params = folder / "params.yaml"
    params.write_text(
        params.read_text()
        .replace("name: mlp", "name: 'recording:build'")
        .replace("train:\n", "train:\n  mixed_precision: true\n")
    )
    run_stages(folder, "profiling@naive")
    assert (folder / "policy.txt").read_text() == "mixed_bfloat16"
