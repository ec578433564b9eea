"""What it costs a training to be watched by `whowaits` (as `--keep`, `watch` and `Callback` do).

    python -m benchmarks.whowaits_cost [--pairs 25]

One process trains a model by `fit` as it is and a second, equal one by `fit` under
`whowaits.watch()`, in alternation. A block is an epoch without its first steps. The cost is the
median difference of a step over pairs, with its 95 % interval by the order of the pairs. CPU time
of the training thread is compared, too: other programs hardly change it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

SKIPPED = 10  # steps at the start of a block
MODELS = {"small": (1, 64, 300), "medium": (2, 512, 150), "large": (3, 1024, 60)}
BATCH = 128


def main() -> None:
    """Print the cost of being watched, for models of three sizes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    options = parser.parse_args()
    print("| model | a step, ms | watched, µs more (95 %) | of its thread, µs more (95 %) |")
    print("|---|---|---|---|")
    for name, (layers, width, steps) in MODELS.items():
        print(measure(name, layers, width, steps, pairs=options.pairs), flush=True)


def measure(name: str, layers: int, width: int, steps: int, *, pairs: int) -> str:
    import contextlib
    import io

    import keras
    import tensorflow as tf

    import whowaits

    data = tf.data.Dataset.from_tensors((tf.random.normal((BATCH, 256)), tf.zeros((BATCH,))))
    data = data.cache().repeat()
    models = [_make(keras, layers, width) for _ in range(2)]
    fit = keras.Model.fit
    bare = getattr(fit, "__wrapped__", fit)

    def time_step(number: int, train: Any) -> tuple[float, float]:
        clock = _make_clock(keras)
        with contextlib.redirect_stdout(io.StringIO()):
            train(models[number], data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        wall, cpu = (1e6 * taken / (steps - SKIPPED) for taken in clock.taken)
        return wall, cpu

    def watched(*args: Any, **kwargs: Any) -> None:
        with whowaits.watch():
            keras.Model.fit(*args, **kwargs)

    trainers = (bare, watched)
    for number, train in enumerate(trainers):  # trace and compile
        time_step(number, train)
    walls, threads, alone = [], [], []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 else (1, 0)
        times = {number: time_step(number, trainers[number]) for number in order}
        walls.append(times[1][0] - times[0][0])
        threads.append(times[1][1] - times[0][1])
        alone.append(times[0][0])
    step = statistics.median(alone) / 1e3
    return f"| {name} | {step:.2f} | {_show(walls)} | {_show(threads)} |"


def _show(values: list[float]) -> str:
    low, high = _interval(values)
    return f"{statistics.median(values):.0f} ({low:.0f} to {high:.0f})"


def _interval(values: list[float]) -> tuple[float, float]:
    """Return an interval of the median by order (normal approximation of the binomial)."""
    ascending, count = sorted(values), len(values)
    spare = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
    return ascending[spare], ascending[-1 - spare]


def _make(keras: Any, layers: int, width: int) -> Any:
    model = keras.Sequential([keras.Input((256,))])
    for _ in range(layers):
        model.add(keras.layers.Dense(width, "relu"))
    model.add(keras.layers.Dense(2))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _make_clock(keras: Any) -> Any:
    class Clock(keras.callbacks.Callback):
        steps = 0
        began = taken = (0.0, 0.0)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            now = time.perf_counter(), time.thread_time()
            if self.steps == SKIPPED:
                self.began = now
            self.taken = now[0] - self.began[0], now[1] - self.began[1]

    return Clock()


if __name__ == "__main__":
    main()
