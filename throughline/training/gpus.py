"""The GPUs that TensorFlow finds, which may be fewer than the CUDA driver shows."""

from __future__ import annotations

import tensorflow as tf


def count_training_gpus() -> int:
    """Count the GPUs that TensorFlow computes on in this process; reserves no memory."""
    return len(tf.config.list_physical_devices("GPU"))


def describe_idle_gpus(*, visible: int, used: int) -> str | None:
    """Say what to do if GPUs are visible but TensorFlow uses none; None otherwise."""
    if not visible or used:
        return None
    return (
        f"CUDA's driver shows {visible} GPU{'s' * (visible > 1)}, and TensorFlow finds none of its"
        " libraries: the model is trained on the CPU. Install them with `make setup GPU=1`"
    )
