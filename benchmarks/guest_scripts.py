"""Trainings as people write them, to try `whowaits` on (`python -m benchmarks.whowaits`)."""

from dataclasses import dataclass

# With TRUTH, a script trains on real batches and on batches from memory in alternation, for as many
# epochs as take SPAN_S. Short blocks would not do: the speed of a process varies over seconds,
# calling `fit` takes time, and closing a tf.data iterator sometimes takes a tenth of a second.
TRUTH = """
import os, sys, time
EPOCHS, PAIRS, FEWEST, LONG_S, SPAN_S = 6, 9, 5, 60, 1.5
UNTIMED = 2  # pairs: one compiles, one shows how long an epoch takes

def train_on(data, keep, run):
    if "TRUTH" not in os.environ:
        return run(EPOCHS, data)
    batches, epochs = {"real": data, "memory": keep(data)}, {"real": 1, "memory": 1}
    started = time.perf_counter()
    for number in range(PAIRS + UNTIMED):
        if number >= FEWEST + UNTIMED and time.perf_counter() - started > LONG_S:
            break
        took = {}
        for kind in sorted(batches, reverse=number % 2):
            began = time.perf_counter()
            steps = run(epochs[kind], batches[kind])
            seconds = time.perf_counter() - began
            took[kind] = 1e3 * seconds / steps
            if number == 1:
                epochs[kind] = max(1, round(SPAN_S / seconds))
        if number >= UNTIMED:
            print("PAIR", took["real"], took["memory"], flush=True)

def loop(data, keep, step):
    def run(epochs, given):
        steps = 0
        for number in range(epochs):
            for x, y in given:
                step(x, y)
                steps += 1
        return steps
    train_on(data, keep, run)
"""
KERAS = f"""
{TRUTH}
import numpy as np
import tensorflow as tf
if LIBRARY == "tf_keras":
    import tf_keras as keras
else:
    os.environ["KERAS_BACKEND"] = LIBRARY
    import keras

BATCH, COUNT, AUTO = 32, 960, tf.data.AUTOTUNE
rng = np.random.default_rng(0)
images = rng.integers(0, 255, (COUNT, 96, 96, 3), dtype=np.uint8)
labels = np.arange(COUNT) % 2
rows = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(COUNT)

def network(width=16, side=64):
    return keras.Sequential([
        keras.layers.InputLayer((side, side, 3)),
        keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2),
    ])

def jpegs():
    return tf.data.Dataset.from_tensor_slices(
        ([tf.io.encode_jpeg(image).numpy() for image in images], labels))

def in_memory():
    small = (images[:, :64, :64] / 255).astype("float32")
    return tf.data.Dataset.from_tensor_slices((small, labels)).batch(BATCH).cache().prefetch(AUTO)

def decode(file, label):
    image = tf.image.decode_jpeg(file, channels=3)
    return tf.image.resize(tf.cast(image, tf.float32) / 255, (64, 64), "bicubic"), label

def crop(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32), (96, 96), "bicubic")
    image = tf.image.random_crop(tf.image.random_flip_left_right(image), (64, 64, 3))
    return tf.image.random_contrast(image, 0.8, 1.2) / 255, label

def keep(data):
    if isinstance(data, tuple):
        x, y, size = data
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
    data = data.take(64).cache()
    for _ in data:  # to its end: `fit`, which knows the steps, may leave the cache unfinished
        pass
    return data

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def train(model, data):
    model.compile("sgd", LOSS)
    def run(epochs, given):
        given = given if isinstance(given, tuple) else (given,)
        model.fit(*given, epochs=epochs, verbose=0)
        return epochs * COUNT // BATCH
    train_on(data, keep, run)

def train_by_tape(model, data):
    optimizer = keras.optimizers.SGD()
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = LOSS(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    loop(data, keep, step)
"""
TORCH = f"""
{TRUTH}
import itertools
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, seconds, waits=False):
        self.seconds, self.waits = seconds, waits
    def __len__(self):
        return 960
    def __getitem__(self, number):
        end = time.perf_counter() + self.seconds
        if self.waits:
            time.sleep(self.seconds)
        while time.perf_counter() < end:
            pass
        return torch.randn(64), number % 2

def network(width):
    return torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
        torch.nn.ReLU(), torch.nn.Linear(width, 2))

def train(loader, model):
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.01), torch.nn.CrossEntropyLoss()
    def step(x, y):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    loop(loader, lambda data: list(itertools.islice(data, 64)), step)
"""


@dataclass(frozen=True)
class Case:
    """The end of a script; a cache after the op `freezes`, or after `batch`, freezes its draws."""

    script: str
    library: str = "tensorflow"
    freezes: str = ""

    @property
    def unsafe(self) -> tuple[str, ...]:
        """The beginnings of advice that freezes random draws."""
        return (f"{self.freezes}: .cache()", "batch: .cache()") if self.freezes else ()

    @property
    def text(self) -> str:
        if self.library == "torch":
            return f"{TORCH}{self.script}"
        return f"LIBRARY = {self.library!r}\n{KERAS}{self.script}"


CASES = {
    # Random ops that a later cache would freeze.
    "map of random crops": Case(
        "train(network(), rows.map(crop).batch(BATCH).prefetch(AUTO))",
        freezes="map(crop)",
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
        freezes="from_generator",
    ),
    # With no bottleneck, or hardly any.
    "a large model, kept": Case("train(network(96), in_memory())"),
    "arrays": Case("train(network(64, 96), ((images / 255).astype('float32'), labels, BATCH))"),
    "a tape, a large model": Case("train_by_tape(network(64), in_memory())"),
    # With a bottleneck.
    "a tape, decoding": Case("train_by_tape(network(), jpegs().map(decode).batch(BATCH))"),
    "a cache after the first epoch": Case(
        "train(network(48), jpegs().map(decode).cache().batch(BATCH).prefetch(AUTO))"
    ),
    "tf_keras": Case("train(network(), jpegs().map(decode).batch(BATCH))", library="tf_keras"),
    "JAX, decoding": Case("train(network(), jpegs().map(decode).batch(BATCH))", library="jax"),
    "PyTorch, no workers": Case("train(DataLoader(Rows(0.001), 32), network(256))", "torch"),
    "PyTorch, a store": Case(
        "train(DataLoader(Rows(0.002, waits=True), 32, num_workers=2), network(256))", "torch"
    ),
    "PyTorch, workers that keep up": Case(
        "rows = Rows(0.0003, waits=True)\n"
        "loader = DataLoader(rows, 32, num_workers=2, persistent_workers=True)\n"
        "train(loader, network(2048))",
        "torch",
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
        "torch",
    ),
}
