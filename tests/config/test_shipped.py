"""The shipped params.yaml and the overlays of the demos are valid, and are what they say."""

from __future__ import annotations

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.project import ROOT
from throughline.config.params import load_params


def test_the_shipped_file_is_valid_and_so_are_the_demos_overlays(monkeypatch):
    shipped = [*load_params(ROOT / "params.yaml").pipelines]
    assert shipped == ["naive", "map_parallel", "vectorized", "optimized"]
    monkeypatch.chdir(ROOT)
    for overlay in (ROOT / "infra/presets/images.yaml", *ROOT.glob("infra/demo/*.yaml")):
        assert resolve(ROOT, Changes(preset=str(overlay.relative_to(ROOT)))).params


def test_a_mapping_that_ends_in_an_exclamation_mark_replaces_and_an_overlay_comes_after_a_preset(
    monkeypatch,
):
    monkeypatch.chdir(ROOT)
    changes = Changes(
        preset="infra/demo/small.yaml", overlay={"pipelines": {"naive": {"prefetch": 3}}}, epochs=7
    )
    params = resolve(ROOT, changes).params
    assert [*params.pipelines] == ["naive", "vectorized", "optimized"], "the preset's alone"
    assert (params.pipelines["naive"].prefetch, params.train.epochs) == (3, 7)
