"""What a `parallel` field of params.yaml means to tf.data, and in a printed plan."""

from __future__ import annotations

from dataclasses import dataclass

from throughline.shared.limits import usable_cores

AUTOTUNE = -1  # tf.data.AUTOTUNE, without TensorFlow


@dataclass(frozen=True)
class Parallelism:
    """Parallel calls, or readers: none (one after another), auto (left to AUTOTUNE), cores
    (as many as there are) or a number.
    """

    setting: str | int = "none"

    def __str__(self) -> str:
        return str(self.setting)

    @property
    def is_sequential(self) -> bool:
        """Whether one runs after another."""
        return self.setting == "none"

    @property
    def is_autotuned(self) -> bool:
        """Whether the number is left to tf.data's AUTOTUNE."""
        return self.setting == "auto"

    def num_parallel_calls(self, *, on_host: int = 1, useful: int | None = None) -> int | None:
        """The argument of that name of tf.data's transformations, on this machine, whose cores so
        many processes share; `cores` are never more than are `useful`, if that is given.
        """
        cores = max(1, usable_cores() // on_host)
        words = {"none": None, "auto": AUTOTUNE, "cores": min(cores, useful or cores)}
        return words[self.setting] if isinstance(self.setting, str) else self.setting

    def threads(self, cores: int) -> int:
        """How many threads that is; AUTOTUNE ends up with as many as there are cores."""
        if isinstance(self.setting, int):
            return self.setting
        return 1 if self.is_sequential else cores
