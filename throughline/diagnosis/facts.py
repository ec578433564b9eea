"""The facts about a configuration that the rules look at."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from throughline.plan.parallelism import Parallelism
from throughline.plan.plan import Plan
from throughline.plan.steps import (
    Batch,
    BucketBatch,
    Cache,
    Gather,
    Map,
    Read,
    ReadIndexedShards,
    Shuffle,
    Step,
)
from throughline.results.profiling import Breakdown
from throughline.settings import PipelineConfig

WORTH_PCT = 5.0  # of a step; less is not worth a change


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that is known about one configuration when its trace is there. Sizes in MiB."""

    config: PipelineConfig
    plan: Plan
    breakdown: Breakdown
    cores: int
    batch_mib: float
    stored_mib: float  # the training split, preprocessed
    available_memory_mib: float
    shard_count: int
    shard_mib: float  # a shard on average
    examples: float  # of an epoch
    examples_per_step: float  # on average where that depends on lengths
    gpu_utilization_pct: float | None = None  # of the whole training
    stored_fraction: float = 1.0  # of the snapshot's rows
    steps_per_execution: int = 1  # of the training; those that are traced are single ones
    padding_pct: float | None = None  # of an epoch of sequences
    padding_pct_in_buckets: float | None = None  # with `batch: {pad_to: auto}`

    @property
    def step_ms(self) -> float | None:
        """A traced step."""
        return self.breakdown.traced_step_ms_mean

    @property
    def wait_pct(self) -> float | None:
        """The part of a traced step that waits for input; None where the trace shows none."""
        wait_ms = self.breakdown.wait_ms_mean
        if wait_ms is None or not self.step_ms:
            return None
        return min(100.0, 100 * wait_ms / self.step_ms)

    @property
    def gpu_busy_pct(self) -> float | None:
        """Share of a traced step in which the GPU was at work; None without a GPU."""
        busy_ms = self.breakdown.gpu_busy_ms
        return None if busy_ms is None or not self.step_ms else 100 * busy_ms / self.step_ms

    @property
    def map_parallelism(self) -> Parallelism:
        """Parallel calls of the maps."""
        return Parallelism(self.config.map.parallel)

    def is_worthwhile(self, milliseconds: float) -> bool:
        """Whether work of this duration is a large enough share of a step to be worth a change."""
        return bool(self.step_ms) and 100 * milliseconds / self.step_ms >= WORTH_PCT

    @property
    def warm_steps(self) -> Sequence[Step]:
        """The steps of the plan that work in an epoch whose caches are full: those after the last
        of them.
        """
        steps = self.plan.steps
        caches = [number for number, step in enumerate(steps, 1) if isinstance(step, Cache)]
        return steps[max(caches, default=0) :]

    @property
    def shuffled_mib(self) -> float:
        """An example where it is shuffled: its record before the first map, else as it is stored. A
        cache in memory shares its examples with the buffer, and names of files are small.
        """
        read, cache = self.plan.steps[0], self.config.cache
        if self.plan.window or (cache and cache.where == "memory"):
            return 0.0
        steps = itertools.takewhile(lambda step: not isinstance(step, Shuffle), self.plan.steps)
        if any(isinstance(step, Map | Cache) for step in steps):
            return self.stored_mib / self.examples
        if isinstance(read, Read) and read.source == "files":
            return 0.0
        return self.shard_mib * self.shard_count / self.examples

    @property
    def map_steps(self) -> list[Map]:
        """The maps among them."""
        return [step for step in self.warm_steps if isinstance(step, Map)]

    def per_example_map(self) -> Map | None:
        """The one of them that is called for single examples, if any."""
        before = itertools.takewhile(lambda step: not _delivers_batches(step), self.plan.steps)
        single = [step for step in before if isinstance(step, Map)]
        return next((step for step in self.map_steps if step in single), None)

    def work_ms(self, *kinds: type[Step]) -> float:
        """Traced work, in a train step, of the steps of these kinds on all cores together [ms]."""
        names = {step.trace_name for step in self.warm_steps if isinstance(step, kinds)}
        work = sum(item.self_ms for item in self.breakdown.iterators if item.step in names)
        return work / max(1, self.breakdown.steps)


def _delivers_batches(step: Step) -> bool:
    """Whether whole batches, not single examples, come out of a step, whatever goes into it."""
    whole = isinstance(step, ReadIndexedShards) and step.whole_batches
    return isinstance(step, Gather | Batch | BucketBatch) or whole
