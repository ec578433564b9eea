"""Accelerators to plan for, with their times of a train step from published benchmarks."""

from dataclasses import dataclass

from throughline.shared.errors import UnknownModel, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A published benchmark: a train step on `batch_size` examples of `shape` takes `step_s`."""

    model: str
    batch_size: int
    step_s: float
    source: str
    shape: tuple[int, ...] = (224, 224, 3)

    @property
    def examples_per_s(self) -> float:
        return self.batch_size / self.step_s

    def step_ms(self, batch_size: int) -> float:
        """Return the time of a step on `batch_size` examples [ms], in proportion to the source."""
        return 1e3 * self.step_s * batch_size / self.batch_size


_SOURCE = (
    "DLIO, on which MLPerf Storage is built: configs/workload/resnet50_{}.yaml of"
    " argonne-lcf/dlio_benchmark"
)
_RESNET50 = {"h100": (400, 0.224), "a100": (400, 0.435), "v100": (64, 0.195)}
ACCELERATORS = {
    f"{gpu}-resnet50": Accelerator(
        model="ResNet-50", batch_size=batch_size, step_s=step_s, source=_SOURCE.format(gpu)
    )
    for gpu, (batch_size, step_s) in _RESNET50.items()
}


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator of this name; raises UnknownModel if there is none."""
    if name not in ACCELERATORS:
        raise UnknownModel(
            f"--accelerator: {name} is unknown; {did_you_mean(name, list(ACCELERATORS))}"
        )
    return ACCELERATORS[name]
