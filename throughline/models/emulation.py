"""An emulated accelerator: a model whose train step takes a given time but uses no resources.

The step waits outside of TensorFlow's graph, on the training's thread, from the arrival of its
batch. It uses no core, no tf.data thread and no memory bandwidth. So it shows what an input
pipeline achieves for an accelerator that is not there, and its stall is known by construction. The
model learns only the frequency of the classes, or the mean of the targets.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers, ops

from throughline.settings import EMULATED_MODEL
from throughline.shared.errors import UnknownModel, did_you_mean

OUTPUT_LAYER = "constant_output"


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The duration of a train step, drawn uniformly from `step_ms` · (1 ± `spread`) by `seed`."""

    step_ms: float
    spread: float = 0.0
    seed: int = 0

    def durations_s(self) -> Iterator[float]:
        draw = random.Random(self.seed)
        while True:
            yield self.step_ms / 1e3 * (1 + self.spread * (2 * draw.random() - 1))


def parse_emulation(options: dict[str, Any]) -> Emulation:
    """Check the `model.options` of an emulated accelerator.

    Raises:
      UnknownModel: If an option is missing, unknown or out of bounds.
    """
    known = {"step_ms": (0.01, 1e6), "spread": (0.0, 1.0), "seed": (0, 2**31)}
    if "step_ms" not in options:
        raise UnknownModel(
            "model.options: an emulated accelerator needs step_ms, the time of a train step in"
            " milliseconds"
        )
    for key, value in options.items():
        if key not in known:
            raise UnknownModel(
                f"model.options.{key} is not an option of an emulated accelerator;"
                f" {did_you_mean(key, list(known))}"
            )
        low, high = known[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise UnknownModel(
                f"model.options.{key}: {value!r} is not a number from {low:g} to {high:g}"
            )
    return Emulation(**options)


def emulated_network(input_shape: tuple[int, ...], outputs: int, **options: Any) -> keras.Model:
    """Make the network that an emulated accelerator trains, which ignores its inputs.

    Its outputs are the same trainable numbers for every example. It consists of Keras' own layers,
    so that it can be loaded without this program.
    """
    inputs = keras.Input(input_shape)
    # A single column, because the length of texts is not known.
    nothing = ops.reshape(ops.zeros_like(layers.Flatten()(inputs)[:, 0]), (-1, 1))
    return keras.Model(
        inputs, layers.Dense(outputs, name=OUTPUT_LAYER)(nothing), name=EMULATED_MODEL
    )


def find_output(network: keras.Model) -> Any:
    """Find the trained layer of an emulated network, even if its outputs are reshaped."""
    return next(layer for layer in network._flatten_layers() if layer.name == OUTPUT_LAYER)


class EmulatedTraining(keras.Model):
    """Trains an emulated network with steps that take as long as the accelerator would."""

    def __init__(self, emulation: Emulation, output: Any, shape: tuple[int, ...]) -> None:
        super().__init__(name="emulated_training")
        self._durations_s, self._output, self._shape = emulation.durations_s(), output, shape

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Compute the outputs without the inputs, because postprocessing them would use a core."""
        shape: Any = ops.shape(keras.tree.flatten(inputs)[0])
        return ops.reshape(self._output(ops.zeros((shape[0], 1))), (-1, *self._shape))

    def pace(
        self,
        step: Callable[[Any], Any],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Callable[[Iterator, Any], Any]:
        """Return a function that runs N steps on an iterator's batches and returns the last logs.

        Each step lasts from the arrival of its batch until the accelerator would be done.
        """

        def run(iterator: Iterator, steps: Any) -> Any:
            logs = None
            for _ in range(int(steps)):
                batch = next(iterator)
                done_s = clock() + next(self._durations_s)
                logs = step(batch)
                sleep(max(0.0, done_s - clock()))
            return logs

        return run
