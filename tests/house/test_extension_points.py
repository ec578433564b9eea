"""What can be added is known in few places, and these agree."""

from typing import get_type_hints

import pytest
from ruamel.yaml import YAML

from tests.support.project import ROOT
from throughline.config.params import ParamsDocument
from throughline.data import sources
from throughline.data.encodings.base import FileEncoding
from throughline.data.sources import class_folders
from throughline.kernels.kernels import compute
from throughline.pipelines.dataset import build_step
from throughline.plan import steps
from throughline.plan.ops import REGISTRY, Decode, DecodeImage, DecodeRaw, Load, Op, Parse
from throughline.plan.schema import find_encoding
from throughline.settings import PipelineConfig
from throughline.settings.source_kinds import SOURCES

pytestmark = pytest.mark.integration

KINDS_OF_STEPS = steps.Step.__subclasses__()
NOT_SOURCES = {"__init__", "class_folders", "external_shards", "folder_layout"}


def test_every_source_has_its_file_its_scanner_and_its_facts():
    files = {path.stem for path in (ROOT / "throughline" / "data" / "sources").glob("*.py")}
    folders = {name for name, kind in SOURCES.items() if name not in sources.SCANNERS}
    assert files - NOT_SOURCES == set(sources.SCANNERS) == set(SOURCES) - folders
    assert all(isinstance(find_encoding(SOURCES[name].encoding), FileEncoding) for name in folders)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_the_facts_of_a_source_agree_with_the_form_of_its_examples(name):
    form = get_type_hints(sources.SCANNERS.get(name, class_folders.scan))["return"]
    storage = find_encoding(SOURCES[name].encoding).storage
    assert (storage == "files") == (form is sources.Files)
    assert (storage == "blocks") == (form is sources.Series)
    assert (storage == "documents") == (form is sources.Texts)


@pytest.mark.parametrize("name", sorted({*REGISTRY} - {Decode.name}))
def test_every_op_has_a_kernel(name):
    assert compute.dispatch(REGISTRY[name]) is not compute.dispatch(Op)


def test_every_op_is_registered_but_those_that_plans_put_in_themselves():
    named = {kind for kind in _subclasses(Op) if "name" in vars(kind)}
    public = {kind for kind in named if kind.__module__.startswith("throughline.plan.")}
    assert public == {*REGISTRY.values(), DecodeImage, DecodeRaw, Load, Parse}


def test_every_preset_is_described():
    text = (ROOT / "docs" / "configurations.md").read_text()
    for path in (ROOT / "infra" / "presets").glob("*.yaml"):
        presets = YAML(typ="safe").load(path.read_text())["pipelines!"]
        assert not [name for name in presets if f"`{name}`" not in text], path.name


@pytest.mark.parametrize("kind", KINDS_OF_STEPS, ids=lambda kind: kind.__name__)
def test_every_step_has_a_text_a_key_and_a_builder(kind):
    assert "__str__" in vars(kind)
    assert kind.params_key in {**PipelineConfig.model_fields, **ParamsDocument.model_fields}
    assert kind is steps.Gather or build_step.dispatch(kind) is not build_step.dispatch(object)


def _subclasses(kind: type) -> set[type]:
    children = set(kind.__subclasses__())
    return children.union(*(_subclasses(child) for child in children))
