"""The facts about a configuration that the rules examine."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from throughline.plan.plan import Plan
from throughline.plan.steps import (
    Batch,
    BucketBatch,
    Cache,
    Gather,
    Map,
    Parallelism,
    Read,
    ReadIndexedShards,
    Shuffle,
    Step,
)
from throughline.results.profiling import Breakdown
from throughline.settings import PipelineConfig

WORTH_PCT = 5.0  # share of a step; less is not worth a change


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about a configuration that has been traced. Sizes in MiB."""

    config: PipelineConfig
    plan: Plan
    breakdown: Breakdown
    cores: int
    batch_mib: float
    stored_mib: float  # the preprocessed training split
    available_memory_mib: float
    shard_count: int
    shard_mib: float  # the mean size
    examples: float  # per epoch
    examples_per_step: float  # the mean, if it depends on lengths
    gpu_utilization_pct: float | None = None  # over the whole training
    stored_fraction: float = 1.0  # fraction of the snapshot's rows
    steps_per_execution: int = 1  # in training; traces have single steps
    padding_pct: float | None = None  # over an epoch of sequences
    padding_pct_in_buckets: float | None = None  # with `batch: {pad_to: auto}`

    @property
    def wait_pct(self) -> float | None:
        """The share of a traced step that waits for input; None if the trace does not show it."""
        share = self._share_pct(self.breakdown.wait_ms_mean)
        return share and min(100.0, share)

    @property
    def gpu_busy_pct(self) -> float | None:
        """The share of a traced step in which the GPU was busy; None without a GPU."""
        return self._share_pct(self.breakdown.gpu_busy_ms)

    def _share_pct(self, milliseconds: float | None) -> float | None:
        step_ms = self.breakdown.traced_step_ms_mean
        return 100 * milliseconds / step_ms if step_ms and milliseconds is not None else None

    @property
    def map_parallelism(self) -> Parallelism:
        return Parallelism(self.config.map.parallel)

    def worthwhile(self, milliseconds: float | None) -> float:
        """Return `milliseconds` of a step if they are at least `WORTH_PCT` of the step, else 0."""
        enough = (self._share_pct(milliseconds) or 0.0) >= WORTH_PCT
        return milliseconds if milliseconds and enough else 0.0

    @property
    def warm_steps(self) -> Sequence[Step]:
        """The steps after the last cache, which still run once caches are full."""
        steps = self.plan.steps
        caches = [number for number, step in enumerate(steps, 1) if isinstance(step, Cache)]
        return steps[max(caches, default=0) :]

    @property
    def shuffled_mib(self) -> float:
        """The size of an example when it is shuffled: its record, or its stored form after a map.

        The size is 0 for windows, for a cache in memory, which shares its examples with the shuffle
        buffer, and for file names, which are small.
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

    def per_example_map(self) -> Map | None:
        """Return the warm map that is called for single examples; None if there is none."""
        before = itertools.takewhile(lambda step: not _delivers_batches(step), self.plan.steps)
        maps = (step for step in before if isinstance(step, Map))
        return next((step for step in maps if step in self.warm_steps), None)

    def work_ms(self, *kinds: type[Step]) -> float:
        """Return the traced work of warm steps of these kinds per train step, on all cores [ms]."""
        names = {step.trace_name for step in self.warm_steps if isinstance(step, kinds)}
        work = sum(item.self_ms for item in self.breakdown.iterators if item.step in names)
        return work / max(1, self.breakdown.steps)


def _delivers_batches(step: Step) -> bool:
    whole = isinstance(step, ReadIndexedShards) and step.whole_batches
    return isinstance(step, Gather | Batch | BucketBatch) or whole
