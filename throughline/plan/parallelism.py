"""The meaning of a `parallel` field of params.yaml for tf.data and in a printed plan."""

from __future__ import annotations

from dataclasses import dataclass

from throughline.shared.limits import usable_cores

AUTOTUNE = -1  # tf.data.AUTOTUNE, without TensorFlow


@dataclass(frozen=True)
class Parallelism:
    """Parallel calls or readers: none, auto (AUTOTUNE), cores (one per core) or a number."""

    setting: str | int = "none"

    def __str__(self) -> str:
        return str(self.setting)

    @property
    def is_sequential(self) -> bool:
        return self.setting == "none"

    @property
    def is_autotuned(self) -> bool:
        return self.setting == "auto"

    def num_parallel_calls(self, *, on_host: int = 1, useful: int | None = None) -> int | None:
        """Return tf.data's argument of this name, for one of `on_host` processes that share cores.

        For `cores`, it is at most `useful`, if given.
        """
        cores = max(1, usable_cores() // on_host)
        words = {"none": None, "auto": AUTOTUNE, "cores": min(cores, useful or cores)}
        return words[self.setting] if isinstance(self.setting, str) else self.setting

    def threads(self, cores: int) -> int:
        """Return the number of threads; AUTOTUNE ends up with as many as there are cores."""
        if isinstance(self.setting, int):
            return self.setting
        return 1 if self.is_sequential else cores
