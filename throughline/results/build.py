"""What build says about a configuration: its plan, and that it delivers the right examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from throughline.results.base import ResultFile


@dataclass(frozen=True, kw_only=True)
class ExamplesDigest:
    """The digest, how many examples went into it, and their dtype and shape; a size of None differs
    between examples.
    """

    digest: str
    examples: int
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far the pixels of an approximate configuration are from the exact ones [levels of 256],
    over a sample of examples.
    """

    mean: float
    max: float
    examples: int


@dataclass(frozen=True, kw_only=True)
class EpochDraws:
    """How many examples an epoch has, how many different ones, and how often the most frequent one
    comes.
    """

    examples: int
    distinct: int
    most_often: int


@dataclass(frozen=True, kw_only=True)
class SequenceBatches:
    """An epoch of batches of sequences: `tokens` without padding, how many of them an example has
    on average, the share of padding, and the number of distinct shapes of batches, each of which
    XLA compiles for.
    """

    tokens: int
    tokens_per_example: float
    padding_pct: float
    distinct_shapes: int


@dataclass(frozen=True, kw_only=True)
class BuildResult(ResultFile):
    """A configuration's input pipeline, proven to deliver the right examples.

    `examples_digests` are by split; `validation_examples` counts the validation split. Only
    approximate configurations have a `pixel_difference`, those whose draws can be checked
    `epoch_draws`, those that sample `class_frequencies`, and text `sequence_batches`.
    """

    FILE: ClassVar[str] = "input.json"
    STAGE: ClassVar[str] = "build@{name}"

    plan: str
    examples_digests: Mapping[str, ExamplesDigest]
    validation_examples: int
    pixel_difference: Difference | None = None
    epoch_draws: EpochDraws | None = None
    class_frequencies: Mapping[str, float] | None = None
    sequence_batches: SequenceBatches | None = None


@dataclass(frozen=True, kw_only=True)
class PlanSummary(ResultFile):
    """Everything that was resolved: the configuration, its steps in order, the element and the
    sizes.
    """

    FILE: ClassVar[str] = "plan.json"
    STAGE: ClassVar[str] = "build@{name}"

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
        """What its model does besides the network, and how its sequences are batched: with the same
        layers the model alone is the same.
        """
        parts = (*self.device_ops, self.config["batch"])
        return tuple(json.dumps(each, sort_keys=True) for each in parts if each is not None)
