"""Every reason against a configuration is listed, each with the field it is about; the texts are in
test_plan.py.
"""

from __future__ import annotations

import pytest

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.texts import text_feature
from throughline.plan.augmentations import (
    Blur,
    Cutout,
    Flip,
    Mixup,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
)
from throughline.plan.constraints import (
    find_config_problems,
)
from throughline.plan.data_constraints import (
    find_data_problems,
    find_fraction_problems,
    find_label_problems,
    find_ops_problems,
    find_variable_size_problems,
)
from throughline.plan.ops import (
    Categories,
    CenterCrop,
    Decode,
    OneHot,
    Op,
    Rescale,
    Resize,
    Standardize,
)
from throughline.plan.schema import Encoding
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
        ({**MAPPED, "deterministic": False}, ["deterministic"]),
        ({**MAPPED, "read": "indexed_shards", "deterministic": False}, ["deterministic"]),
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
    (unknown,) = problems_of({"cache": {"after": "resize"}}, crop)
    assert unknown == "cache.after: resize is not one of the preprocess ops (decode, center_crop)"


ROWS = array_feature("numbers", (3,), "float32").encoding
SERIES = array_feature("series", (3,), "float32").encoding
HALF = {"decode": {"ratio": 2}}
GIVEN = Standardize(mean=(0.5,), deviation=(0.25,))
HALVED = Rescale(scale=0.5)


class OneByOne(Op):
    """An op of one's own that takes no batches."""

    name = "one_by_one"
    takes = "example"
    random = True


def data_problems(config: dict, encoding: Encoding, *augment: Op, **about: bool) -> list[str]:
    return find_data_problems(
        PipelineConfig.model_validate(config),
        encoding,
        [("preprocess", Decode()), *(("augment", op) for op in augment)],
        **{"windows": False, "predicts_number": False, "columns": False, **about},
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"interleave": {}}, "interleave: windows of a time series need the blocks in their order"),
        ({"deterministic": False}, "deterministic: windows of a time series need the blocks"),
        ({"service": {}}, "service: its workers would cut windows out of different blocks"),
        ({"sampling": "balanced"}, "sampling: windows of a time series have no class"),
        ({"read": "indexed_shards"}, "read: a window of a time series is made of several records"),
        ({"vectorize": True}, "vectorize: windows are batched when they exist"),
        ({"batch": {"tokens": 9}}, "batch: windows of a time series have one length"),
    ],
)
def test_windows_of_a_series_are_cut_out_of_blocks_in_their_order(config, expected):
    (problem,) = data_problems(config, SERIES, windows=True)
    assert problem.startswith(expected)
    resident = {**MAPPED, "snapshot_on": "device"}
    assert data_problems(resident, SERIES, windows=True) == []


@pytest.mark.parametrize(
    ("augment", "said"),
    [
        ((), "decode.ratio: nothing resizes the images"),
        ((RandomCrop(height=8, width=8),), "decode.ratio: random_crop counts pixels"),
        ((CenterCrop(height=8, width=8), Resize(shorter=8)), "decode.ratio: center_crop counts"),
        ((Cutout(size=4), RandomResizedCrop(height=8, width=8)), "decode.ratio: cutout counts"),
        ((Blur(), RandomResizedCrop(height=8, width=8)), "decode.ratio: blur counts pixels"),
        ((Resize(height=8, width=8), RandomCrop(height=4, width=4)), None),
        ((Resize(shorter=8), RandomCrop(height=8, width=8)), None),
        ((RandomResizedCrop(height=8, width=8),), None),
    ],
)
def test_images_decoded_at_a_smaller_size_are_resized_before_pixels_count(augment, said):
    problems = data_problems(HALF, image_feature().encoding, *augment)
    assert [said is not None and problem.startswith(said) for problem in problems] == (
        [True] if said else []
    )
    assert data_problems(HALF, array_feature("pixels", (8, 8, 3), "uint8").encoding) == []


@pytest.mark.parametrize(
    ("encoding", "windows"), [(text_feature().encoding, False), (SERIES, True), (ROWS, None)]
)
def test_single_examples_come_from_a_snapshot_of_neither_texts_nor_windows(encoding, windows):
    problems = data_problems(MAPPED, encoding, OneByOne(), windows=bool(windows))
    expected = [
        f"augment: one_by_one takes one example at a time, and a snapshot of {encoding.noun} gives"
        " whole batches; use `read: shards`"
    ]
    assert problems == (expected if windows is not None else [])
    assert data_problems({}, encoding, OneByOne(), windows=bool(windows)) == []


@pytest.mark.parametrize("on", ["host", "device"])
def test_what_is_computed_after_all_has_whole_batches_from_a_snapshot(on):
    config = PipelineConfig.model_validate({**MAPPED, "postprocess_on": on})
    ops = [("postprocess", OneByOne())]
    about = {"windows": False, "predicts_number": False, "columns": False}
    (problem,) = find_data_problems(config, image_feature().encoding, ops, **about)
    assert problem.startswith("postprocess: one_by_one takes one example at a time")
    streamed = PipelineConfig()
    assert find_data_problems(streamed, image_feature().encoding, ops, **about) == []
    layered = OneByOne()
    object.__setattr__(layered, "device", True)
    found = find_data_problems(
        config, image_feature().encoding, [("postprocess", layered)], **about
    )
    assert len(found) == (on == "host")


def test_what_is_stored_is_made_of_single_examples():
    (problem,) = problems_of({}, Mixup())
    assert problem.startswith("preprocess: mixup takes whole batches")


def test_numbers_to_predict_are_no_classes():
    (drawn,) = data_problems({"sampling": "balanced"}, ROWS, predicts_number=True)
    assert drawn == "sampling: a number to predict is no class to draw by; drop `sampling`"
    ops = [("augment", Flip()), ("augment", Mixup()), ("postprocess", OneHot())]
    assert find_label_problems(ops) == [
        f"{section}: {name} needs labels that are classes, and these are numbers to predict; drop"
        " it"
        for section, name in (("augment", "mixup"), ("postprocess", "one_hot"))
    ]


@pytest.mark.parametrize(
    ("encoding", "ops", "said"),
    [
        (ROWS, [("postprocess", HALVED), ("postprocess", Categories())], "rescale changes the"),
        (ROWS, [("postprocess", Categories()), ("postprocess", HALVED)], None),
        (ROWS, [("postprocess", Standardize()), ("postprocess", Categories())], None),
        (
            image_feature().encoding,
            [("postprocess", Rescale()), ("postprocess", Standardize())],
            "standardize takes mean and deviation of the stored values, which rescale has changed",
        ),
        (
            image_feature().encoding,
            [("postprocess", Rescale()), ("postprocess", GIVEN)],
            None,
        ),
        (ROWS, [("postprocess", OneHot()), ("postprocess", Standardize())], None),
        (ROWS, [("postprocess", Standardize()), ("postprocess", HALVED)], None),
        (ROWS, [("postprocess", Rescale())], "postprocess: rescale divides by 255, as pixels need"),
        (SERIES, [("postprocess", Rescale())], "postprocess: rescale divides by 255, as pixels"),
        (ROWS, [("preprocess", OneHot())], "preprocess: one_hot changes labels"),
        (ROWS, [("preprocess", Categories())], "preprocess: categories makes the floats that"),
        (ROWS, [("preprocess", Standardize())], "preprocess: standardize makes the floats that a"),
        (ROWS, [("preprocess", GIVEN)], None),
        (
            image_feature().encoding,
            [("preprocess", Rescale()), ("preprocess", Resize(height=8, width=8))],
            "preprocess: rescale makes the floats that a model sees, which are not what is stored;"
            " move it to postprocess",
        ),
        (
            image_feature().encoding,
            [("postprocess", Resize(height=8, width=8))],
            "postprocess: resize has no layer, and a model holds what postprocess does",
        ),
        (
            image_feature().encoding,
            [("postprocess", Categories())],
            "categories works on numbers, not on images",
        ),
    ],
)
def test_ops_are_refused_where_they_would_spoil_the_data(encoding, ops, said):
    problems = find_ops_problems(encoding, ops)
    assert [said in problem for problem in problems] == ([True] if said else [])


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
            augment=(crop, Flip(), Blur(), RandAugment(), OneByOne()),
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
    assert problems({**MAPPED, "snapshot_on": "device"}) == [
        "snapshot_on: randaugment runs on the host alone; use host, or drop randaugment",
        "snapshot_on: one_by_one takes one example at a time, and the train step has whole batches;"
        " use host",
    ]
