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
from throughline.plan.augmentations import (
    Blur,
    Brightness,
    Contrast,
    Cutmix,
    Cutout,
    Flip,
    Grayscale,
    Hue,
    Mixup,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
    ResizedCenterCrop,
    Rotation,
    Saturation,
)
from throughline.plan.op_parsing import parse_op
from throughline.plan.ops import (
    LONGEST_ASPECT,
    REGISTRY,
    Categories,
    CenterCrop,
    OneHot,
    Pad,
    Rescale,
    Resize,
    Standardize,
)
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

COUNT, HEIGHT, WIDTH = 64, 12, 10
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)
KEYS = np.arange(COUNT, dtype=np.int64) * 7919
LABELS = np.arange(COUNT, dtype=np.int64) % 4
ELEMENT = {"image": tf.constant(IMAGES), "key": tf.constant(KEYS), "label": tf.constant(LABELS)}
BOTH = (
    CenterCrop(height=8, width=6),
    CenterCrop(height=14, width=12),
    Pad(pixels=2),
    Pad(pixels=3, mode="reflect"),
    RandomCrop(height=8, width=6),
    RandomCrop(height=15, width=4),
    Flip(),
    Rotation(degrees=30),
    Brightness(delta=0.3),
    Contrast(delta=0.5),
    Resize(shorter=7),
    RandomResizedCrop(height=8, width=6),
    RandomResizedCrop(height=20, width=16, scale=(0.3, 0.3), method="bilinear"),
    ResizedCenterCrop(height=8, width=6, shorter=9),
    Grayscale(probability=0.5),
    Saturation(delta=0.8),
    Hue(delta=0.4),
    Blur(sigma=(0.5, 2.0)),
    RandAugment(ops=3, magnitude=15),
    Cutout(size=5),
    Rescale(scale=2 / 255, offset=-1.0),
    Standardize(mean=(100.0, 120.0, 90.0), deviation=(50.0, 60.0, 0.0)),
)
FINISHING = [op for op in BOTH if isinstance(op, Rescale | Standardize)]
ON_DEVICE = [op for op in BOTH if not op.host_only and op not in FINISHING]


def draw(epoch=1, seed=3, salts=("op", 5)):
    return RandomStream(seed=seed, epoch=tf.constant(epoch, tf.int64), salts=salts)


def batched(op, **changes):
    return compute(op, ELEMENT, draw(**changes))


@pytest.mark.parametrize("op", BOTH, ids=repr)
def test_a_batch_and_its_examples_come_out_alike_eagerly_and_in_a_data_set(op):
    together = batched(op)["image"].numpy()
    streamed = tf.data.Dataset.from_tensor_slices({"image": IMAGES, "key": KEYS}).map(
        lambda element: compute(op, element, draw())
    )
    found = np.stack([element["image"] for element in streamed.as_numpy_iterator()])
    np.testing.assert_array_equal(together, found)
    for row in (0, 1, 2):
        element = {"image": tf.constant(IMAGES[row]), "key": tf.constant(KEYS[row])}
        np.testing.assert_array_equal(compute(op, element, draw())["image"], together[row])
    shape = streamed.element_spec["image"].shape  # known before anything runs
    assert shape == together.shape[1:] == op.shape((HEIGHT, WIDTH, 3))


@pytest.mark.parametrize("size", [(40, 2000), (25, 3)])
def test_of_an_elongated_image_the_center_is_scaled_by_its_shorter_side(size):
    op = Resize(shorter=6)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    bounds = [min(side, LONGEST_ASPECT * min(size)) for side in size]
    top, left = ((side - bound) // 2 for side, bound in zip(size, bounds, strict=True))
    center = image[top : top + bounds[0], left : left + bounds[1]]
    height, width = (6 * bound // min(size) for bound in bounds)
    assert max(height, width) == 6 * LONGEST_ASPECT
    eagerly = compute(op, {"image": tf.constant(image)}, draw())["image"].numpy()
    expected = compute(Resize(height=height, width=width), {"image": tf.constant(center)}, draw())
    np.testing.assert_array_equal(eagerly, expected["image"])
    assert eagerly.shape == op.shape(image.shape)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3), tf.uint8)])
    def traced(image):
        return compute(op, {"image": image}, draw())["image"]

    np.testing.assert_array_equal(traced(image), eagerly)
    assert op.shape((None, None, 3)) is None
    assert op.identity["longest_aspect"] == LONGEST_ASPECT, "it is part of what names a snapshot"


@pytest.mark.parametrize("op", [op for op in BOTH if op.random], ids=repr)
def test_draws_depend_on_seed_epoch_op_and_key_alone(op):
    once = batched(op)["image"].numpy()
    np.testing.assert_array_equal(once, batched(op)["image"])
    for change in ({"epoch": 2}, {"seed": 4}, {"salts": ("op", 6)}):
        assert not np.array_equal(once, batched(op, **change)["image"]), change
    equal = ELEMENT | {"image": tf.constant(IMAGES[:1].repeat(COUNT, 0))}
    changed = compute(op, equal, draw())["image"].numpy()
    assert len({image.tobytes() for image in changed}) > 1, "examples differ by their keys"


@pytest.mark.parametrize("size", [1, 4])
def test_a_cutout_is_a_square_of_its_size_unless_the_edge_cuts_it_off(size):
    images = tf.fill((COUNT, HEIGHT, WIDTH, 1), tf.constant(255, tf.uint8))
    white = {"image": images, "key": tf.constant(KEYS)}
    black = (compute(Cutout(size=size), white, draw())["image"].numpy() == 0).sum(axis=(1, 2, 3))
    assert black.max() == size**2 and black.min() >= (size // 2) ** 2


def test_a_full_turn_by_nothing_changes_nothing_and_a_turn_keeps_the_centre():
    image = np.zeros((1, 9, 9, 1), np.uint8)
    image[0, 4, 4] = 255
    element = {"image": tf.constant(image), "key": tf.constant([5], tf.int64)}
    turned = compute(Rotation(degrees=180), element, draw())["image"].numpy()
    assert turned[0, 4, 4, 0] > 200
    np.testing.assert_array_equal(batched(Rotation(degrees=1e-6))["image"], IMAGES)


def test_a_rotation_is_the_same_wherever_its_image_stands_in_a_batch():
    images = np.random.default_rng(0).integers(0, 256, (14, 96, 96, 1), np.uint8)

    def turn_in_batches_of(size):
        parts = [slice(start, start + size) for start in range(0, len(images), size)]
        elements = [{"image": tf.constant(images[p]), "key": tf.constant(KEYS[p])} for p in parts]
        turned = [compute(Rotation(degrees=90), one, draw())["image"] for one in elements]
        return np.concatenate(turned)

    for size in (1, 7):
        np.testing.assert_array_equal(turn_in_batches_of(size), turn_in_batches_of(14))


@pytest.mark.parametrize(
    "op", [Resize(height=8, width=6), Mixup(classes=4), Hue(), RandAugment()], ids=repr
)
def test_floats_of_an_op_before_are_not_rounded_to_black(op):
    assert byte_image(op, ELEMENT) is ELEMENT["image"]
    floats = {**ELEMENT, "image": tf.cast(ELEMENT["image"], tf.float32) / 255}
    for way in (compute,) if op.host_only else (compute, compute_on_device):
        with pytest.raises(ImpossiblePlan, match=f"{op.name} needs uint8 images.* returns float32"):
            way(op, floats, draw())


@pytest.mark.parametrize("op", [Mixup(alpha=1.0, classes=4), Mixup(classes=4), Cutmix(classes=4)])
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
    assert batched(OneHot(classes=4))["label"].numpy().argmax(axis=1).tolist() == LABELS.tolist()
    features = np.asarray([[0.5, 1, 0], [1.5, 0, 2]], np.float32)
    op, value = Categories(sizes=(2, 3)), keras.Input((3,))
    layer = keras.Model(value, apply_as_layer(op, value))
    host = compute(op, {"features": tf.constant(features)}, draw())["features"]
    for coded in (host, layer(features)):
        np.testing.assert_array_equal(coded, [[0.5, 0, 1, 1, 0, 0], [1.5, 1, 0, 0, 0, 1]])


@pytest.mark.parametrize("op", FINISHING)
def test_finishing_on_the_device_gives_what_the_host_gives(op):
    image = keras.Input((HEIGHT, WIDTH, 3), dtype="uint8")
    layer = keras.Model(image, apply_as_layer(op, image))
    np.testing.assert_allclose(layer(IMAGES), batched(op)["image"], rtol=1e-6, atol=2e-6)


def test_every_op_of_the_device_is_a_layer_and_what_is_random_has_none_or_another_in_evaluation():
    on_device = {op for op in REGISTRY.values() if op.device}
    assert on_device == set(apply_as_layer.registry) - {object}
    assert RandomCrop(height=3, width=3).in_evaluation() == CenterCrop(height=3, width=3)
    assert Flip().in_evaluation() is None


@pytest.mark.parametrize("op", ON_DEVICE, ids=repr)
def test_within_the_train_step_an_op_computes_what_the_host_does(op):
    """Exactly, or, where the host leaves it to OpenCV, within two levels."""

    @tf.function(input_signature=[tf.TensorSpec((None, HEIGHT, WIDTH, 3), tf.uint8)])
    def step(images):
        return compute_on_device(op, ELEMENT | {"image": images}, draw())["image"]

    resident, host = (value.numpy().astype(int) for value in (step(IMAGES), batched(op)["image"]))
    assert resident.shape == host.shape
    assert abs(resident - host).max() <= (2 if op.opencv else 0)
    assert abs(resident - host).mean() <= 0.5


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"resize": {"width": 3}}, "augment[0].resize: give `height` and `width`, or `shorter`"),
        ({"random_resized_crop": {"height": 8}}, "augment[0].random_resized_crop.width is missing"),
        (
            {"resized_center_crop": {"height": 8, "width": 9, "shorter": 8}},
            "a crop of 8×9 does not fit into a shorter side of 8; make `shorter` at least 9",
        ),
        ({"blur": {"sigma": [2, 1]}}, "blur.sigma: the least comes first, as in (1, 2)"),
        ("nowhere:Nothing", "nowhere"),
    ],
)
def test_a_wrong_op_is_told_with_its_place(spec, said):
    op, (problem,) = parse_op(spec, where="augment[0]")
    assert op is None and said in problem


def test_colors_become_their_luma_or_more_of_themselves():
    primaries = tf.constant([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], tf.uint8)
    many = {"image": tf.repeat(primaries[None], 400, 0), "key": tf.range(400, dtype=tf.int64)}
    gray = compute(Grayscale(probability=0.25), many, draw())["image"].numpy()
    changed = (gray != primaries.numpy()).any(axis=(1, 2, 3))
    assert 0.15 < changed.mean() < 0.35
    assert gray[changed][0, 0].tolist() == [[76] * 3, [150] * 3, [29] * 3, [255] * 3]
    assert luma(primaries).numpy().ravel().tolist() == [76, 150, 29, 255]
    red = compute(Saturation(delta=1.0), many, draw())["image"].numpy()[:, 0, 0]
    assert red[:, 1].min() == 0 and red[:, 1].max() > 70, "from twice as colorful to gray"
    assert (red[:, 1] == red[:, 2]).all()
    turned = compute(Hue(delta=0.5), many, draw())["image"].numpy()[:, 0, 0]
    assert (turned.max(axis=1) == 255).all() and (turned.min(axis=1) == 0).all()
    assert set(turned.argmax(axis=1).tolist()) == {0, 1, 2}, "red becomes any color"
    for op in (Grayscale(probability=1), Saturation(), Hue()):
        one_channel = {"image": many["image"][..., :1], "key": many["key"]}
        assert compute(op, one_channel, draw())["image"] is one_channel["image"]
        unknown = tf.TensorSpec((None, None, None, None), tf.uint8)
        graph = tf.function(lambda image, op=op: compute(op, many | {"image": image}, draw()))
        with pytest.raises(ImpossiblePlan, match=f"{op.name} needs to know how many channels"):
            graph.get_concrete_function(unknown)


def test_a_blur_keeps_the_mean_and_lessens_the_differences():
    blurred = batched(Blur(sigma=(1.5, 2.0), probability=0.75))["image"].numpy()
    same = (blurred == IMAGES).all(axis=(1, 2, 3))
    assert 0.1 < same.mean() < 0.45
    np.testing.assert_allclose(blurred.mean(), IMAGES.mean(), rtol=0.01)
    assert blurred[~same].std() < 0.5 * IMAGES.std()


def test_contrast_keeps_the_mean_of_large_pictures():
    white = tf.fill((4096, 2100, 1), tf.constant(255, tf.uint8))  # its sum exceeds 32 bits
    for key in (1, 4):  # factors above and below 1
        element = {"image": white, "key": tf.constant(key, tf.int64)}
        changed = compute(Contrast(delta=0.5), element, draw())["image"]
        assert int(tf.reduce_min(changed)) == 255
