"""Every reason against a configuration has its field; test_plan.py has those that need no data."""

import pytest

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.texts import text_feature
from throughline.plan.augmentations import (
    Blur,
    Flip,
    Mixup,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
)
from throughline.plan.constraints import find_config_problems
from throughline.plan.data_constraints import (
    find_data_problems,
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
from throughline.plan.shapes import choose_token_window, choose_window
from throughline.settings import PipelineConfig, WindowSettings
from throughline.shared.errors import InvalidParams

MAPPED = {"read": "snapshot", "shuffle": {"kind": "global"}}
IMAGES = image_feature().encoding
TEXT = text_feature().encoding
ROWS = array_feature("numbers", (3,), "float32").encoding
SERIES = array_feature("series", (3,), "float32").encoding
GIVEN = Standardize(mean=(0.5,), deviation=(0.25,))
HALVED = Rescale(scale=0.5)


class OneByOne(Op):
    """An op of one's own that takes no batches."""

    name = "one_by_one"
    takes = "example"
    random = True


def problems_of(config: dict, *augment: Op) -> list[str]:
    ops = [("preprocess", Decode()), *(("augment", op) for op in augment)]
    return find_config_problems(
        PipelineConfig.model_validate(config), [*ops, ("postprocess", Rescale())], batch_size=32
    )


def data_problems(config: dict, encoding: Encoding, *augment: Op, ops=None, **about) -> list[str]:
    return find_data_problems(
        PipelineConfig.model_validate(config),
        encoding,
        ops or [("preprocess", Decode()), *(("augment", op) for op in augment)],
        **{"windows": False, "predicts_number": False, "columns": False, **about},
    )


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"cache": {"after": "flip"}, "service": {}}, ["cache.after", "cache"]),
        ({"read": "snapshot", "vectorize": True}, ["vectorize", "shuffle.kind"]),
        ({**MAPPED, "deterministic": False}, ["deterministic"]),
        ({**MAPPED, "cache": {}, "interleave": {}}, ["cache", "interleave"]),
        ({"snapshot_on": "device", "snapshot": {"fraction": 0.5}},
         ["snapshot.fraction", "snapshot_on", "snapshot.fraction"]),
        ({"read": "arrays", "service": {}, "sampling": {}}, ["sampling", "service", "service"]),
        ({"decode": {"ratio": 2, "crop": "fused"}, "shuffle": {"kind": "window"}},
         ["shuffle.kind", "decode"]),
    ],
)  # fmt: skip
def test_all_reasons_are_listed_by_their_fields(config, fields):
    assert [problem.partition(":")[0] for problem in problems_of(config, Flip())] == fields


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"interleave": {}}, "interleave: windows of {windows} need the {blocks}"),
        ({"deterministic": False}, "deterministic: windows of {windows} need the {blocks}"),
        ({"service": {}}, "service: its workers would cut windows out of different {blocks}"),
        ({"sampling": "balanced"}, "sampling: windows of {windows} have no class"),
        ({"read": "indexed_shards"}, "read: a window of {windows} is made of several records"),
        ({"vectorize": True}, "vectorize: windows are batched only after they are cut"),
        ({"batch": {"tokens": 9}}, "batch: windows of {windows} have one length"),
    ],
)
def test_windows_are_cut_out_of_blocks_in_their_order(config, expected):
    for encoding, *words in ((SERIES, "a time series", "blocks"), (TEXT, "text", "documents")):
        (problem,) = data_problems(config, encoding, windows=True)
        said = dict(zip(("windows", "blocks"), words, strict=True))
        assert problem.startswith(expected.format(**said))


def test_windows_of_a_series_alone_are_gathered_on_the_device():
    resident = {**MAPPED, "snapshot_on": "device"}
    assert data_problems(resident, SERIES, windows=True) == []
    (problem,) = data_problems(resident, TEXT, windows=True)
    assert problem.startswith("snapshot_on: windows of text are gathered")


@pytest.mark.parametrize(
    ("augment", "said"),
    [
        ((), "decode.ratio: nothing resizes the images"),
        ((RandomCrop(height=8, width=8),), "decode.ratio: random_crop counts pixels"),
        ((CenterCrop(height=8, width=8), Resize(shorter=8)), "decode.ratio: center_crop counts"),
        ((Blur(), RandomResizedCrop(height=8, width=8)), "decode.ratio: blur counts pixels"),
        ((Resize(height=8, width=8), RandomCrop(height=4, width=4)), None),
        ((RandomResizedCrop(height=8, width=8),), None),
    ],
)
def test_images_decoded_at_a_smaller_size_are_resized_before_pixels_count(augment, said):
    smaller, pixels = {"decode": {"ratio": 2}}, array_feature("pixels", (8, 8, 3), "uint8").encoding
    problems = data_problems(smaller, IMAGES, *augment)
    assert [bool(said) and one.startswith(said) for one in problems] == [True] * bool(said)
    assert data_problems(smaller, pixels) == []


@pytest.mark.parametrize(
    ("encoding", "windows", "refused"),
    [(TEXT, False, True), (SERIES, True, True), (ROWS, False, False)],
)
def test_single_examples_come_from_no_snapshot_of_texts_or_windows(encoding, windows, refused):
    problems = data_problems(MAPPED, encoding, OneByOne(), windows=windows)
    said = (
        f"augment: one_by_one takes one example at a time, and a snapshot of {encoding.noun} gives"
        " whole batches; use `read: shards`"
    )
    assert problems == [said] * refused
    assert data_problems({}, encoding, OneByOne(), windows=windows) == []


@pytest.mark.parametrize("on", ["host", "device"])
def test_what_is_computed_after_all_has_whole_batches_from_a_snapshot_and_what_is_stored_none(on):
    config, ops = {**MAPPED, "postprocess_on": on}, [("postprocess", OneByOne())]
    (problem,) = data_problems(config, IMAGES, ops=ops)
    assert problem.startswith("postprocess: one_by_one takes one example at a time")
    assert data_problems({}, IMAGES, ops=ops) == []
    layered = OneByOne()
    object.__setattr__(layered, "device", True)
    assert len(data_problems(config, IMAGES, ops=[("postprocess", layered)])) == (on == "host")
    ops = [("preprocess", Decode()), ("preprocess", Mixup())]
    (problem,) = find_config_problems(PipelineConfig(), ops, batch_size=32)
    assert problem.startswith("preprocess: mixup needs whole batches")


@pytest.mark.parametrize(
    ("encoding", "ops", "said"),
    [
        (ROWS, {"postprocess": (HALVED, Categories())}, "rescale changes the"),
        (ROWS, {"postprocess": (Categories(), HALVED)}, None),
        (ROWS, {"postprocess": (Standardize(), Categories())}, None),
        (IMAGES, {"postprocess": (Rescale(), Standardize())},
         "standardize uses mean and deviation of the stored values, but rescale changes these"),
        (IMAGES, {"postprocess": (Rescale(), GIVEN)}, None),
        (ROWS, {"postprocess": (OneHot(), Standardize())}, None),
        (ROWS, {"postprocess": (Rescale(),)},
         "postprocess: rescale divides by 255, which is for pixels"),
        (ROWS, {"preprocess": (OneHot(),)}, "preprocess: one_hot changes labels"),
        (ROWS, {"preprocess": (Categories(),)}, "preprocess: categories makes the floats that"),
        (ROWS, {"preprocess": (Standardize(),)}, "preprocess: standardize makes the floats that a"),
        (ROWS, {"preprocess": (GIVEN,)}, None),
        (IMAGES, {"preprocess": (Rescale(), Resize(height=8, width=8))},
         "preprocess: rescale makes the floats that a model sees, but a snapshot stores the"),
        (IMAGES, {"postprocess": (Resize(height=8, width=8),)},
         "postprocess: resize has no Keras layer, but a model holds what postprocess does"),
        (IMAGES, {"postprocess": (Categories(),)}, "categories works on numbers, not on images"),
    ],
)  # fmt: skip
def test_ops_are_refused_where_they_would_spoil_the_data(encoding, ops, said):
    ((section, listed),) = ops.items()
    problems = find_ops_problems(
        encoding, [(section, op) for op in listed], predicts_number=False, columns=False
    )
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
    augment = RandomResizedCrop(height=8, width=8), Flip(), Blur(), RandAugment(), OneByOne()
    assert problems_of({}, *augment) == problems_of(MAPPED, *augment) == []
    by_service = problems_of({"service": {}}, *augment)
    ops = [problem.split()[1] for problem in by_service]
    assert ops == ["random_resized_crop", "blur", "randaugment"]
    assert "cannot be sent to the workers of a tf.data service" in by_service[0]
    on_host, whole = problems_of({**MAPPED, "snapshot_on": "device"}, *augment)
    assert on_host.startswith("snapshot_on: randaugment runs only on the host")
    assert whole.startswith("snapshot_on: one_by_one takes one example at a time")


SETTINGS = WindowSettings(length=10, horizon=2, targets=["wind"])


def test_a_series_is_cut_into_windows_of_the_columns_that_are_named_or_all():
    window = choose_window(SETTINGS, {"train": 40, "test": 12}, ["rain", "wind"])
    assert (window.length, window.horizon, window.targets) == (10, 2, (1,))
    assert window.count("train", 12) == 1
    settings = SETTINGS.model_copy(update={"targets": []})
    assert choose_window(settings, {"train": 40}, ["rain", "wind"]).targets == (0, 1)
    with pytest.raises(InvalidParams, match="wind is not a column; known: rain"):
        choose_window(SETTINGS, {"train": 40}, ["rain"])


def test_a_split_shorter_than_a_window_is_refused():
    with pytest.raises(InvalidParams, match="the test split has 11 time steps, fewer than"):
        choose_window(SETTINGS, {"train": 40, "test": 11}, ["rain", "wind"])
    assert choose_token_window(8, {"train": 90, "test": 9}).count(9) == 1
    with pytest.raises(InvalidParams, match="the test split has 8 tokens, fewer than 8 plus one"):
        choose_token_window(8, {"train": 90, "test": 8})
