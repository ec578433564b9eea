"""Every reason against a configuration is listed, each with the field it is about; the texts are in
test_plan.py.
"""

from __future__ import annotations

import pytest

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.texts import text_feature
from throughline.plan.augmentations import Blur, RandAugment, RandomResizedCrop
from throughline.plan.constraints import (
    find_config_problems,
    find_fraction_problems,
    find_variable_size_problems,
)
from throughline.plan.ops import CenterCrop, Decode, Flip, Mixup, Op, RandomCrop, Rescale
from throughline.settings import PipelineConfig

MAPPED = {"read": "snapshot", "shuffle": {"kind": "global"}}


def problems_of(config: dict, *more: Op) -> list[str]:
    """The reasons against a configuration; `more` are ops after `decode`."""
    return find_config_problems(
        PipelineConfig.model_validate(config),
        preprocess=(Decode(), *more),
        augment=(Flip(),),
        postprocess=(Rescale(),),
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"cache": {"after": "decode"}, "shuffle": {"kind": "buffer"}},
        {"interleave": {}, "sampling": "balanced"},
        {**MAPPED, "snapshot_on": "device", "postprocess_on": "device", "sampling": {"a": 2}},
        {**MAPPED, "snapshot": {"fraction": 0}, "sampling": "balanced"},
    ],
)
def test_nothing_is_said_against_what_can_work(config):
    assert problems_of(config) == []


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"cache": {"after": "flip"}, "service": {}}, ["cache.after", "cache"]),
        ({"read": "snapshot", "vectorize": True}, ["vectorize", "shuffle.kind"]),
        ({**MAPPED, "cache": {}, "interleave": {}}, ["cache", "interleave"]),
        ({"snapshot_on": "device", "prefetch": 2}, ["snapshot_on", "prefetch"]),
        (
            {"snapshot_on": "device", "snapshot": {"fraction": 0.5}},
            ["snapshot.fraction", "snapshot_on", "snapshot.fraction"],
        ),
        ({"read": "arrays", "service": {}, "sampling": {}}, ["sampling", "service", "service"]),
        (
            {"decode": {"ratio": 2, "crop": "fused"}, "shuffle": {"kind": "window"}},
            ["shuffle.kind", "decode"],
        ),
    ],
)
def test_all_reasons_are_listed_by_their_fields(config, fields):
    assert [problem.partition(":")[0] for problem in problems_of(config)] == fields


def test_a_part_is_stored_of_images_alone():
    text, numbers = text_feature().encoding, array_feature("numbers", (3,), "float32").encoding
    assert find_fraction_problems(0.3, image_feature().encoding) == []
    assert find_fraction_problems(1.0, text) == find_fraction_problems(1.0, numbers) == []
    for encoding in (text, numbers):
        (problem,) = find_fraction_problems(0.0, encoding)
        assert problem.endswith(f"can be stored of images, not of {encoding.noun}; drop it")


def test_ops_that_cannot_work_are_named():
    crop = CenterCrop(height=8, width=8)
    (scaled,) = problems_of({"decode": {"ratio": 2}}, crop)
    assert scaled.startswith("decode.ratio: center_crop counts pixels")
    (unknown,) = problems_of({"cache": {"after": "resize"}}, crop)
    assert unknown == "cache.after: resize is not one of the preprocess ops (decode, center_crop)"


def test_images_that_differ_in_size_are_neither_batched_nor_gathered_on_the_device():
    crop, host = RandomCrop(height=8, width=8), PipelineConfig.model_validate(MAPPED)
    device = PipelineConfig.model_validate({**MAPPED, "snapshot_on": "device"})
    assert find_variable_size_problems(host, (crop,)) == []
    assert find_variable_size_problems(device, ()) == []
    (batched,) = find_variable_size_problems(host, (Mixup(), crop))
    assert batched.startswith("augment: mixup needs batches")
    (resident,) = find_variable_size_problems(device, (crop,))
    assert resident.startswith("snapshot_on: variable-size images are cropped")


def test_what_opencv_computes_is_neither_sent_to_a_service_nor_all_of_it_done_on_the_device():
    crop = RandomResizedCrop(height=8, width=8)

    def problems(config: dict) -> list[str]:
        return find_config_problems(
            PipelineConfig.model_validate(config),
            preprocess=(Decode(),),
            augment=(crop, Flip(), Blur(), RandAugment()),
            postprocess=(Rescale(),),
        )

    assert problems({}) == problems(MAPPED) == []
    by_service = problems({"service": {}})
    assert [problem.split()[1] for problem in by_service] == [
        "random_resized_crop",
        "blur",
        "randaugment",
    ]
    assert "cannot be sent to the workers of a tf.data service" in by_service[0]
    (resident,) = problems({**MAPPED, "snapshot_on": "device"})
    assert resident == (
        "snapshot_on: randaugment runs on the host alone; use host, or drop randaugment"
    )
