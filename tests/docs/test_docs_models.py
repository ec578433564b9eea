"""Every YAML and module of docs/models.md trains as the page shows it."""

from __future__ import annotations

import re
import sys

import keras
import pytest
from ruamel.yaml import YAML

from tests.support.docs_blocks import read_blocks
from tests.support.project import ROOT
from tests.support.trainings import params_of, run
from throughline.models.builders import Target, build_models
from throughline.plan.op_parsing import parse_op
from throughline.settings import ModelSettings

PAGE = ROOT / "docs" / "models.md"
RECIPES = [block for block in read_blocks(PAGE) if block.language == "yaml"]
MODULES = [block for block in read_blocks(PAGE) if block.language == "python"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the page's modules and the files of models that it names."""
    folder = tmp_path_factory.mktemp("models")
    for block in MODULES:
        (name,) = re.findall(r"^# (\w+\.py)$", block.text, re.MULTILINE)
        (folder / name).write_text(block.text)
    inputs = keras.Input((12, 10, 1))
    dense = keras.layers.Dense(9, activation="softmax")(keras.layers.Flatten()(inputs))
    keras.Model(inputs, dense).save(folder / "pretrained.keras")
    network = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5)
    network.save_weights(folder / "mobilenet.weights.h5")
    return folder


@pytest.fixture
def folder(written, monkeypatch):
    """That folder as the one in which something runs."""
    monkeypatch.chdir(written)
    monkeypatch.syspath_prepend(written)
    yield written
    for path in written.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.usefixtures("folder")
def test_the_page_trains_as_it_stands(layout, recipe, tmp_path):
    overlay = YAML(typ="safe").load(recipe.text)  # libyaml, as DVC reads it
    if overlay.get("model", {}).get("name") == "MobileNetV2":
        network = build_network(overlay["model"], overlay["postprocess"])
        frozen = [layer.name for layer in network.layers if layer.weights and not layer.trainable]
        assert "Conv1" in frozen and "block_3_expand" in frozen and len(network.trainable_weights)
        return
    overlay["model!"] = {"name": "auto", **overlay.pop("model", {})}  # as in params.yaml
    train = overlay["train"] = {"epochs": 1, **overlay.get("train", {})}
    params = params_of("train.checkpoint_every=1 epoch", overlay=overlay)
    rows, _ = run(params, layout, tmp_path / "checkpoints")
    assert len(rows) == train["epochs"] or "early_stopping" in recipe.text


def build_network(settings, postprocess):
    return build_models(
        ModelSettings.model_validate(settings),
        input_shape=(32, 32, 3),
        dtype="uint8",
        target=Target(kind="class", shape=(4,)),
        postprocess=[op for spec in postprocess if (op := parse_op(spec, where="op")[0])],
    ).network
