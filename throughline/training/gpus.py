"""The GPUs that a training computes on: those that TensorFlow finds, which may be fewer than CUDA's
driver shows.
"""

from __future__ import annotations

import tensorflow as tf


def count_training_gpus() -> int:
    """How many GPUs TensorFlow computes on in this process; takes no memory of them."""
    return len(tf.config.list_physical_devices("GPU"))


def describe_idle_gpus(*, visible: int, used: int) -> str | None:
    """What to do where GPUs are visible and TensorFlow uses none; None where it does, or there are
    none.
    """
    if not visible or used:
        return None
    return (
        f"CUDA's driver shows {visible} GPU{'s' * (visible > 1)}, and TensorFlow finds none of its"
        " libraries: the model is trained on the CPU. Install them with `make setup GPU=1`"
    )
