"""Plans are right by construction: printable, pure, and refused with the field that is wrong."""

import pytest
import tensorflow as tf

from throughline.data.encodings.arrays import array_feature, pixels_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.plan import data_constraints
from throughline.plan.augmentations import (
    Blur,
    Flip,
    Mixup,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
)
from throughline.plan.ops import (
    Categories,
    CenterCrop,
    Decode,
    Load,
    OneHot,
    Op,
    Rescale,
    Resize,
    Standardize,
)
from throughline.plan.plan import InputSpec, make_plan
from throughline.plan.schema import Schema
from throughline.plan.shapes import choose_token_window, choose_window
from throughline.plan.steps import Parallelism, TokenWindow, Window
from throughline.plan.text_ops import Tokenize
from throughline.race.configurations import IN_PLAN
from throughline.settings import BatchSettings, PipelineConfig, WindowSettings
from throughline.shared.errors import ImpossiblePlan, InvalidParams
from throughline.shared.limits import usable_cores

pytestmark = pytest.mark.integration

JPEG = labeled(image_feature())
RAW = labeled(pixels_feature((28, 28, 1)))
VECTORS = labeled(array_feature("numbers", (6,), "float32"))
NUMBERS = labeled(array_feature("numbers", (6,), "float32"), "number")
SPEC = {
    "preprocess": (Decode(), Resize(height=8, width=8)),
    "augment": (Flip(),),
    "postprocess": (Rescale(),),
    "batch_size": 32,
}
MAPPED = {"read": "snapshot", "shuffle": {"kind": "global"}}
DECODED = {"preprocess": (Decode(),), "postprocess": ()}
CODED = {"preprocess": (Decode(),), "augment": (Mixup(),), "postprocess": (OneHot(),)}
NEEDED = "needs labels that are classes"
INDEXED = {**MAPPED, "read": "indexed_shards"}


class OneByOne(Op):
    """An op of one's own that takes no batches."""

    name = "one_by_one"
    takes = "example"
    works_on = ()
    random = True


class Layer(OneByOne):
    """One that a model can hold."""

    name = "layer"
    device = True


def plan_of(schema=JPEG, ops=(), **config):
    return make_plan(PipelineConfig(**config), InputSpec(schema=schema, **{**SPEC, **dict(ops)}))


NO_OPS = {"preprocess": (Decode(),), "augment": (), "postprocess": ()}
TOKENIZED = {**NO_OPS, "preprocess": (Decode(), Tokenize(kind="bytes"))}
TEXT = {"schema": labeled(text_feature()), "ops": TOKENIZED}
TOKENS = {**TEXT, "ops": {**TOKENIZED, "window": TokenWindow(length=8)}}
WINDOWED = {**NO_OPS, "window": Window(length=2, horizon=1, stride=2, targets=(1,))}
SERIES = {"schema": Schema(features=(array_feature("series", (3,), "float32"),)), "ops": WINDOWED}
UNSHUFFLED = {"shuffle": {"kind": "none"}}
DEVICE = {**MAPPED, "snapshot_on": "device"}
LANES = {"kind": "lanes", "lanes": 4}
SMALLER = {"decode": {"ratio": 2}}
SMALL = RandomCrop(height=8, width=8)
RESIZED = RandomResizedCrop(height=8, width=8)
ALONE = "augment: one_by_one takes one example at a time, and a snapshot of {} gives whole batches"


def augmented(*ops, preprocess=SPEC["preprocess"], **others):
    return {"ops": {"preprocess": preprocess, "augment": ops, **others}}


UNSIZED = {"preprocess": (Decode(),)}
OPENCV = augmented(RESIZED, SMALL, Blur(), RandAugment(), OneByOne())
AFTER = augmented(postprocess=(OneByOne(),))
FETCHED = "gather:snapshot[global shuffle,32]+random_crop fetched+flip fetched+rescale"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (UNSHUFFLED, "read:shards → map:parse+decode+resize+flip+rescale → batch[32]"),
        ({"cache": {"after": "resize"}, "prefetch": 2},
         "read:shuffled shards → map:parse+decode+resize → cache:memory → shuffle[auto] →"
         " map:flip+rescale → batch[32] → prefetch[2]"),
        ({"vectorize": True},
         "read:shuffled shards → shuffle[auto] → map:parse+decode+resize → batch[32] →"
         " map:flip+rescale"),
        ({**MAPPED, "postprocess_on": "device", "prefetch": "auto"},
         "gather:snapshot[global shuffle,32]+flip → prefetch[auto] ⇒ device:rescale"),
        ({"interleave": {"cycle_length": 3, "parallel": "cores"}, **UNSHUFFLED},
         "read:shards[3×16,cores] → map:parse+decode+resize+flip+rescale → batch[32]"),
        # Mixing ops see batches without being told.
        ({"ops": {"augment": (Flip(), Mixup())}},
         "read:shuffled shards → shuffle[auto] → map:parse+decode+resize+flip → batch[32] →"
         " map:mixup+rescale"),
        # Vectors of labels are made on the host.
        ({"ops": {"postprocess": (Rescale(), OneHot())}, "postprocess_on": "device", **UNSHUFFLED},
         "read:shards → map:parse+decode+resize+flip+one_hot → batch[32] ⇒ device:rescale"),
        # A fused crop takes the place of decode and crop.
        ({"ops": {"preprocess": (Decode(), CenterCrop(height=8, width=8))},
          "decode": {"crop": "fused"}, **UNSHUFFLED},
         "read:shards → map:parse+decode+flip+rescale → batch[32]"),
        # Classes are drawn as soon as labels are known.
        ({"sampling": "balanced"},
         "read:shuffled shards → map:parse → sample:balanced → shuffle[auto] →"
         " map:decode+resize+flip+rescale → batch[32]"),
        # Raw pixels are decoded in whole batches.
        ({"schema": RAW, "ops": {"preprocess": (Decode(),)}, "vectorize": True},
         "read:shuffled shards → shuffle[auto] → batch[32] → map:parse+decode+flip+rescale"),
        ({**TEXT, "batch": {"pad_to": [64, 128]}, **UNSHUFFLED},
         "read:shards → map:parse+tokenize → bucket_batch[32 to 64|128]"),
        ({**TEXT, "batch": {"tokens": 4096}, **UNSHUFFLED},
         "read:shards → map:parse+tokenize → bucket_batch[4096 tokens to auto]"),
        ({**TEXT, **MAPPED, "batch": {"pack": 512}},
         "gather:snapshot[global shuffle,32 rows of 512]"),
        ({**INDEXED, "map": {"parallel": "cores"}},
         "read:indexed_shards[global shuffle][cores] →"
         " map:parse+decode+resize+flip+rescale[cores] → batch[32]"),
        ({**INDEXED, "schema": RAW, "ops": {"preprocess": (Decode(),)}, "vectorize": True},
         "read:indexed_shards[global shuffle,32] → map:parse+decode+flip+rescale"),
        ({"read": "snapshot", "shuffle": LANES},
         "gather:snapshot[shuffle of 4 lanes,32]+flip+rescale"),
        # Files of a series are read in the order of time, and windows alone are shuffled.
        ({**SERIES, "shuffle": {"kind": "buffer"}},
         "read:shards → map:parse+decode → window[2+1,2] → shuffle[auto] → batch[32]"),
    ],
)  # fmt: skip
def test_plans_print_what_they_do_in_order(config, expected):
    assert str(plan_of(**config)) == expected


@pytest.mark.parametrize(
    ("preprocess", "size", "streamed"),
    [
        ((Decode(), Resize(height=256, width=256)), 224,
         "map:parse+decode+resize+random_crop → batch[32] → map:flip+rescale"),
        ((Decode(), Resize(height=32, width=32)), 28,
         "map:parse+decode+resize → batch[32] → map:random_crop+flip+rescale"),
        ((Decode(),), 28, "map:parse+decode+random_crop → batch[32] → map:flip+rescale"),
    ],
    ids=["large", "small", "unlike"],
)  # fmt: skip
def test_a_fetch_crops_and_a_stream_crops_one_by_one_where_cheaper(preprocess, size, streamed):
    ops = {"preprocess": preprocess, "augment": (RandomCrop(height=size, width=size), Flip())}
    plans = str(plan_of(ops=ops, **MAPPED)), str(plan_of(ops=ops, vectorize=True))
    assert plans == (FETCHED, f"read:shuffled shards → shuffle[auto] → {streamed}")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"cache": {"after": "flip"}}, "a cache would repeat the draws of flip"),
        ({"cache": {"after": "nothing"}}, "is none of the preprocess ops"),
        ({"read": "snapshot", "cache": {}}, "already the stored result"),
        ({"read": "snapshot", "vectorize": True}, "whole batches"),
        ({"read": "snapshot", "shuffle": {"kind": "buffer"}}, "permuted as a whole"),
        ({"read": "snapshot", **UNSHUFFLED, "decode": {"ratio": 2}}, "decoded already"),
        ({"shuffle": {"kind": "global"}}, "needs random access"),
        ({"shuffle": LANES}, "a permutation within lanes needs random access"),
        ({"read": "snapshot", "shuffle": LANES, "sampling": "balanced"},
         "sampling by class reorders the whole split"),
        ({**INDEXED, "shuffle": {"kind": "buffer"}}, "indexed shards can be permuted as a whole"),
        ({**INDEXED, "cache": {}}, "keeps the order of the first epoch"),
        ({**INDEXED, "service": {}}, "cannot be sent to a worker"),
        ({**INDEXED, **UNSHUFFLED, "sampling": "balanced"}, "use `global`"),
        ({"read": "files", "interleave": {}}, "only shards can be interleaved"),
        ({"decode": {"ratio": 2, "crop": "fused"}}, "drop `crop` or `ratio`"),
        ({"sampling": {}}, "need at least one class"),
        ({"snapshot_on": "device"}, "only a snapshot can live on the device"),
        ({**MAPPED, "snapshot_on": "device", "prefetch": 2}, "nothing to prepare ahead"),
        ({**MAPPED, "service": {}}, "would be sent to every worker"),
        ({"snapshot": {"fraction": 0.3}}, "`read: shards` reads none of the snapshot"),
        ({**MAPPED, "snapshot_on": "device", "snapshot": {"fraction": 0.3}},
         "snapshot.fraction: rows that are not stored are decoded on the host"),
        ({"service": {}, "cache": {}}, "fill a cache that is never read"),
        ({"service": {}, "sampling": "balanced"}, "one stream over all examples"),
        ({"ops": {"augment": (Mixup(), Load(feature="image"))}}, "augment: .* put it before mixup"),
        ({"ops": {"augment": (Mixup(),), "postprocess": (Load(feature="image"),)}},
         "postprocess: .* put it before mixup"),
        ({"ops": {"postprocess": (Flip(),)}, "postprocess_on": "device"},
         "flip cannot run on the device"),
        ({"ops": {"preprocess": (Decode(),)}}, "images differ in size, .*random_crop"),
        ({"schema": VECTORS, "ops": DECODED}, "augment: flip works on images, not on numbers"),
        ({"schema": NUMBERS, "ops": CODED, "sampling": "balanced"},
         "sampling: the targets are numbers, not classes; drop `sampling`;.*;"
         f" augment: mixup {NEEDED}.*; postprocess: one_hot {NEEDED}"),
        ({"ops": {"postprocess": (Standardize(mean=(0.5,) * 2, deviation=(1.0,) * 2),)}},
         "`mean` has 2 values, but the number of channels or columns is 3;"),
        ({"batch": {"pad_to": "auto"}}, "batch: only text differs in length"),
        ({**TEXT, "batch": {}}, "batch: needs `pad_to"),
        ({**TEXT, "batch": {"pack": 512, "tokens": 8192}}, "packed rows have one length"),
        ({**TEXT, "batch": {"pack": 512}}, "`read: shards` does not know; use `read: snapshot`"),
        ({**TEXT, "batch": {"tokens": 9}, "vectorize": True}, "lengths are known only after"),
        ({**TEXT, "batch": {"tokens": 9}, "sampling": "balanced"}, "draw every example once"),
        ({**TEXT, "batch": {"tokens": 9}, "read": "snapshot", "shuffle": {"kind": "window"}},
         "permuted as a whole; use `global`"),
        # All reasons, in the order of the fields.
        ({**augmented(Mixup()), "cache": {"after": "mixup"}, "service": {}},
         "^cache.after: .*; cache: "),
        ({**MAPPED, "deterministic": False, "interleave": {}}, "^interleave: .*; deterministic: "),
        ({"snapshot_on": "device", "snapshot": {"fraction": 0.5}},
         "^snapshot.fraction: .*; snapshot_on: .*; snapshot.fraction: "),
        ({"read": "arrays", "service": {}, "sampling": {}},
         "^sampling: .*; service: .*; service: "),
        ({"read": "snapshot", "vectorize": True, "decode": {"ratio": 2, "crop": "fused"}},
         "^vectorize: .*; shuffle.kind: .*; decode: .*; decode: "),
        # Windows.
        ({**SERIES, "interleave": {}},
         "^interleave: windows of a time series need the blocks in their order"),
        ({**TOKENS, "deterministic": False},
         "^deterministic: windows of text need the documents in their order"),
        ({**SERIES, "service": {}},
         "^service: its workers would cut windows out of different blocks"),
        ({**TOKENS, "sampling": "balanced"}, "sampling: windows of text have no class"),
        ({**SERIES, **INDEXED}, "^read: a window of a time series is made of several records"),
        ({**SERIES, "vectorize": True}, "^vectorize: windows are batched only after they are"),
        ({**TOKENS, "batch": {"tokens": 9}}, "^batch: windows of text have one length"),
        ({**TOKENS, **DEVICE}, "^snapshot_on: windows of text are gathered"),
        # A smaller size of decoded images.
        ({**augmented(**UNSIZED), **SMALLER}, "^decode.ratio: nothing resizes the images"),
        ({**augmented(SMALL, **UNSIZED), **SMALLER}, "^decode.ratio: random_crop counts pixels"),
        ({**augmented(CenterCrop(height=8, width=8), Resize(shorter=8), **UNSIZED), **SMALLER},
         "decode.ratio: center_crop counts"),
        ({**augmented(Blur(), RESIZED, **UNSIZED), **SMALLER}, "^decode.ratio: blur counts pixels"),
        # Ops that take one example, whole batches, or are computed by OpenCV.
        ({**TEXT, "ops": {**TOKENIZED, "augment": (OneByOne(),)}, **MAPPED}, ALONE.format("text")),
        ({**SERIES, "ops": {**WINDOWED, "augment": (OneByOne(),)}, **MAPPED},
         ALONE.format("a time series")),
        ({**AFTER, **MAPPED}, "^postprocess: one_by_one takes one example at a time"),
        ({**AFTER, **MAPPED, "postprocess_on": "device"}, "postprocess: one_by_one takes one exam"),
        (augmented(preprocess=(Decode(), Mixup())), "^preprocess: mixup needs whole batches"),
        ({**augmented(Mixup(), SMALL, **UNSIZED), **MAPPED}, "augment: mixup needs batches of one"),
        ({**augmented(SMALL, **UNSIZED), **DEVICE}, "^snapshot_on: variable-size images are cropp"),
        ({**OPENCV, "service": {}},
         "^service: random_resized_crop .* cannot be sent to the workers of a tf.data service"
         ".*; service: blur .*; service: randaugment (?!.*; service)"),
        ({**OPENCV, **DEVICE}, "^snapshot_on: randaugment runs only on the host; [^;]*"
         "; snapshot_on: one_by_one takes one example at a time"),
    ],
)  # fmt: skip
def test_refusals_carry_their_reason(config, reason):
    with pytest.raises(ImpossiblePlan, match=reason):
        plan_of(**config)


@pytest.mark.parametrize(
    "config",
    [
        {**SERIES, **DEVICE},
        {**augmented(SMALL), **SMALLER},
        {**augmented(RESIZED, **UNSIZED), **SMALLER},
        {"schema": RAW, **augmented(**UNSIZED), **SMALLER},
        {"schema": VECTORS, "ops": {**NO_OPS, "augment": (OneByOne(),)}, **MAPPED},
        {**TEXT, "ops": {**TOKENIZED, "augment": (OneByOne(),)}},
        {**augmented(SMALL, **UNSIZED), **MAPPED},
        OPENCV,
        {**OPENCV, **MAPPED},
        AFTER,
        {**augmented(postprocess=(Layer(),)), **MAPPED, "postprocess_on": "device"},
    ],
)
def test_what_fits_is_planned(config):
    assert plan_of(**config).spec


@pytest.mark.parametrize("boundaries", [[128, 64], [0, 4], [], "long", [1.5]])
def test_boundaries_that_do_not_increase_are_refused(boundaries):
    with pytest.raises(ValueError, match="expected auto or increasing lengths"):
        BatchSettings(pad_to=boundaries)


OTHERS = {
    "read": "files", "interleave": {"cycle_length": 2}, "map": {"parallel": 3}, "vectorize": True,
    "cache": {"after": "resize"}, "shuffle": {"kind": "none"}, "prefetch": 4,
    "deterministic": False, "postprocess_on": "device", "graph_rewrites": True, "threads": 3,
    "decode": {"ratio": 2}, "sampling": "balanced", "service": {"workers": 3},
}  # fmt: skip


def test_every_field_changes_the_plan():
    assert {*OTHERS, "snapshot", "snapshot_on", "batch"} == set(PipelineConfig.model_fields)
    for field, value in OTHERS.items():
        other = plan_of(**{field: value})
        assert other != plan_of(), field
        assert field not in IN_PLAN or str(other) != str(plan_of()), field


def test_where_the_snapshot_lives_and_which_part_is_read_changes_the_plan():
    whole, part = plan_of(**MAPPED), plan_of(**MAPPED, snapshot={"fraction": 0.3})
    assert plan_of(**MAPPED, snapshot_on="device") != whole
    assert plan_of(**MAPPED, snapshot={"fraction": 1}) == whole
    assert (whole.reads_whole_snapshot, part.reads_whole_snapshot) == (True, False)
    assert part.reads_snapshot and part.seekable and not plan_of().reads_whole_snapshot
    said = "gather:0.3 of snapshot (else parse+decode+resize)[global shuffle,32]+flip+rescale"
    assert str(part) == said


@pytest.mark.parametrize(
    "config", [{}, {"prefetch": "auto"}, {"map": {"parallel": "auto"}}, {"graph_rewrites": True}]
)
def test_nothing_is_left_to_autotune_unless_a_field_says_so(config):
    """Its thread costs up to an epoch's time when an iterator ends: see docs/log.md."""
    assert plan_of(**config).autotunes is bool(config)


HERE = usable_cores()


@pytest.mark.parametrize(
    ("setting", "calls", "threads"),
    [("none", None, 1), ("auto", tf.data.AUTOTUNE, 6), ("cores", HERE, 6), (3, 3, 3)],
)
def test_every_word_has_its_calls_its_threads_and_its_text(setting, calls, threads):
    parallel = Parallelism(setting)
    assert (parallel.num_parallel_calls(), parallel.threads(6)) == (calls, threads)
    assert str(parallel) == str(setting)
    shared = parallel.num_parallel_calls(on_host=HERE)
    assert shared == (1 if setting == "cores" else calls), "processes of a host share its cores"
    assert parallel.is_sequential == (setting == "none")


IMAGES = image_feature().encoding
ROWS = array_feature("numbers", (3,), "float32").encoding
GIVEN = Standardize(mean=(0.5,), deviation=(0.25,))
HALVED = Rescale(scale=0.5)


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


SETTINGS = WindowSettings(length=10, horizon=2, targets=["wind"])


def test_a_series_is_cut_into_windows_of_the_columns_that_are_named_or_all():
    window = choose_window(SETTINGS, {"train": 40, "test": 12}, ["rain", "wind"])
    assert (window.length, window.horizon, window.targets) == (10, 2, (1,))
    assert window.count("train", 12) == 1
    settings = SETTINGS.model_copy(update={"targets": []})
    assert choose_window(settings, {"train": 40}, ["rain", "wind"]).targets == (0, 1)
    assert choose_token_window(8, {"train": 90, "test": 9}).count(9) == 1


@pytest.mark.parametrize(
    ("change", "steps", "columns", "cuts", "said"),
    [
        ({}, {"train": 40}, ["rain"], (), "wind is not a column; known: rain"),
        ({}, {"train": 40, "test": 11}, ["wind"], (),
         "the test split has 11 time steps, fewer than"),
        ({}, {"train": 40}, ["wind"], (10, 20, 30, 31),
         "has 40 time steps, at most 10 between gaps, fewer"),
        ({"stride": 30}, {"train": 40}, ["wind"], (5, 29),
         r"between gaps, where no multiple of window\.stride"),
    ],
)  # fmt: skip
def test_a_split_shorter_than_a_window_is_refused(change, steps, columns, cuts, said):
    with pytest.raises(InvalidParams, match=said):
        choose_window(SETTINGS.model_copy(update=change), steps, columns, cuts=cuts)


def test_a_split_shorter_than_a_window_of_tokens_is_refused():
    with pytest.raises(InvalidParams, match="the test split has 8 tokens, fewer than 8 plus one"):
        choose_token_window(8, {"train": 90, "test": 8})
