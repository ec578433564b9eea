"""Trainings as people write them, to try `whowaits` on (`python -m benchmarks.whowaits`)."""

from __future__ import annotations

from dataclasses import dataclass

# Trains on real batches and on batches from memory in alternation, for as many epochs as take
# SPAN_S. Short blocks would not do: the speed of a process varies over seconds, calling `fit` takes
# time, and closing a tf.data iterator sometimes takes a tenth of a second.
ALTERNATE = """
TRUTH, IN_MEMORY, PAIRS, FEWEST, LONG_S = os.environ.get("TRUTH"), False, 9, 5, 60
UNTIMED, SPAN_S = 2, 1.5  # rounds: one compiles, one says how long an epoch takes

def alternate(as_it_is, from_memory):
    global IN_MEMORY
    started, epochs = time.perf_counter(), {True: 1, False: 1}
    for number in range(PAIRS + UNTIMED):
        if number >= FEWEST + UNTIMED and time.perf_counter() - started > LONG_S:
            break
        took = {}
        for IN_MEMORY in (True, False) if number % 2 else (False, True):
            began = time.perf_counter()
            steps = (from_memory if IN_MEMORY else as_it_is)(epochs[IN_MEMORY])
            seconds = time.perf_counter() - began
            took[IN_MEMORY] = 1e3 * seconds / steps
            if number == 1:
                epochs[IN_MEMORY] = max(1, round(SPAN_S / seconds))
        if number >= UNTIMED:
            print("PAIR", took[False], took[True], flush=True)
"""
PRELUDE = f"""
import os, sys, time
{ALTERNATE}
if BACKEND:
    os.environ["KERAS_BACKEND"] = BACKEND
import numpy as np
import keras
import tensorflow as tf

EPOCHS, BATCH, COUNT, AUTO = 6, 32, 960, tf.data.AUTOTUNE
rng = np.random.default_rng(0)
images = rng.integers(0, 255, (COUNT, 96, 96, 3), dtype=np.uint8)
labels = np.arange(COUNT) % 2

def network(width=16, side=64):
    return keras.Sequential([
        keras.Input((side, side, 3)), keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2),
    ])

def jpegs():
    return [tf.io.encode_jpeg(image).numpy() for image in images]

def decode(file, label):
    image = tf.image.decode_jpeg(file, channels=3)
    return tf.image.resize(tf.cast(image, tf.float32) / 255, (64, 64), "bicubic"), label

def crop(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32), (96, 96), "bicubic")
    image = tf.image.random_crop(tf.image.random_flip_left_right(image), (64, 64, 3))
    return tf.image.random_contrast(image, 0.8, 1.2) / 255, label

def keep(data, *args):
    if isinstance(data, np.ndarray):
        rows, size = args
        data = tf.data.Dataset.from_tensor_slices((data, rows)).batch(size)
    if not isinstance(data, tf.data.Dataset):
        return data
    data = data.take(64).cache()
    for _ in data:  # to its end: `fit`, which knows the steps, may leave the cache unfinished
        pass
    return data

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def train(model, data, *args, **more):
    options = {{key: more.pop(key) for key in list(more) if key in ("steps_per_execution",)}}
    model.compile("sgd", LOSS, **options)
    if not TRUTH:
        model.fit(data, *args, epochs=EPOCHS, verbose=0, **more)
        return
    def run(epochs, *given):
        model.fit(*given, epochs=epochs, verbose=0, **more)
        return epochs * COUNT // BATCH
    kept = keep(data, *args)
    alternate(lambda epochs: run(epochs, data, *args), lambda epochs: run(epochs, kept))
"""
ROWS = "rows = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(COUNT)\n"
FILES = "files = tf.data.Dataset.from_tensor_slices((jpegs(), labels))\n"
MEMORY = """
small = (images[:, :64, :64] / 255).astype("float32")
kept = tf.data.Dataset.from_tensor_slices((small, labels)).batch(BATCH).cache().prefetch(AUTO)
"""
TAPE = """
def loop(model, data):
    optimizer = keras.optimizers.SGD()
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = LOSS(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    def run(epochs, given):
        steps = 0
        for number in range(epochs):
            for x, y in given:
                step(x, y)
                steps += 1
        return steps
    if TRUTH:
        kept = keep(data)
        return alternate(lambda epochs: run(epochs, data), lambda epochs: run(epochs, kept))
    for number in range(EPOCHS):
        for x, y in data:
            step(x, y)
"""
TORCH = f"""
import os, time, itertools, sys
{ALTERNATE}
import torch
from torch.utils.data import DataLoader, Dataset

EPOCHS, COUNT = 6, 960

class Rows(Dataset):
    def __init__(self, seconds, side=64):
        self.seconds, self.side = seconds, side
    def __len__(self):
        return COUNT
    def __getitem__(self, number):
        end = time.perf_counter() + self.seconds
        if WAITS:
            time.sleep(self.seconds)
        while time.perf_counter() < end:
            pass
        return torch.randn(self.side), number % 2

def network(width, side=64):
    return torch.nn.Sequential(
        torch.nn.Linear(side, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
        torch.nn.ReLU(), torch.nn.Linear(width, 2))

def train(loader, model):
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.01), torch.nn.CrossEntropyLoss()
    def step(x, y):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    def run(epochs, given):
        steps = 0
        for number in range(epochs):
            for x, y in given:
                step(x, y)
                steps += 1
        return steps
    if TRUTH:
        kept = list(itertools.islice(loader, 64))
        return alternate(lambda epochs: run(epochs, loader), lambda epochs: run(epochs, kept))
    for number in range(EPOCHS):
        for x, y in loader:
            step(x, y)
"""


@dataclass(frozen=True)
class Case:
    """A script; a first advice that begins with one of `freezes` would freeze random draws."""

    script: str
    backend: str = ""
    freezes: tuple[str, ...] = ()
    torch_waits: bool | None = None

    @property
    def text(self) -> str:
        if self.torch_waits is not None:
            return f"WAITS = {self.torch_waits}\n{TORCH}{self.script}"
        return f"BACKEND = {self.backend!r}\n{PRELUDE}{self.script}"


BATCHES = ("batch: .cache()",)
CASES = {
    # Random ops that a later cache would freeze.
    "map of random crops": Case(
        f"{ROWS}train(network(), rows.map(crop).batch(BATCH).prefetch(AUTO))",
        freezes=("map(crop): .cache()", *BATCHES),
    ),
    "parallel random crops": Case(
        f"{ROWS}train(network(), rows.map(crop, AUTO).batch(BATCH).prefetch(AUTO))",
        freezes=("map(crop): .cache()", *BATCHES),
    ),
    "JPEGs, then random crops": Case(
        f"{FILES}train(network(), files.shuffle(COUNT).map(decode).map(crop).batch(BATCH))",
        freezes=("map(crop): .cache()", *BATCHES),
    ),
    "distorted boxes": Case(
        f"""{FILES}
def distort(file, label):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        (96, 96, 3), tf.zeros((1, 0, 4)), use_image_if_no_bounding_boxes=True)
    image = tf.slice(tf.image.decode_jpeg(file, channels=3), begin, size)
    return tf.image.resize(image, (64, 64)) / 255, label

train(network(), files.map(distort, AUTO).batch(BATCH).prefetch(AUTO))
""",
        freezes=("map(distort): .cache()", *BATCHES),
    ),
    "shuffled batches of a decode": Case(
        f"{FILES}train(network(), files.shuffle(COUNT).map(decode, AUTO).batch(BATCH))",
        freezes=BATCHES,
    ),
    "pairs of shuffled datasets": Case(
        f"""{ROWS}
def mix(first, second):
    (a, label), (b, _) = first, second
    a, b = (tf.image.resize(tf.cast(each, tf.float32), (64, 64), "bicubic") for each in (a, b))
    return (a + b) / 510, label

pairs = tf.data.Dataset.zip((rows, rows))
train(network(), pairs.map(mix).batch(BATCH).prefetch(AUTO))
""",
        freezes=("map(mix): .cache()", *BATCHES),
    ),
    "noise": Case(
        f"""{ROWS}
def noise(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32), (64, 64), "bicubic") / 255
    return image + tf.random.truncated_normal((64, 64, 3), stddev=0.1), label

train(network(), rows.map(noise).batch(BATCH))
""",
        freezes=("map(noise): .cache()", *BATCHES),
    ),
    "a generator that draws": Case(
        """
def examples():
    for number in rng.permutation(COUNT):
        time.sleep(0.001)
        yield (images[number, :64, :64] / 255).astype("float32"), labels[number]

spec = (tf.TensorSpec((64, 64, 3)), tf.TensorSpec((), tf.int64))
train(network(), tf.data.Dataset.from_generator(examples, output_signature=spec).batch(BATCH))
""",
        freezes=("from_generator: .cache()", *BATCHES),
    ),
    "numpy that draws": Case(
        f"""{ROWS}
def jitter(image):
    return (np.roll(image, rng.integers(9), 0)[:64, :64] / 255).astype("float32")

def load(image, label):
    made = tf.numpy_function(jitter, [image], tf.float32)
    return tf.ensure_shape(made, (64, 64, 3)), label

train(network(), rows.map(load).batch(BATCH).prefetch(2))
""",
        freezes=("map(load): .cache()", *BATCHES),
    ),
    "Keras layers that draw in a map": Case(
        f"""{ROWS}
augment = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.1, 0.1)])

def change(image, label):
    return augment(tf.cast(image[:, :64, :64], tf.float32) / 255, training=True), label

train(network(), rows.batch(BATCH).map(change, AUTO).prefetch(AUTO))
""",
        freezes=("map(change): .cache()", "batch: .cache()"),
    ),
    # With no bottleneck, or hardly any.
    "a large model, kept": Case(f"{MEMORY}train(network(96), kept)"),
    "a model of medium size, kept": Case(f"{MEMORY}train(network(48), kept)"),
    "arrays": Case("train(network(64, 96), (images / 255).astype('float32'), labels, BATCH)"),
    "arrays, a small model": Case(
        """
x, y = rng.random((COUNT * 4, 784)).astype("float32"), np.arange(COUNT * 4) % 2
layers = [keras.Input((784,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(2)]
train(keras.Sequential(layers), x, y, 128)
"""
    ),
    "a sleeping model": Case(
        f"""{ROWS}
class Sleeping(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.numpy_function(self.wait, [], tf.int64)]):
            return tf.identity(x)
    def wait(self):
        time.sleep(0.05)
        return np.int64(0)

model = keras.Sequential([keras.Input((64, 64, 3)), Sleeping(), *network().layers])
train(model, rows.map(crop, AUTO).batch(BATCH).prefetch(AUTO))
"""
    ),
    "steps_per_execution": Case(f"{MEMORY}train(network(32), kept, steps_per_execution=5)"),
    "padded batches, by length": Case(
        """
def lines():
    for number in range(COUNT):
        length = 20 + number
        yield np.zeros(length, "int32"), length % 2

spec = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int64))
data = tf.data.Dataset.from_generator(lines, output_signature=spec).cache()
layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(9, 64),
          keras.layers.Conv1D(64, 5), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
train(keras.Sequential(layers), data.padded_batch(BATCH).prefetch(AUTO))
"""
    ),
    "a tape, a large model": Case(f"{MEMORY}{TAPE}loop(network(64), kept)"),
    # With a bottleneck.
    "a tape, decoding": Case(f"{FILES}{TAPE}loop(network(), files.map(decode).batch(BATCH))"),
    "a tape, a store": Case(
        f"""{TAPE}
def fetch(number):
    time.sleep(0.002)
    return np.zeros((64, 64, 3), "float32")

def load(number):
    made = tf.numpy_function(fetch, [number], tf.float32)
    return tf.ensure_shape(made, (64, 64, 3)), number % 2

loop(network(), tf.data.Dataset.range(COUNT).map(load).batch(BATCH).prefetch(2))
"""
    ),
    "a cache after the first epoch": Case(
        f"{FILES}train(network(48), files.map(decode).cache().batch(BATCH).prefetch(AUTO))"
    ),
    "a PyDataset": Case(
        """
ready = {}

class Rows(keras.utils.PyDataset):
    def __len__(self):
        return COUNT // BATCH
    def __getitem__(self, number):
        if IN_MEMORY:
            return ready[number]
        time.sleep(0.03)
        rows = slice(number * BATCH, (number + 1) * BATCH)
        ready[number] = (images[rows, :64, :64] / 255).astype("float32"), labels[rows]
        return ready[number]

train(network(), Rows(workers=2))
"""
    ),
    "tf_keras": Case(
        f"""{FILES}
import tf_keras
layers = tf_keras.layers
model = tf_keras.Sequential([
    layers.Conv2D(16, 3, 2, input_shape=(64, 64, 3)),
    layers.GlobalAveragePooling2D(), layers.Dense(2)])
model.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))

data = files.map(decode).batch(BATCH)
kept = keep(data)

def run(epochs, given):
    model.fit(given, epochs=epochs, verbose=0)
    return epochs * COUNT // BATCH

if TRUTH:
    alternate(lambda epochs: run(epochs, data), lambda epochs: run(epochs, kept))
else:
    model.fit(data, epochs=EPOCHS, verbose=0)
"""
    ),
    "JAX, decoding": Case(
        f"{FILES}train(network(), files.map(decode).batch(BATCH))", backend="jax"
    ),
    "JAX, a large model": Case(f"{MEMORY}train(network(64), kept)", backend="jax"),
    "PyTorch, no workers": Case(
        "train(DataLoader(Rows(0.001), 32), network(256))", torch_waits=False
    ),
    "PyTorch, a store": Case(
        "train(DataLoader(Rows(0.002), 32, num_workers=2), network(256))", torch_waits=True
    ),
    "PyTorch, workers that keep up": Case(
        "loader = DataLoader(Rows(0.0003), 32, num_workers=2, persistent_workers=True)\n"
        "train(loader, network(2048))",
        torch_waits=True,
    ),
    "PyTorch, a large model": Case(
        "train(DataLoader(Rows(0), 32), network(2048))", torch_waits=False
    ),
    "PyTorch, validation between": Case(
        """
loader = DataLoader(Rows(0.001), 32)
model = network(512)
with torch.no_grad():
    for x, y in loader:
        model(x)
train(loader, model)
""",
        torch_waits=False,
    ),
}
