"""Every reason against a configuration has its field; test_plan.py has those that need no data."""

import pytest

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.texts import text_feature
from throughline.plan import constraints, data_constraints
from throughline.plan.augmentations import Blur, Mixup, RandAugment, RandomCrop, RandomResizedCrop
from throughline.plan.ops import Categories, CenterCrop, OneHot, Op, Rescale, Resize, Standardize
from throughline.plan.shapes import choose_token_window, choose_window
from throughline.settings import PipelineConfig, WindowSettings
from throughline.shared.errors import InvalidParams

MAPPED = {"read": "snapshot", "shuffle": {"kind": "global"}}
DEVICE = {**MAPPED, "snapshot_on": "device"}
SMALLER = {"decode": {"ratio": 2}}
IMAGES = image_feature().encoding
TEXT = text_feature().encoding
ROWS = array_feature("numbers", (3,), "float32").encoding
DATA = {  # and whether it is cut into windows
    "images": (IMAGES, False),
    "pixels": (array_feature("pixels", (8, 8, 3), "uint8").encoding, False),
    "rows": (ROWS, False),
    "texts": (TEXT, False),
    "text in windows": (TEXT, True),
    "series": (array_feature("series", (3,), "float32").encoding, True),
}
GIVEN = Standardize(mean=(0.5,), deviation=(0.25,))
HALVED = Rescale(scale=0.5)
SMALL = RandomCrop(height=8, width=8)
RESIZED = RandomResizedCrop(height=8, width=8)
ALONE = "augment: one_by_one takes one example at a time, and a snapshot of {} gives whole batches"


class OneByOne(Op):
    """An op of one's own that takes no batches."""

    name = "one_by_one"
    takes = "example"
    random = True


def problems_of(config: dict, *augment: Op) -> list[str]:
    ops = [*(("augment", op) for op in augment), ("postprocess", Rescale())]
    parsed = PipelineConfig.model_validate(config)
    return constraints.find_config_problems(parsed, ops, batch_size=32)


def data_problems(config: dict, data: str, *ops: tuple[str, Op]) -> list[str]:
    parsed, (encoding, windows) = PipelineConfig.model_validate(config), DATA[data]
    about = {"windows": windows, "predicts_number": False, "columns": False}
    return [*data_constraints.find_data_problems(parsed, encoding, ops, **about)]


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"cache": {"after": "mixup"}, "service": {}}, ["cache.after", "cache"]),
        ({**MAPPED, "deterministic": False, "interleave": {}}, ["interleave", "deterministic"]),
        ({"snapshot_on": "device", "snapshot": {"fraction": 0.5}},
         ["snapshot.fraction", "snapshot_on", "snapshot.fraction"]),
        ({"read": "arrays", "service": {}, "sampling": {}}, ["sampling", "service", "service"]),
        ({"read": "snapshot", "vectorize": True, "decode": {"ratio": 2, "crop": "fused"}},
         ["vectorize", "shuffle.kind", "decode", "decode"]),
    ],
)  # fmt: skip
def test_all_reasons_are_listed_by_their_fields(config, fields):
    assert [problem.partition(":")[0] for problem in problems_of(config, Mixup())] == fields


@pytest.mark.parametrize(
    ("config", "data", "augment", "said"),
    [
        ({"interleave": {}}, "series", (),
         "interleave: windows of a time series need the blocks in their order"),
        ({"deterministic": False}, "text in windows", (),
         "deterministic: windows of text need the documents in their order"),
        ({"service": {}}, "series", (),
         "service: its workers would cut windows out of different blocks"),
        ({"sampling": "balanced"}, "text in windows", (),
         "sampling: windows of text have no class"),
        ({"read": "indexed_shards"}, "series", (),
         "read: a window of a time series is made of several records"),
        ({"vectorize": True}, "series", (), "vectorize: windows are batched only after they are"),
        ({"batch": {"tokens": 9}}, "text in windows", (), "batch: windows of text have one length"),
        (DEVICE, "series", (), None),
        (DEVICE, "text in windows", (), "snapshot_on: windows of text are gathered"),
        (SMALLER, "images", (), "decode.ratio: nothing resizes the images"),
        (SMALLER, "images", (SMALL,), "decode.ratio: random_crop counts pixels"),
        (SMALLER, "images", (CenterCrop(height=8, width=8), Resize(shorter=8)),
         "decode.ratio: center_crop counts"),
        (SMALLER, "images", (Blur(), RESIZED), "decode.ratio: blur counts pixels"),
        (SMALLER, "images", (Resize(height=8, width=8), SMALL), None),
        (SMALLER, "images", (RESIZED,), None),
        (SMALLER, "pixels", (), None),
        (MAPPED, "texts", (OneByOne(),), ALONE.format("text")),
        (MAPPED, "series", (OneByOne(),), ALONE.format("a time series")),
        (MAPPED, "rows", (OneByOne(),), None),
        ({}, "texts", (OneByOne(),), None),
        ({}, "series", (OneByOne(),), None),
    ],
)  # fmt: skip
def test_configurations_are_refused_for_the_data_that_they_do_not_fit(config, data, augment, said):
    problems = data_problems(config, data, *(("augment", op) for op in augment))
    assert [problem.startswith(said or "nothing") for problem in problems] == [True] * bool(said)


@pytest.mark.parametrize("on", ["host", "device"])
def test_what_is_computed_after_all_has_whole_batches_from_a_snapshot_and_what_is_stored_none(on):
    config, alone = {**MAPPED, "postprocess_on": on}, ("postprocess", OneByOne())
    (problem,) = data_problems(config, "images", alone)
    assert problem.startswith("postprocess: one_by_one takes one example at a time")
    assert data_problems({}, "images", alone) == []
    layered = OneByOne()
    object.__setattr__(layered, "device", True)
    assert len(data_problems(config, "images", ("postprocess", layered))) == (on == "host")
    stored = [("preprocess", Mixup())]
    (problem,) = constraints.find_config_problems(PipelineConfig(), stored, batch_size=32)
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
    ops, about = [(section, op) for op in listed], {"predicts_number": False, "columns": False}
    problems = data_constraints.find_ops_problems(encoding, ops, **about)
    assert [said in problem for problem in problems] == ([True] if said else [])


def test_images_that_differ_in_size_are_neither_batched_nor_gathered_on_the_device():
    def find(config, ops):
        return [*data_constraints.find_variable_size_problems(config, ops)]

    host, device = map(PipelineConfig.model_validate, (MAPPED, DEVICE))
    assert find(host, (SMALL,)) == find(device, ()) == []
    (batched,) = find(host, (Mixup(), SMALL))
    assert batched.startswith("augment: mixup needs batches")
    (resident,) = find(device, (SMALL,))
    assert resident.startswith("snapshot_on: variable-size images are cropped")


def test_what_opencv_computes_is_neither_sent_to_a_service_nor_all_of_it_done_on_the_device():
    augment = RESIZED, SMALL, Blur(), RandAugment(), OneByOne()
    assert problems_of({}, *augment) == problems_of(MAPPED, *augment) == []
    by_service = problems_of({"service": {}}, *augment)
    ops = [problem.split()[1] for problem in by_service]
    assert ops == ["random_resized_crop", "blur", "randaugment"]
    assert "cannot be sent to the workers of a tf.data service" in by_service[0]
    on_host, whole = problems_of(DEVICE, *augment)
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
    with pytest.raises(InvalidParams, match="has 40 time steps, at most 10 between gaps, fewer"):
        choose_window(SETTINGS, {"train": 40}, ["rain", "wind"], cuts=(10, 20, 30, 31))
    sparse = SETTINGS.model_copy(update={"stride": 30})
    with pytest.raises(InvalidParams, match=r"between gaps, where no multiple of window\.stride"):
        choose_window(sparse, {"train": 40}, ["rain", "wind"], cuts=(5, 29))
    assert choose_token_window(8, {"train": 90, "test": 9}).count(9) == 1
    with pytest.raises(InvalidParams, match="the test split has 8 tokens, fewer than 8 plus one"):
        choose_token_window(8, {"train": 90, "test": 8})
