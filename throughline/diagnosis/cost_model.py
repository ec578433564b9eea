"""A cost model of a train step: from what the parts cost on one core to how long a step takes with
any configuration.

Work on the training's own thread comes next to that part of a step in which its call has returned
and the GPU still works, and adds to the rest, which without a GPU is all; a prefetch or a parallel
map lets everything upstream of it run concurrently with the step, on one thread or on several. A
step then takes as long as the slowest of them, and where the model computes on the same cores, as
long as what is left to it. It knows nothing of memory bandwidth, clocks or scheduling: one factor,
found from the step that was measured, stands for them. Source: Kuchnik et al., "Plumber" (MLSys
2022), for rates per core and parallelism as the model of a tf.data pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch

from throughline.plan.ops import Op
from throughline.plan.parallelism import Parallelism
from throughline.plan.plan import Plan
from throughline.plan.steps import (
    Batch,
    BucketBatch,
    Cache,
    Gather,
    Map,
    Prefetch,
    Read,
    ReadIndexedShards,
    SampleByClass,
    Service,
    Shuffle,
    Step,
    TokenWindow,
    Window,
)

HALVINGS = 50
# cores that a model loses to one that works concurrently: the threads of a kernel wait for the
# slowest. Measured on 2 cores
CONTENTION = 1.5
MIN_CALIBRATION, MAX_CALIBRATION = 0.8, 3.0
SHUFFLE_US = 0.3  # drawing an example from a shuffle buffer
# Delivering an element that was kept.
CACHED_US = {"memory": 0.6, "disk": 2.0, "tf_snapshot": 4.0, "save_load": 4.0}


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """Work of an op on one core [µs per example]: called with one example, and with a batch (None:
    it takes no batches).
    """

    example_us: float
    batch_us: float | None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Work on one core [µs]: of any map call; per example of stacking into a batch, of reading each
    source, of each op.
    """

    call_us: float
    stack_us: float
    read_us: Mapping[str, float]
    ops: Mapping[str, OpCost]


@dataclass(frozen=True, kw_only=True)
class ModelStepCost:
    """The model's step on a batch that is ready: how long it takes, and its work on all cores [ms].

    `on_accelerator` it needs none of the cores. Its call holds the thread that trains for `held_ms`
    of it, or for all of it; then the next batch can be taken.
    """

    step_ms: float
    core_ms: float
    on_accelerator: bool
    held_ms: float = math.inf

    def scale(self, factor: float) -> ModelStepCost:
        """Multiply its work by a factor."""
        return replace(
            self,
            step_ms=factor * self.step_ms,
            core_ms=factor * self.core_ms,
            held_ms=factor * self.held_ms,
        )


@dataclass(frozen=True, kw_only=True)
class OverlappedWork:
    """Work [ms per step, one core] that runs concurrently with the training, on at most `threads`
    threads.
    """

    work_ms: float
    threads: int


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """Work of a plan on the training's own thread, and work that runs concurrently with it, on at
    most `pool` threads; None: as many as there are cores.
    """

    serial_ms: float = 0.0
    overlapped: tuple[OverlappedWork, ...] = field(default=())
    pool: int | None = None

    @property
    def work_ms(self) -> float:
        """All the input's work in a step, on one core."""
        return self.serial_ms + sum(work.work_ms for work in self.overlapped)

    def add_work(self, work_ms: float, threads: int) -> HostLoad:
        """Add work: to the thread that is there or, with several threads, next to it."""
        if threads == 1:
            return replace(self, serial_ms=self.serial_ms + work_ms)
        # The thread that feeds the parallel calls runs concurrently, too.
        return self.overlap(1).append(OverlappedWork(work_ms=work_ms, threads=threads))

    def scale(self, factor: float) -> HostLoad:
        """Multiply all work by a factor."""
        overlapped = tuple(
            OverlappedWork(work_ms=factor * work.work_ms, threads=work.threads)
            for work in self.overlapped
        )
        return replace(self, serial_ms=factor * self.serial_ms, overlapped=overlapped)

    def overlap(self, threads: int) -> HostLoad:
        """Overlap the serial part with the step."""
        own = OverlappedWork(work_ms=self.serial_ms, threads=threads)
        return replace(self, serial_ms=0.0, overlapped=(*self.overlapped, own))

    def append(self, work: OverlappedWork) -> HostLoad:
        """Add work that runs concurrently."""
        return replace(self, overlapped=(*self.overlapped, work))


def predict_step_ms(load: HostLoad, model_step: ModelStepCost, cores: int) -> float:
    """How long a step takes [ms].

    Where the model computes on the host, its step has a part that one core does and a part that all
    free cores share (Amdahl), and what runs concurrently leaves it fewer of them.
    """
    overlapped = sum(work.work_ms for work in load.overlapped)
    pool = min(load.pool or cores, cores)
    slowest = max(
        [overlapped / pool, *(work.work_ms / min(work.threads, pool) for work in load.overlapped)]
    )
    if model_step.on_accelerator:
        own = min(model_step.held_ms, model_step.step_ms) + load.serial_ms
        return max(model_step.step_ms, own, slowest, load.work_ms / cores)
    work = min(max(model_step.core_ms, model_step.step_ms), cores * model_step.step_ms)
    shared = (work - model_step.step_ms) * cores / (cores - 1) if cores > 1 else 0.0
    least, most = (
        max(model_step.step_ms + load.serial_ms, slowest),
        model_step.step_ms + work + load.work_ms,
    )
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        free = max(1e-6, cores - CONTENTION * overlapped / middle)
        needed = (work - shared) / min(1.0, free) + shared / free + load.serial_ms
        least, most = (middle, most) if needed > middle else (least, middle)
    return most


def calibration_factor(
    load: HostLoad, model_step: ModelStepCost, cores: int, *, measured_ms: float
) -> float:
    """How much more the input's work costs within a training than alone, so that the model gives
    the step that was measured.

    Caches, memory and clocks are shared there; within sane bounds, since where input hardly matters
    any factor would do.
    """
    least, most = MIN_CALIBRATION, MAX_CALIBRATION
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (
            (middle, most)
            if predict_step_ms(load.scale(middle), model_step, cores) < measured_ms
            else (least, middle)
        )
    return (least + most) / 2


def estimate_load(
    plan: Plan, costs: Costs, *, cores: int, examples_per_step: float | None = None
) -> HostLoad | None:
    """What a plan costs the host, in an epoch whose caches are full; None where this model has no
    cost for one of its steps. A batch has `batch_size` examples, unless it depends on lengths.
    """
    examples = examples_per_step or plan.spec.batch_size
    context = CostContext(costs=costs, batch_size=examples, cores=cores, batched=False)
    load: HostLoad | None = HostLoad(pool=plan.threads if isinstance(plan.threads, int) else None)
    for step in plan.steps:
        load = add_step_cost(step, load, context)
        if load is None:
            return None
        context = replace(context, batched=context.batched or delivers_batches(step))
    return load


def delivers_batches(step: Step) -> bool:
    """Whether whole batches, not single examples, come out of a step, whatever goes into it."""
    return isinstance(step, Gather | Batch | BucketBatch) or (
        isinstance(step, ReadIndexedShards) and step.whole_batches
    )


@dataclass(frozen=True, kw_only=True)
class CostContext:
    """Everything besides a step on which its work depends: costs, examples per batch, cores, and
    whether batches are made already.
    """

    costs: Costs
    batch_size: float
    cores: int
    batched: bool

    def threads(self, parallel: Parallelism) -> int:
        """On how many cores parallel calls work at most."""
        return min(parallel.threads(self.cores), self.cores)

    def ops_us(self, ops: Sequence[Op], *, batched: bool) -> float:
        """Work of ops per example."""
        known = [cost for op in ops if (cost := self.costs.ops.get(op.name))]
        return sum(
            cost.batch_us if batched and cost.batch_us is not None else cost.example_us
            for cost in known
        )

    def decoding_us(self, gather: Gather) -> float:
        """Work of making an example that the snapshot does not store of its record."""
        ops = (*gather.decoding, *gather.ops[: gather.example_op_count])
        one_by_one = any(op.takes == "example" for op in ops)
        return one_by_one * self.costs.call_us + sum(
            self.ops_us((op,), batched=op.takes != "example") for op in ops
        )


@singledispatch
def add_step_cost(step: object, load: HostLoad, context: CostContext) -> HostLoad | None:
    """Add what a step of a plan costs the host; None where that is not known."""
    raise NotImplementedError(f"no cost for the step {type(step).__name__}")


@add_step_cost.register
def _(step: Gather, load: HostLoad, context: CostContext) -> HostLoad | None:
    stored_us, record_us = (
        context.costs.read_us.get(one) for one in ("snapshot", "indexed_shards")
    )
    if step.on == "device" or (step.fraction > 0 and stored_us is None):
        return None
    row_us = step.fraction * (stored_us or 0.0)
    if step.decoding:
        if record_us is None:
            return None
        row_us += (1 - step.fraction) * (record_us + context.decoding_us(step))
    work = context.batch_size * (
        row_us + context.ops_us(step.ops[step.example_op_count :], batched=True)
    )
    return load.add_work((work + context.costs.call_us) / 1e3, context.threads(step.parallel))


@add_step_cost.register
def _(step: Read, load: HostLoad, context: CostContext) -> HostLoad | None:
    if step.source not in context.costs.read_us:
        return None
    threads = context.threads(step.parallel)
    if step.interleave:
        threads = min(step.interleave.cycle_length, threads)
    return load.add_work(context.batch_size * context.costs.read_us[step.source] / 1e3, threads)


@add_step_cost.register
def _(step: ReadIndexedShards, load: HostLoad, context: CostContext) -> HostLoad | None:
    """Batches of records, read whole, and perhaps taken apart."""
    read_us = context.costs.read_us.get("indexed_shards")
    if read_us is None:
        return None
    threads = context.threads(step.parallel)
    return load.add_work(context.batch_size * read_us / 1e3, threads)


@add_step_cost.register
def _(step: Map, load: HostLoad, context: CostContext) -> HostLoad:
    calls = 1 if context.batched else context.batch_size
    work = (
        context.batch_size * context.ops_us(step.ops, batched=context.batched)
        + calls * context.costs.call_us
    )
    return load.add_work(work / 1e3, context.threads(step.parallel))


@add_step_cost.register
def _(
    step: Window | TokenWindow | SampleByClass | Service, load: HostLoad, context: CostContext
) -> None:
    """Not measured."""


@add_step_cost.register
def _(step: Cache, load: HostLoad, context: CostContext) -> HostLoad:
    return HostLoad(serial_ms=context.batch_size * CACHED_US[step.where] / 1e3, pool=load.pool)


@add_step_cost.register
def _(step: Shuffle, load: HostLoad, context: CostContext) -> HostLoad:
    return load.add_work(context.batch_size * SHUFFLE_US / 1e3, 1)


@add_step_cost.register
def _(step: Batch | BucketBatch, load: HostLoad, context: CostContext) -> HostLoad:
    return load.add_work(context.batch_size * context.costs.stack_us / 1e3, 1)


@add_step_cost.register
def _(step: Prefetch, load: HostLoad, context: CostContext) -> HostLoad:
    return load.overlap(1)
