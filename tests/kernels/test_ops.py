"""Each op computes the same for an example and a batch, eagerly, in tf.data and on the device; ops
of one's own; crops, windows and rows of tokens.
"""

import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.small_pipelines import CONFIGS, batches, pipeline
from throughline.kernels import pixels
from throughline.kernels.augmentations import beta_quantiles, draw_crops, luma
from throughline.kernels.elements import (
    TENSORFLOW_ERRORS,
    apply_ops,
    process_record,
    read_message,
    split_window,
)
from throughline.kernels.kernels import byte_image, compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.resampling import compute_on_device
from throughline.models.device_ops import apply_as_layer
from throughline.pipelines.read.row_fetching import make_crop_fn
from throughline.pipelines.read.sequence_batches import pack_rows, pad_rows
from throughline.plan import augmentations as augment
from throughline.plan import ops
from throughline.plan.op_parsing import parse_op
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

SHAPE = HEIGHT, WIDTH, _ = 12, 10, 3
COUNT = 64
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), np.uint8)
KEYS = np.arange(COUNT, dtype=np.int64) * 7919
LABELS = np.arange(COUNT, dtype=np.int64) % 4
ELEMENT = {"image": tf.constant(IMAGES), "key": tf.constant(KEYS), "label": tf.constant(LABELS)}
BOTH = (
    ops.CenterCrop(height=8, width=6),
    ops.CenterCrop(height=14, width=12),
    ops.Pad(pixels=2),
    ops.Pad(pixels=3, mode="reflect"),
    augment.RandomCrop(height=8, width=6),
    augment.RandomCrop(height=15, width=4),
    augment.Flip(),
    augment.Rotation(degrees=30),
    augment.Brightness(delta=0.3),
    augment.Contrast(delta=0.5),
    ops.Resize(shorter=7),
    augment.RandomResizedCrop(height=8, width=6),
    augment.RandomResizedCrop(height=20, width=16, scale=(0.3, 0.3), method="bilinear"),
    augment.ResizedCenterCrop(height=8, width=6, shorter=9),
    augment.Grayscale(probability=0.5),
    augment.Saturation(delta=0.8),
    augment.Hue(delta=0.4),
    augment.Blur(sigma=(0.5, 2.0)),
    augment.RandAugment(ops=3, magnitude=15),
    augment.Cutout(size=5),
    ops.Rescale(scale=2 / 255, offset=-1.0),
    ops.Standardize(mean=(100.0, 120.0, 90.0), deviation=(50.0, 60.0, 0.0)),
)
FINISHING = [op for op in BOTH if isinstance(op, ops.Rescale | ops.Standardize)]
ON_DEVICE = [op for op in BOTH if not op.host_only and op not in FINISHING]


def draw(epoch=1, seed=3, salts=("op", 5)):
    return RandomStream(seed=seed, epoch=tf.constant(epoch, tf.int64), salts=salts)


def computed(op, images=IMAGES, keys=KEYS, **changes):
    """The image or images after an op."""
    element = {"image": tf.constant(images), "key": tf.constant(keys)}
    return compute(op, element, draw(**changes))["image"].numpy()


def apply(element, *ops, seed=3, first=0):
    epoch = tf.constant(1, tf.int64)
    return apply_ops(ops, element, seed=seed, epoch=epoch, first_op_position=first)


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_a_batch_and_its_examples_come_out_alike_eagerly_and_in_a_data_set(op):
    together = computed(op)
    streamed = tf.data.Dataset.from_tensor_slices({"image": IMAGES, "key": KEYS}).map(
        lambda element: compute(op, element, draw())
    )
    found = np.stack([element["image"] for element in streamed.as_numpy_iterator()])
    np.testing.assert_array_equal(together, found)
    for row in (0, 1, 2):
        np.testing.assert_array_equal(computed(op, IMAGES[row], KEYS[row]), together[row])
    shape = streamed.element_spec["image"].shape  # known before anything runs
    assert shape == together.shape[1:] == op.shape(SHAPE)


@pytest.mark.parametrize(
    ("size", "center", "height", "width"),
    [((40, 2000), np.s_[:, 840:1160], 6, 48), ((25, 3), np.s_[:24], 48, 6)],
)
def test_of_a_long_image_the_center_is_scaled_by_its_shorter_side(size, center, height, width):
    op = ops.Resize(shorter=6)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    expected = computed(ops.Resize(height=height, width=width), image[center])
    assert expected.shape == op.shape(image.shape) and op.shape((None, None, 3)) is None
    traced = tf.function(lambda image: compute(op, {"image": image}, draw())["image"])
    unknown = traced.get_concrete_function(tf.TensorSpec((None, None, 3), tf.uint8))
    for scaled in (computed(op, image), unknown(tf.constant(image))):
        np.testing.assert_array_equal(scaled, expected)
    assert op.identity["longest_aspect"] == ops.LONGEST_ASPECT, "so it names a snapshot, too"


@pytest.mark.parametrize("op", [op for op in BOTH if op.random], ids=repr)
def test_draws_depend_on_seed_epoch_op_and_key_alone(op):
    once = computed(op)
    np.testing.assert_array_equal(once, computed(op))
    for change in ({"epoch": 2}, {"seed": 4}, {"salts": ("op", 6)}):
        assert not np.array_equal(once, computed(op, **change)), change
    changed = computed(op, IMAGES[:1].repeat(COUNT, 0))
    assert len({image.tobytes() for image in changed}) > 1, "examples differ by their keys"


@pytest.mark.parametrize("size", [1, 4])
def test_a_cutout_is_a_square_of_its_size_unless_the_edge_cuts_it_off(size):
    white = np.full((COUNT, HEIGHT, WIDTH, 1), 255, np.uint8)
    black = (computed(augment.Cutout(size=size), white) == 0).sum(axis=(1, 2, 3))
    assert black.max() == size**2 and black.min() >= (size // 2) ** 2


def test_a_rotation_keeps_the_center_and_is_the_same_wherever_its_image_stands_in_a_batch():
    image = np.zeros((9, 9, 1), np.uint8)
    image[4, 4] = 255
    assert computed(augment.Rotation(degrees=180), image, KEYS[5])[4, 4, 0] > 200
    np.testing.assert_array_equal(computed(augment.Rotation(degrees=1e-6)), IMAGES)
    images = np.random.default_rng(0).integers(0, 256, (14, 96, 96, 1), np.uint8)
    op = augment.Rotation(degrees=90)
    together = computed(op, images, KEYS[:14])
    for size in (1, 7):
        parts = (slice(start, start + size) for start in range(0, 14, size))
        turned = [computed(op, images[part], KEYS[part]) for part in parts]
        np.testing.assert_array_equal(np.concatenate(turned), together)


@pytest.mark.parametrize(
    "op",
    [ops.Resize(height=8, width=6), augment.Mixup(classes=4), augment.Hue(), augment.RandAugment()],
    ids=repr,
)
def test_floats_of_an_op_before_are_not_rounded_to_black(op):
    assert byte_image(op, ELEMENT) is ELEMENT["image"]
    floats = ELEMENT | {"image": tf.cast(ELEMENT["image"], tf.float32) / 255}
    for way in (compute,) if op.host_only else (compute, compute_on_device):
        with pytest.raises(ImpossiblePlan, match=f"{op.name} needs uint8 images.* returns float32"):
            way(op, floats, draw())


@pytest.mark.parametrize(
    "op", [augment.Mixup(alpha=1, classes=4), augment.Mixup(classes=4), augment.Cutmix(classes=4)]
)
def test_mixing_keeps_labels_a_distribution_in_step_with_the_pixels(op):
    images = np.zeros((COUNT, HEIGHT, WIDTH, 1), np.uint8)
    images[::2] = 200
    mixed = compute(op, ELEMENT | {"image": images, "label": np.arange(COUNT) % 2}, draw())
    label = mixed["label"].numpy()
    np.testing.assert_allclose(label.sum(axis=1), 1, rtol=1e-5)
    shares = mixed["image"].numpy().mean(axis=(1, 2, 3)) / 200
    np.testing.assert_allclose(shares, label[:, 0], atol=0.01)
    assert len({value.tobytes() for value in label}) > COUNT / 4


@pytest.mark.parametrize("alpha", [0.2, 4.0])
def test_mixup_shares_are_beta_distributed(alpha):
    """Moments of Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1))."""
    quantiles = beta_quantiles(alpha)
    middle = (quantiles[1:] + quantiles[:-1]) / 2
    assert middle.mean() == pytest.approx(0.5, abs=1e-6)
    assert middle.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.01)
    assert (np.diff(quantiles) >= 0).all() and quantiles[0] == 0 and quantiles[-1] == 1


def test_labels_and_categories_become_vectors_on_the_host_and_on_the_device():
    one_hot = compute(ops.OneHot(classes=4), ELEMENT, draw())["label"].numpy()
    np.testing.assert_array_equal(one_hot, np.eye(4)[LABELS])
    features = np.asarray([[0.5, 1, 0], [1.5, 0, 2]], np.float32)
    op, value = ops.Categories(sizes=(2, 3)), keras.Input((3,))
    layer = keras.Model(value, apply_as_layer(op, value))
    host = compute(op, {"features": tf.constant(features)}, draw())["features"]
    for coded in (host, layer(features)):
        np.testing.assert_array_equal(coded, [[0.5, 0, 1, 1, 0, 0], [1.5, 1, 0, 0, 0, 1]])


@pytest.mark.parametrize("op", FINISHING)
def test_finishing_on_the_device_gives_what_the_host_gives(op):
    image = keras.Input(SHAPE, dtype="uint8")
    layer = keras.Model(image, apply_as_layer(op, image))
    np.testing.assert_allclose(layer(IMAGES), computed(op), rtol=1e-6, atol=2e-6)


def test_every_op_of_the_device_is_a_layer_and_what_is_random_has_none_or_another_in_evaluation():
    on_device = {op for op in ops.REGISTRY.values() if op.device}
    assert on_device == set(apply_as_layer.registry) - {object}
    random, evaluated = augment.RandomCrop(height=3, width=3), ops.CenterCrop(height=3, width=3)
    assert (random.in_evaluation(), augment.Flip().in_evaluation()) == (evaluated, None)


@pytest.mark.parametrize("op", ON_DEVICE, ids=repr)
def test_within_the_train_step_an_op_computes_what_the_host_does(op):
    """Exactly, or, where the host leaves it to OpenCV, within two levels."""

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE), tf.uint8)])
    def step(images):
        return compute_on_device(op, ELEMENT | {"image": images}, draw())["image"]

    resident, host = step(IMAGES).numpy().astype(int), computed(op).astype(int)
    assert resident.shape == host.shape
    assert abs(resident - host).max() <= (2 if op.opencv else 0)
    assert abs(resident - host).mean() <= 0.5


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"resize": {"width": 3}}, "augment[0].resize: give `height` and `width`, or `shorter`"),
        ({"random_resized_crop": {"height": 8}}, "augment[0].random_resized_crop.width is missing"),
        ({"resized_center_crop": {"height": 8, "width": 9, "shorter": 8}},
         "a crop of 8×9 does not fit into a shorter side of 8; make `shorter` at least 9"),
        ({"blur": {"sigma": [2, 1]}}, "blur.sigma: the least comes first, as in (1, 2)"),
        ("nowhere:Nothing", "nowhere"),
    ],
)  # fmt: skip
def test_a_wrong_op_is_told_with_its_place(spec, said):
    op, (problem,) = parse_op(spec, where="augment[0]")
    assert op is None and said in problem


def test_colors_become_their_luma_or_more_of_themselves():
    primaries = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255] * 3]], np.uint8)
    many = primaries[None].repeat(400, 0), np.arange(400)
    gray = computed(augment.Grayscale(probability=0.25), *many)
    changed = (gray != primaries).any(axis=(1, 2, 3))
    assert 0.15 < changed.mean() < 0.35
    assert gray[changed][0, 0].tolist() == [[76] * 3, [150] * 3, [29] * 3, [255] * 3]
    assert luma(primaries).numpy().ravel().tolist() == [76, 150, 29, 255]
    red = computed(augment.Saturation(delta=1.0), *many)[:, 0, 0]
    assert red[:, 1].min() == 0 and red[:, 1].max() > 70, "from twice as colorful to gray"
    assert (red[:, 1] == red[:, 2]).all()
    turned = computed(augment.Hue(delta=0.5), *many)[:, 0, 0]
    assert (turned.max(axis=1) == 255).all() and (turned.min(axis=1) == 0).all()
    assert set(turned.argmax(axis=1).tolist()) == {0, 1, 2}, "red becomes any color"
    for op in (augment.Grayscale(probability=1), augment.Saturation(), augment.Hue()):
        np.testing.assert_array_equal(computed(op, IMAGES[..., :1]), IMAGES[..., :1])
        graph = tf.function(lambda image, op=op: compute(op, ELEMENT | {"image": image}, draw()))
        with pytest.raises(ImpossiblePlan, match=f"{op.name} needs to know how many channels"):
            graph.get_concrete_function(tf.TensorSpec((None, None, None, None), tf.uint8))


def test_contrast_keeps_the_mean_of_large_pictures():
    white = np.full((4096, 2100, 1), 255, np.uint8)  # its sum exceeds 32 bits
    for key in np.array([1, 4]):  # factors above and below 1
        assert computed(augment.Contrast(delta=0.5), white, key).min() == 255


def test_a_stronger_op_draws_as_the_weaker_one_did_and_one_elsewhere_independently():
    pixel = tf.fill((64, 1, 1, 1), tf.constant(128, tf.uint8))
    gray = {"image": pixel, "key": tf.constant(KEYS)}

    def brighten(delta, **place):  # by how much each pixel changes
        changed = apply(gray, augment.Brightness(delta=delta), **place)["image"]
        return changed.numpy().astype(int).ravel() - 128

    weak, strong = brighten(0.2), brighten(0.4)
    assert np.ptp(weak) > 50
    np.testing.assert_allclose(strong, 2 * weak, atol=2)
    np.testing.assert_array_equal(weak, brighten(0.2))
    for other in (brighten(0.2, first=1), brighten(0.2, seed=4)):
        assert abs(np.corrcoef(weak, other)[0, 1]) < 0.5


def test_a_window_is_split_into_what_is_seen_and_what_is_to_be_predicted():
    window = tf.constant([[time, 10 * time] for time in range(4)])
    for targets, label in (((1,), [[30]]), ((0, 1), [[3, 30]]), ((1, 0), [[30, 3]])):
        batch = split_window(tf.stack([window, window]), 3, targets)
        assert batch["features"].numpy().tolist() == [[[0, 0], [1, 10], [2, 20]]] * 2
        assert batch["label"].numpy().tolist() == [label] * 2


class Inherited(ops.Rescale):
    """An op with the kernel of another one."""


class Darken(ops.Op):
    """An op as a user may write it: Python's `if` and `for` about tensors."""

    name = "darken"

    def compute(self, element, draw):
        image, steps = element["image"], 0
        if tf.reduce_max(image) > 100:
            image = image // 2
        for _ in tf.range(tf.shape(image)[0]):
            steps += 1
        return {**element, "image": image + tf.cast(steps, tf.uint8)}


def test_an_op_of_a_user_may_say_if_and_for_about_tensors_or_inherit_its_kernel(caplog):
    images = np.array([[[[200]], [[0]]], [[[20]], [[0]]]], np.uint8)
    own = Darken(), Inherited(scale=0.5)
    tf.get_logger().addHandler(caplog.handler)
    in_graph = tf.data.Dataset.from_tensor_slices({"image": images}).map(
        lambda element: apply(element, *own)
    )
    eagerly = [apply({"image": tf.constant(image)}, *own) for image in images]
    found = [one["image"].numpy().ravel().round().tolist() for one in (*in_graph, *eagerly)]
    assert found == [[51, 1], [11, 1]] * 2
    tf.get_logger().removeHandler(caplog.handler)
    assert not caplog.records, "no warning"


class Noise(ops.Op):
    """An op as a user may write it: with TensorFlow's random numbers."""

    name = "noise"
    within: bool

    def compute(self, element, draw):
        if self.within:
            draws = tf.cond(element["key"] > 0, lambda: tf.random.uniform(()), lambda: 0.5)
        else:
            draws = tf.random.uniform(())
        return {**element, "image": element["image"] * draws}


@pytest.mark.parametrize("within", [True, False])
def test_an_op_of_a_user_that_draws_from_a_state_of_the_process_is_refused(within):
    element = {"image": tf.constant([1.0]), "key": tf.constant(1)}
    run = tf.function(lambda: apply(element, Noise(within=within)), autograph=False)
    with pytest.raises(ImpossiblePlan, match=r"^noise draws .* \(RandomUniform\); draw them by"):
        run()


def test_what_builds_a_pipeline_is_not_rewritten(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # AutoGraph writes what it rewrites
    for name in ("naive", "optimized"):
        assert batches(pipeline(stored, augment=(augment.Flip(),), **CONFIGS[name]))
    assert not list(tmp_path.glob("__autograph_generated_file*"))
    tf.function(lambda limit: limit + 1 if limit > 0 else limit)(tf.constant(1))
    assert list(tmp_path.glob("__autograph_generated_file*")), "as is seen where it does"


def test_rows_are_padded_and_documents_share_rows_with_their_segments_and_positions():
    values = tf.constant([11, 12, 13, 0, 21, 22, 0, 0, 31, 32, 33, 34], tf.uint16)
    begins = tf.constant([[0, 4, 0], [8, 4, 0], [0, 0, 4], [0, 0, 0]], tf.int64)
    lengths = tf.constant([[3, 2, 0], [4, 2, 0], [0, 0, 2], [0, 0, 0]], tf.int64)
    packed = [part.numpy().tolist() for part in pack_rows(values, begins, lengths, 6)]
    assert list(zip(*packed, strict=True)) == [  # tokens, segments and positions of each row
        ([11, 12, 13, 21, 22, 0], [1, 1, 1, 2, 2, 0], [0, 1, 2, 0, 1, 0]),
        ([31, 32, 33, 34, 21, 22], [1, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1]),
        ([21, 22, 0, 0, 0, 0], [3, 3, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]),
        ([0] * 6, [0] * 6, [0] * 6),
    ]
    padded = pad_rows(values, begins[1, :2], lengths[1, :2], tf.constant(6, tf.int64))
    assert padded.numpy().tolist() == [[31, 32, 33, 34, 0, 0], [21, 22, 0, 0, 0, 0]]
    assert padded.dtype == tf.int32


def test_pixels_are_copied_averaged_or_interpolated_and_mirrored_into_aligned_memory():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    out = pixels.empty_images((3, 2, 2, 3))
    out[...] = 1
    copied = [[1, 2, 2, 2, 0], [1, 2, 2, 2, 1], [-1, 5, 2, 2, 0]]
    pixels.crop([image] * 3, np.asarray(copied), out)
    beyond = [[[0] * 3] * 2, [[15, 16, 17], [0] * 3]]
    np.testing.assert_array_equal(out, [image[1:3, 2:4], image[1:3, 3:1:-1], beyond])
    pixels.crop([image], np.asarray([[0, 2, 4, 4, 1]]), out[:1], method="area")
    means = image.reshape(2, 2, 3, 2, 3).astype(float).mean(axis=(1, 3))
    assert abs(out[0] - means[:, :0:-1]).max() <= 0.5
    wide = np.empty((1, 31, 2, 1), np.uint8)
    pixels.crop([np.full((5, 7, 1), 93, np.uint8)], np.asarray([[1, 1, 3, 5, 0]]), wide)
    assert (wide == 93).all()
    for shape in ((3, 5, 7, 3), (1, 1, 1, 1), (64, 224, 224, 3)):
        images = pixels.empty_images(shape)
        assert images.shape == shape and images.flags.c_contiguous
        assert images.ctypes.data % pixels.ALIGNMENT == 0, "TensorFlow takes it as it is"


def test_rows_of_a_snapshot_are_cut_as_they_are_stored(stored):
    data = stored["arrays"]
    images, rows = data.memmap("train", "image"), np.asarray([5, 0, 5, 17])
    crop = make_crop_fn(data, "train", augment.RandomCrop(height=3, width=2))
    found = crop(tf.constant(rows), tf.constant([[1, 2, 3, 2, 0]] * 3 + [[7, 1, 3, 2, 1]]))
    expected = [*(images[row, 1:4, 2:4] for row in rows[:3]), images[17, 7:10, 2:0:-1]]
    np.testing.assert_array_equal(found, expected)


def test_two_flips_are_drawn_apart_and_undo_each_other():
    streams = [draw(salts=(name,)) for name in ("crop", "one", "other")]

    def flipped(*places):
        crop, sizes = augment.RandomCrop(height=2, width=2), tf.constant((9, 9))
        streams_of = [streams[place] for place in (0, *places)]
        return draw_crops((crop,), sizes, tf.constant(KEYS), streams_of).numpy()[:, 4]

    both = flipped(1, 2)
    assert (both == (flipped(1) ^ flipped(2))).all() and 0 < both.mean() < 1


def test_an_error_that_quotes_bytes_other_than_text_is_read():
    with pytest.raises(TENSORFLOW_ERRORS) as caught:
        process_record((ops.Parse(dtypes=(("image", "string"),)),), tf.constant(b"\xff\xfe"))
    assert r"\xff\xfe" in read_message(caught.value)
