"""Each op computes the same for an example and a batch, eagerly and in tf.data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import throughline.kernels.elements  # noqa: F401 - brings all kernels
from throughline.kernels.augmentations import beta_quantiles, luma
from throughline.kernels.kernels import byte_image, compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.resampling import compute_on_device
from throughline.models.device_ops import apply_as_layer
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
    eagerly = computed(op, image)
    expected = computed(ops.Resize(height=height, width=width), image[center])
    np.testing.assert_array_equal(eagerly, expected)
    assert eagerly.shape == op.shape(image.shape)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3), tf.uint8)])
    def traced(image):
        return compute(op, {"image": image}, draw())["image"]

    np.testing.assert_array_equal(traced(image), eagerly)
    assert op.shape((None, None, 3)) is None
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


def test_a_blur_keeps_the_mean_and_lessens_the_differences():
    blurred = computed(augment.Blur(sigma=(1.5, 2.0), probability=0.75))
    same = (blurred == IMAGES).all(axis=(1, 2, 3))
    assert 0.1 < same.mean() < 0.45
    np.testing.assert_allclose(blurred.mean(), IMAGES.mean(), rtol=0.01)
    assert blurred[~same].std() < 0.5 * IMAGES.std()


def test_contrast_keeps_the_mean_of_large_pictures():
    white = np.full((4096, 2100, 1), 255, np.uint8)  # its sum exceeds 32 bits
    for key in np.array([1, 4]):  # factors above and below 1
        assert computed(augment.Contrast(delta=0.5), white, key).min() == 255
