"""An emulated accelerator: a model whose train step takes a given time but uses no resources.

The step waits on the training's thread, outside of TensorFlow's graph, from the arrival of its
batch, and uses no core, tf.data thread or memory bandwidth. So it shows the speed of an input
pipeline for an absent accelerator. The model learns only the frequency of the classes, or the
mean of the targets.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
from keras import layers, ops
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from throughline.plan.op_parsing import describe_problem
from throughline.settings import EMULATED_MODEL
from throughline.shared.errors import UnknownModel

OUTPUT_LAYER = "constant_output"


class Emulation(BaseModel):
    """The duration of a train step, drawn uniformly from `step_ms` · (1 ± `spread`) by `seed`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    step_ms: float = Field(ge=0.01, le=1e6)
    spread: float = Field(default=0.0, ge=0, le=1)
    seed: int = Field(default=0, ge=0, le=2**31)

    def durations_s(self) -> Iterator[float]:
        draw = random.Random(self.seed)
        while True:
            yield self.step_ms / 1e3 * (1 + self.spread * (2 * draw.random() - 1))


def parse_emulation(options: Mapping[str, Any]) -> Emulation:
    """Check `model.options`; raises UnknownModel if one is missing, unknown or out of bounds."""
    try:
        return Emulation.model_validate(options)
    except ValidationError as error:
        problem = describe_problem("model.options", Emulation, error.errors()[0])
        raise UnknownModel(
            f"{problem} (an emulated accelerator needs step_ms, the time of a train step in"
            " milliseconds, and takes its spread, from 0 to 1, and a seed)"
        ) from error


def emulated_network(input_shape: tuple[int, ...], outputs: int, **options: Any) -> keras.Model:
    """Make a network of Keras' layers with the same trainable outputs for every example."""
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
