"""What build says about a configuration: its plan, and the input pipeline measured alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from throughline.results.base import ResultFile, Usage
from throughline.shared.errors import MissingInput


def name_machine(machine: Mapping[str, Any]) -> str:
    """What of a machine decides how fast it is, in words; not its name, which is another one in
    each container.
    """
    gpus = ", ".join(machine.get("gpus", ())) or "no GPU"
    return f"{machine.get('cores')} cores of {machine.get('cpu')} with {gpus}"


@dataclass(frozen=True, kw_only=True)
class InputThroughput:
    """Rates of an input pipeline that only a loop consumes; `input_examples_per_s_range` is from
    the slowest to the fastest of the warm passes, whose median is `input_examples_per_s`.
    """

    input_examples_per_s: float
    input_examples_per_s_range: tuple[float, float]
    cold_examples_per_s: float
    first_batch_s: float
    epoch_gap_s: float | None
    passes: int


@dataclass(frozen=True, kw_only=True)
class ProcessInput:
    """The input of one of the processes that train together: its slice of every batch, measured
    while the others measured theirs.
    """

    host: str
    throughput: InputThroughput


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
    """An epoch of batches of sequences: `tokens` without padding, how many of them the input alone
    delivers per second, the share of padding, and the number of distinct shapes of batches, each of
    which XLA compiles for.
    """

    tokens: int
    tokens_per_s: float
    padding_pct: float
    distinct_shapes: int


@dataclass(frozen=True, kw_only=True)
class BuildResult(ResultFile):
    """A configuration's input pipeline, measured alone and proven to deliver the right examples.

    `throughput` is that of all `processes`, who wait for the slowest: as many times its own.
    `examples_digests` are by split; `validation_examples` counts the validation split. Only
    approximate configurations have a `pixel_difference`, those whose draws can be checked
    `epoch_draws`, those that sample `class_frequencies`, and text `sequence_batches`.
    """

    FILE: ClassVar[str] = "input.json"
    STAGE: ClassVar[str] = "build@{name}"

    plan: str
    throughput: InputThroughput
    examples_digests: Mapping[str, ExamplesDigest]
    usage: Usage
    machine: Mapping[str, Any]
    validation_examples: int
    pixel_difference: Difference | None = None
    epoch_draws: EpochDraws | None = None
    class_frequencies: Mapping[str, float] | None = None
    sequence_batches: SequenceBatches | None = None
    processes: tuple[ProcessInput, ...] = ()

    def slice_of(self, index: int, *, count: int) -> InputThroughput:
        """What one of `count` processes has measured of its slices.

        Raises:
          MissingInput: another number of them has measured.
        """
        measured = max(1, len(self.processes))
        if measured != count:
            raise MissingInput(
                f"{self.FILE} was measured with {measured} processes, and now there are {count};"
                " run `dvc repro build`"
            )
        return self.processes[index].throughput if self.processes else self.throughput


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
