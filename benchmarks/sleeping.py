"""An op that sleeps: input with a known time per batch that occupies no core."""

from typing import Any, ClassVar, Literal

import tensorflow as tf
from pydantic import Field
from tensorflow.python.data.experimental.ops import testing

from throughline.plan.ops import Op

SLICE_MS = 5.0  # shorter sleeps take notably longer on a busy machine


class Sleep(Op):
    """Pass a batch on after `ms`, varied uniformly by ± `spread` of it."""

    name: ClassVar[str] = "sleep"
    takes: ClassVar[Literal["example", "batch", "both"]] = "batch"
    random: ClassVar[bool] = True  # a deterministic op is refused as augmentation
    ms: float = Field(gt=0, description="time per batch [ms]")
    spread: float = Field(default=0.0, ge=0, le=1, description="by which fraction it varies")
    seed: int = Field(default=0, description="of what it varies by")

    def compute(self, element: Any, draw: Any) -> Any:
        """Sleep in slices of some 5 ms; the end of the dataset takes one more.

        A single sleep would go on while its process is frozen, unlike real work.
        """
        drawn = draw.uniform(element["key"][:1], self.seed)[0] if self.spread else 0.5
        factor = 1 + self.spread * (2 * drawn - 1)
        milliseconds = self.ms * factor
        slices = tf.cast(tf.math.ceil(milliseconds / SLICE_MS), tf.int64)
        each_us = 1e3 * milliseconds / tf.cast(slices + 1, tf.float32)
        return (
            tf.data.Dataset.from_tensors(element)
            .repeat(slices)
            .apply(testing.sleep(tf.cast(each_us, tf.int64)))
            .skip(slices - 1)
            .get_single_element()
        )
