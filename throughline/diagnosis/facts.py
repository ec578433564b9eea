"""What is known about a configuration when it is judged."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from throughline.diagnosis.cost_model import Costs, HostLoad, delivers_batches
from throughline.measurement.verdict import CrossCheck, Stall
from throughline.plan.ops import Op
from throughline.plan.parallelism import Parallelism
from throughline.plan.plan import Plan
from throughline.plan.steps import Cache, Map, Read, Shuffle, Step
from throughline.results.profiling import Breakdown
from throughline.settings import PipelineConfig

WORTH_PCT = 5.0  # of a step; less is not worth a change


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that is known about one configuration when it is judged. Times in ms per step,
    sizes in MiB.
    """

    config: PipelineConfig
    plan: Plan
    breakdown: Breakdown
    costs: Costs
    load: HostLoad | None  # None: the cost model does not know this kind of plan
    cores: int
    on_accelerator: bool
    model_step_ms: float
    train_step_ms: float
    wait_pct: float | None  # of the traced steps; None: the trace shows no wait
    stall: Stall
    batch_mib: float
    stored_mib: float  # the training split, preprocessed
    available_memory_mib: float
    shard_count: int
    shard_mib: float  # a shard on average
    epoch_gap_ms: float | None  # of the input alone
    epoch_ms: float
    cold_examples_per_s: float
    input_examples_per_s: float
    examples_per_step: float  # on average where that depends on lengths
    cross_check: CrossCheck | None = None
    gpu_utilization_pct: float | None = None
    stored_fraction: float = 1.0  # of the snapshot's rows
    steps_per_execution: int = 1  # of the training; those that are timed are single ones
    padding_pct: float | None = None  # of an epoch of sequences
    padding_pct_in_buckets: float | None = None  # with `batch: {pad_to: auto}`

    @property
    def stall_pct(self) -> float:
        """The measured stall."""
        return self.stall.pct

    @property
    def wait_or_stall_pct(self) -> float:
        """The wait for input; where the trace does not show it, the stall."""
        return self.stall_pct if self.wait_pct is None else self.wait_pct

    @property
    def gpu_busy_pct(self) -> float | None:
        """Share of a traced step in which the GPU was at work; None without a GPU."""
        busy_ms, step_ms = self.breakdown.gpu_busy_ms, self.breakdown.traced_step_ms_mean
        return None if busy_ms is None or not step_ms else 100 * busy_ms / step_ms

    @property
    def map_parallelism(self) -> Parallelism:
        """Parallel calls of the maps."""
        return Parallelism(self.config.map.parallel)

    def is_worthwhile(self, milliseconds: float) -> bool:
        """Whether work of this duration is a large enough share of a step to be worth a change."""
        return 100 * milliseconds / self.train_step_ms >= WORTH_PCT

    @property
    def warm_steps(self) -> Sequence[Step]:
        """The steps of the plan that work in an epoch whose caches are full: those after the last
        of them.
        """
        steps = self.plan.steps
        caches = [number for number, step in enumerate(steps, 1) if isinstance(step, Cache)]
        return steps[max(caches, default=0) :]

    @property
    def examples(self) -> float:
        """Examples of an epoch, as many as its steps have at most."""
        return self.epoch_ms / self.train_step_ms * self.examples_per_step

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
        before = itertools.takewhile(lambda step: not delivers_batches(step), self.plan.steps)
        single = [step for step in before if isinstance(step, Map)]
        return next((step for step in self.map_steps if step in single), None)

    def work_ms(self, op: Op, *, batched: bool) -> float:
        """Work of an op in a step, on one core."""
        cost = self.costs.ops.get(op.name)
        if cost is None:
            return 0.0
        return (
            self.examples_per_step
            * (cost.batch_us if batched and cost.batch_us is not None else cost.example_us)
            / 1e3
        )

    def decoding_ms(self) -> float:
        """Work, in a step, of making examples that a snapshot does not store; 0 where it stores
        all, or none is read.
        """
        gather = self.plan.gather
        if gather is None:
            return 0.0
        return (1 - gather.fraction) * sum(
            self.work_ms(op, batched=op.takes != "example") for op in gather.decoding
        )

    def repeated_ms(self) -> float:
        """Work of the deterministic ops, which give the same in every epoch, with the calls that
        they cause.
        """
        per_example_map = self.per_example_map()
        ops = [
            op for step in self.map_steps for op in step.ops if not op.random and op.name != "load"
        ]
        calls = self.examples_per_step * self.costs.call_us / 1e3 if per_example_map else 0.0
        return (
            calls
            + self.decoding_ms()
            + sum(
                self.work_ms(op, batched=per_example_map is None or op not in per_example_map.ops)
                for op in ops
            )
        )
