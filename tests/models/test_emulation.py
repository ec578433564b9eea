"""An emulated accelerator takes its time, sleeps while it does, and can be trained, saved and
planned for.
"""

from itertools import islice

import keras
import numpy as np
import pytest
import tensorflow as tf

from throughline.measurement.accelerators import ACCELERATORS, find_accelerator
from throughline.models.builders import Target, build_models
from throughline.models.emulation import EmulatedTraining, Emulation
from throughline.plan.ops import Rescale
from throughline.settings import ModelSettings, TrainSettings
from throughline.shared.errors import ImpossiblePlan, UnknownModel
from throughline.training.step_function import make_execution
from throughline.training.step_model import Feed, make_step_model

pytestmark = pytest.mark.integration

CLASSES = Target(kind="class", shape=(4,))


def models(name="emulated", *, target=CLASSES, input_shape=(8, 8, 1), dtype="uint8", **options):
    settings, scaled = ModelSettings(name=name, options=options), [Rescale()] * (dtype == "uint8")
    given = {"input_shape": input_shape, "dtype": dtype, "target": target, "postprocess": scaled}
    return build_models(settings, **given)


def batches(count, labels=(0, 0, 0, 1)):
    images = np.zeros((len(labels), 8, 8, 1), np.uint8)
    return iter(tf.data.Dataset.from_tensors((images, np.asarray(labels))).repeat(count))


def trained(built, feed, steps, **settings):
    settings = TrainSettings(learning_rate=0.5, schedule="constant", **settings)
    model = make_step_model(built, settings, Feed(steps_per_epoch=steps, stored=True))
    run = make_execution(model)
    for _ in range(steps):
        run(feed, tf.constant(model.steps_per_execution))
    return model


class Machine:
    """A clock that goes on while steps are computed and while a training sleeps."""

    def __init__(self) -> None:
        self.now_s, self.slept_s = 100.0, 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds

    def compute(self, seconds: float) -> float:
        self.now_s += seconds
        return seconds


def test_a_step_takes_its_time_from_when_its_batch_is_there_and_sleeps_what_is_left():
    machine = Machine()
    training = EmulatedTraining(Emulation(step_ms=50), output=None, shape=(4,))
    run = training.pace(machine.compute, clock=machine.clock, sleep=machine.sleep)

    def load():
        for seconds in (0.010, 0.010, 0.080):  # the last takes longer than the accelerator
            machine.now_s += 0.030  # the input pipeline works on the batch
            yield seconds

    assert run(load(), 3) == 0.080, "the logs of the last step"
    assert machine.now_s - 100 == pytest.approx(3 * 0.030 + 2 * 0.050 + 0.080)
    assert machine.slept_s == pytest.approx(2 * 0.040)


def test_varying_steps_are_drawn_from_their_seed_around_the_mean():
    drawn, again = (
        np.array([*islice(Emulation(step_ms=10, spread=0.5).durations_s(), 2000)]) for _ in "12"
    )
    np.testing.assert_array_equal(drawn, again)
    assert drawn.min() >= 0.005 and drawn.max() <= 0.015
    assert drawn.mean() == pytest.approx(0.010, rel=0.03)


def test_it_learns_how_frequent_the_classes_are_and_is_saved_as_any_model(tmp_path):
    built = models(step_ms=0.1)
    model = trained(built, feed := batches(60), 15, steps_per_execution=4)
    assert next(feed, None) is None, "each step of an execution takes a batch"
    built.full_model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = np.zeros((3, 8, 8, 1), np.uint8)
    logits = loaded.predict(inputs, verbose=0)
    np.testing.assert_allclose(logits, model(inputs), rtol=1e-5)
    assert logits.argmax(axis=1).tolist() == [0, 0, 0]


def test_texts_of_any_length_are_taken_and_targets_keep_their_shape():
    texts = models(input_shape=(None,), dtype="int32", step_ms=5)
    for length in (3, 7):
        assert texts.full_model(np.ones((2, length), np.int32)).shape == (2, 4)
    built = models(target=Target(kind="regression", shape=(2, 3)), step_ms=0.1)
    model = make_step_model(built, TrainSettings(), Feed(steps_per_epoch=1, stored=False))
    assert model(np.zeros((5, 8, 8, 1), np.float32)).shape == (5, 2, 3)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("emulated", {}, "needs step_ms"),
        ("emulated", {"step_ms": True}, "True is not a number from 0.01"),
        ("emulated", {"step_ms": 5, "spread": 2}, "model.options.spread: 2"),
        ("emulated", {"step_ms": 5, "jiter": 0.1}, "model.options.jiter"),
        ("mlp", {"wdth": 3}, "model.options: mlp does not accept .*wdth"),
        ("MobileNetV2", {"weights": "imagenet"}, "set by this program, not by options: weights"),
    ],
)
def test_options_are_checked(name, options, problem):
    with pytest.raises(UnknownModel, match=problem):
        models(name, input_shape=(32, 32, 3), **options)


def test_what_needs_the_accelerators_memory_is_refused():
    with pytest.raises(ImpossiblePlan, match="snapshot_on: host"):
        feed = Feed(steps_per_epoch=1, stored=True, gather=lambda step: step)
        make_step_model(models(step_ms=1), TrainSettings(), feed)


def test_every_accelerator_of_the_table_has_a_source_and_scales_with_the_batch():
    for name, one in ACCELERATORS.items():
        assert one.source and name.endswith("-" + one.model.lower().replace("-", ""))
        assert one.step_ms(one.batch_size) == pytest.approx(1e3 * one.step_s)
    assert find_accelerator("h100-resnet50").examples_per_s == pytest.approx(1786, abs=1)
    with pytest.raises(UnknownModel, match="did you mean"):
        find_accelerator("h100-resnet5")
