"""Experiments of TensorFlow's guide "Better performance with the tf.data API", beside its figures.

    python -m benchmarks.guide --json FILE

An artificial dataset takes 30 ms to open and 15 ms per sample, a train step 10 ms, a map 30 ms. All
costs are sleeps, so the times do not depend on the machine. TensorFlow's defaults stay, as in the
guide; they now add a prefetch, so that even "naive" overlaps a little. Each experiment runs several
times; the median counts. Source: tensorflow.org/guide/data_performance.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import throughline  # noqa: F401 - sets the environment before TensorFlow is imported

# isort: split
import tensorflow as tf

from benchmarks.command_line import command_line, write_results

OPEN_S, READ_S, TRAIN_S, MAP_S = 0.03, 0.015, 0.01, 0.03
QUICK_MAP_S, WIDENING_S = 0.001, 0.0001  # per sample, in the last two experiments
SAMPLES, LARGE, BATCH = 3, 50, 256
AUTO = tf.data.AUTOTUNE
Make = Callable[[], tf.data.Dataset]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A dataset and its epochs, the guide's seconds, and how long its sleeps should take."""

    name: str
    make: Make
    published_s: float
    sleeps_s: float
    epochs: int = 2
    train_s: float = TRAIN_S


def artificial(samples: int = SAMPLES) -> tf.data.Dataset:
    """Return a dataset whose file takes time to open and to read."""

    def read() -> Iterator[int]:
        time.sleep(OPEN_S)
        for number in range(samples):
            time.sleep(READ_S)
            yield number

    return tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec((), tf.int64))


def sleeping(seconds: float, *, per_sample: bool = False) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a map that sleeps once, or once for each sample of a batch."""

    def wait(value):  # noqa: ANN001, ANN202 - NumPy in, NumPy out
        time.sleep(seconds * (len(value) if per_sample else 1))
        return value

    def run(value: tf.Tensor) -> tf.Tensor:
        result = tf.numpy_function(wait, [value], tf.int64)
        result.set_shape(value.shape)
        return result

    return run


def files(samples: int = SAMPLES) -> Callable[[tf.Tensor], tf.data.Dataset]:
    return lambda number: artificial(samples).map(lambda value: value)


def optimized() -> tf.data.Dataset:
    """Interleave, batch, costly map, cache, widening map, prefetch: everything in its place."""
    dataset = (
        tf.data.Dataset.range(2)
        .interleave(files(LARGE), num_parallel_calls=AUTO)
        .batch(LARGE, drop_remainder=True)
    )
    dataset = dataset.map(sleeping(QUICK_MAP_S, per_sample=True), num_parallel_calls=AUTO).cache()
    return (
        dataset.map(sleeping(WIDENING_S, per_sample=True), num_parallel_calls=AUTO)
        .prefetch(AUTO)
        .unbatch()
    )


def experiments() -> list[Experiment]:
    """Return all experiments of the guide, in its order."""
    one_file, train = OPEN_S + SAMPLES * READ_S, SAMPLES * TRAIN_S
    two = tf.data.Dataset.range(2)
    last = 2 * (OPEN_S + LARGE * READ_S)

    def scalar() -> tf.data.Dataset:
        return tf.data.Dataset.range(10_000).map(lambda value: value + 1).batch(BATCH)

    def vector() -> tf.data.Dataset:
        return tf.data.Dataset.range(10_000).batch(BATCH).map(lambda value: value + 1)

    def naive() -> tf.data.Dataset:
        return (
            two.flat_map(files(LARGE))
            .map(sleeping(QUICK_MAP_S + WIDENING_S))
            .batch(LARGE, drop_remainder=True)
            .unbatch()
        )

    return [
        Experiment(
            name="naive", make=artificial, published_s=0.290, sleeps_s=2 * (one_file + train)
        ),
        Experiment(
            name="prefetch",
            make=lambda: artificial().prefetch(AUTO),
            published_s=0.282,
            sleeps_s=2 * (one_file + TRAIN_S),
        ),
        Experiment(
            name="interleave, sequential",
            make=lambda: two.interleave(files()),
            published_s=0.477,
            sleeps_s=2 * 2 * (one_file + train),
        ),
        Experiment(
            name="interleave, parallel",
            make=lambda: two.interleave(files(), num_parallel_calls=AUTO),
            published_s=0.377,
            sleeps_s=2 * (OPEN_S + READ_S + 2 * train),
        ),
        Experiment(
            name="map, sequential",
            make=lambda: artificial().map(sleeping(MAP_S)),
            published_s=0.492,
            sleeps_s=2 * (one_file + SAMPLES * MAP_S + train),
        ),
        Experiment(
            name="map, parallel",
            make=lambda: artificial().map(sleeping(MAP_S), num_parallel_calls=AUTO),
            published_s=0.364,
            sleeps_s=2 * (one_file + MAP_S + TRAIN_S),
        ),
        Experiment(
            name="cache, 5 epochs",
            make=lambda: artificial().map(sleeping(MAP_S)).cache(),
            published_s=0.386,
            sleeps_s=one_file + SAMPLES * MAP_S + 5 * train,
            epochs=5,
        ),
        Experiment(name="scalar map", make=scalar, published_s=0.240, sleeps_s=0.0, train_s=0.0),
        Experiment(
            name="vectorized map", make=vector, published_s=0.050, sleeps_s=0.0, train_s=0.0
        ),
        Experiment(
            name="all naive, 5 epochs",
            make=naive,
            published_s=13.21,
            sleeps_s=5 * (last + 2 * LARGE * (QUICK_MAP_S + WIDENING_S + TRAIN_S)),
            epochs=5,
        ),
        Experiment(
            name="all optimized, 5 epochs",
            make=optimized,
            published_s=6.82,
            sleeps_s=last / 2 + LARGE * QUICK_MAP_S + 5 * 2 * LARGE * TRAIN_S,
            epochs=5,
        ),
    ]


def seconds(experiment: Experiment) -> float:
    """Time all epochs as the guide does: iterate in Python, and sleep for each train step."""
    dataset = experiment.make()
    began = time.perf_counter()
    for _ in range(experiment.epochs):
        for _ in dataset:
            if experiment.train_s:
                time.sleep(experiment.train_s)
    return time.perf_counter() - began


def main() -> None:
    parser = command_line("guide", __doc__)
    parser.add_argument(
        "--repeats", type=int, default=3, help="times that each experiment runs; the median counts"
    )
    options = parser.parse_args()
    results = {}
    print(
        f"{'experiment':<26}{'guide s':>9}{'here s':>9}"
        f"{'here ÷ guide':>14}{'sleeps s':>9}{'spread':>8}"
    )
    for experiment in experiments():
        # Leave out the slowest, in which the first call is traced.
        times = sorted(seconds(experiment) for _ in range(options.repeats + 1))[: options.repeats]
        here = statistics.median(times)
        results[experiment.name] = {
            "published_s": experiment.published_s,
            "here_s": round(here, 4),
            "sleeps_s": round(experiment.sleeps_s, 4),
        }
        spread = 100 * (times[-1] - times[0]) / here
        figures = (
            f"{experiment.published_s:>9.3f}{here:>9.3f}{here / experiment.published_s:>14.2f}"
            f"{experiment.sleeps_s:>9.3f}{spread:>7.0f}%"
        )
        print(f"{experiment.name:<26}{figures}")
    pairs = (
        ("interleave, sequential", "interleave, parallel"),
        ("map, sequential", "map, parallel"),
        ("scalar map", "vectorized map"),
    )
    for slow, quick in (*pairs, ("all naive, 5 epochs", "all optimized, 5 epochs")):
        gains = [results[slow][key] / results[quick][key] for key in ("published_s", "here_s")]
        print(f"{quick} over {slow}: {gains[0]:.2f} × in the guide, {gains[1]:.2f} × here")
    write_results(options.json, results)


if __name__ == "__main__":
    main()
