"""Every YAML and module of docs/models.md trains as the page shows it."""

from __future__ import annotations

import re
import sys

import keras
import pytest
from docs_blocks import read_blocks
from project import ROOT
from ruamel.yaml import YAML
from trainings import params_of, run

from throughline.models.builders import Target, build_models
from throughline.plan.op_parsing import parse_op
from throughline.settings import ModelSettings

PAGE = ROOT / "docs" / "models.md"
RECIPES = [block for block in read_blocks(PAGE) if block.language == "yaml"]
MODULES = [block for block in read_blocks(PAGE) if block.language == "python"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's modules and the files of models that it names."""
    for block in MODULES:
        (name,) = re.findall(r"^# (\w+\.py)$", block.text, re.MULTILINE)
        (tmp_path / name).write_text(block.text)
    inputs = keras.Input((12, 10, 1))
    dense = keras.layers.Dense(9, activation="softmax")(keras.layers.Flatten()(inputs))
    keras.Model(inputs, dense).save(tmp_path / "pretrained.keras")
    network = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5)
    network.save_weights(tmp_path / "mobilenet.weights.h5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_the_page_trains_as_it_stands(folder, layout, recipe):
    overlay = YAML(typ="safe").load(recipe.text)  # libyaml, as DVC reads it
    if overlay.get("model", {}).get("name") == "MobileNetV2":
        network = build_network(overlay["model"], overlay["postprocess"])
        frozen = [layer.name for layer in network.layers if layer.weights and not layer.trainable]
        assert "Conv1" in frozen and "block_3_expand" in frozen and len(network.trainable_weights)
        return
    overlay["model!"] = {"name": "auto", **overlay.pop("model", {})}  # as in params.yaml
    rows, _ = run(params_of(overlay=overlay), layout, folder / "checkpoints")
    assert len(rows) == overlay.get("train", {}).get("epochs", 3) or "early_stopping" in recipe.text


def build_network(settings, postprocess):
    return build_models(
        ModelSettings.model_validate(settings),
        input_shape=(32, 32, 3),
        dtype="uint8",
        target=Target(kind="class", shape=(4,)),
        postprocess=[op for spec in postprocess if (op := parse_op(spec, where="op")[0])],
    ).network
