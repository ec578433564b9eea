"""The result of the build stage: a configuration's plan, and proof that its examples are right."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from throughline.results.base import ResultFile


@dataclass(frozen=True, kw_only=True)
class ExamplesDigest:
    """A digest of examples; a size of None in `shape` varies between examples."""

    digest: str
    examples: int
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The differences between approximate and exact pixels in a sample [levels of 256]."""

    mean: float
    max: float
    examples: int


@dataclass(frozen=True, kw_only=True)
class EpochDraws:
    """The draws and the distinct examples of an epoch, and the most draws of one example."""

    examples: int
    distinct: int
    most_often: int


@dataclass(frozen=True, kw_only=True)
class SequenceBatches:
    """Batches of sequences in an epoch. `tokens` exclude padding; XLA compiles for each shape."""

    tokens: int
    tokens_per_example: float
    padding_pct: float
    distinct_shapes: int


@dataclass(frozen=True, kw_only=True)
class BuildResult(ResultFile, file="input.json", stage="build@{name}"):
    """A configuration's input pipeline, proven to deliver the right examples.

    `pixel_difference` is set for approximate pixels, `sequence_batches` for texts, `epoch_draws` if
    the draws can be checked, and `class_frequencies` if classes are sampled, too.
    """

    plan: str
    examples_digests: Mapping[str, ExamplesDigest]
    validation_examples: int
    pixel_difference: Difference | None = None
    epoch_draws: EpochDraws | None = None
    class_frequencies: Mapping[str, float] | None = None
    sequence_batches: SequenceBatches | None = None


@dataclass(frozen=True, kw_only=True)
class PlanSummary(ResultFile, file="plan.json", stage="build@{name}"):
    """A resolved configuration: its steps in order, the element and the sizes."""

    plan: str
    steps: Sequence[Mapping[str, str | None]]
    autotunes: bool
    device_ops: Sequence[Mapping[str, Any]]
    element: Mapping[str, Any]
    examples: int
    steps_per_epoch: int
    batch_size: int
    batch_mib: float
    pipeline: str
    config: Mapping[str, Any]
    data_digest: str

    @property
    def model_layers(self) -> tuple[str, ...]:
        """Settings that decide the speed without input: the ops on the device, and `batch`."""
        parts = (*self.device_ops, self.config["batch"])
        return tuple(json.dumps(each, sort_keys=True) for each in parts if each is not None)
