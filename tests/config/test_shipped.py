"""The shipped params.yaml and the overlays of the demos are valid, and are what they say."""

from __future__ import annotations

from collections.abc import Sequence

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.project import ROOT
from throughline.config.params import load_params
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.plan.augmentations import ResizedCenterCrop
from throughline.plan.ops import Op
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec


def test_the_shipped_file_is_valid_and_so_are_the_demos_overlays(monkeypatch):
    assert [*load_params(ROOT / "params.yaml").pipelines] == [
        "naive",
        "map_parallel",
        "vectorized",
        "optimized",
    ]
    monkeypatch.chdir(ROOT)
    for overlay in (
        *(ROOT / "infra" / "demo").glob("*.yaml"),
        ROOT / "infra" / "presets" / "images.yaml",
    ):
        assert resolve(ROOT, Changes(preset=str(overlay.relative_to(ROOT)))).params


def test_a_mapping_that_ends_in_an_exclamation_mark_replaces_and_an_overlay_comes_after_a_preset(
    monkeypatch,
):
    monkeypatch.chdir(ROOT)
    changes = Changes(
        preset="infra/demo/small.yaml", overlay={"pipelines": {"naive": {"prefetch": 3}}}, epochs=7
    )
    params = resolve(ROOT, changes).params
    assert list(params.pipelines) == ["naive", "vectorized", "optimized"], (
        "those of the preset alone"
    )
    assert (params.pipelines["naive"].prefetch, params.train.epochs) == (3, 7)


def test_the_imagenet_recipe_trains_on_random_rectangles_and_evaluates_the_center(monkeypatch):
    monkeypatch.chdir(ROOT)
    params = resolve(ROOT, Changes(preset="infra/demo/imagenet.yaml")).params
    photos = labeled(image_feature())

    def plan(augment: Sequence[Op], name: str) -> str:
        spec = InputSpec(
            schema=photos,
            preprocess=params.preprocess,
            augment=augment,
            postprocess=params.postprocess,
            batch_size=params.batch_size,
        )
        return str(make_plan(params.pipelines[name], spec))

    center = [steady for op in params.augment if (steady := op.in_evaluation())]
    assert center == [ResizedCenterCrop(height=224, width=224, shorter=256)]
    assert "map:load+decode+resize+random_resized_crop+flip+standardize → batch[64]" in plan(
        params.augment, "naive"
    )
    gather, crop = "gather:snapshot[global shuffle,64]+", "fetched[cores] → prefetch[2] ⇒ device"
    assert plan(params.augment, "optimized") == (
        f"{gather}random_resized_crop fetched+flip {crop}:standardize"
    )
    assert plan(center, "optimized") == f"{gather}resized_center_crop {crop}:standardize"
