"""What can be wrong with an input pipeline, as data: when a rule holds, what it blames, and the
exact change that fixes it.

A rule's `detect` returns the evidence, with its numbers, or None. Its change is merged into the
configuration (or over other sections of params.yaml); what it would gain is predicted elsewhere,
from the changed plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tasks.diagnosis.facts import WORTH_PCT, Facts
from tasks.pipelines.steps import Gather, Map, Read, Shuffle

MMAP_MIB = 32  # glibc maps larger blocks again each time, unless configured otherwise


class Effort(IntEnum):
    """What a change asks for: a setting, the snapshot on disk (which the DAG makes once), memory in
    every run, or other results.
    """

    SETTING = 0
    DISK = 1
    MEMORY = 2
    RESULTS = 3


@dataclass(frozen=True, kw_only=True)
class Change:
    """Values merged into the configuration, values of other sections by their dotted keys, and how
    much cheaper it makes an op.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    # Ms per step, where it is known without the model.
    saved_ms: Callable[[Facts], float] | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that can be wrong. `key` is the field that is to blame, `cause` why that costs
    time.
    """

    name: str
    key: str
    cause: str
    detect: Callable[[Facts], str | None]
    change: Change
    effort: Effort = Effort.SETTING
    advice: str = "nothing to change"  # where the change is none of params.yaml


SNAPSHOT = Change(
    config={
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
        "vectorize": False,
        "cache": None,
        "interleave": None,
        "service": None,
        "decode": {},
    }
)


def _no_prefetch(facts: Facts) -> str | None:
    if facts.config.prefetch != "none" or facts.plan.on_device:
        return None
    serial = facts.load.serial_ms if facts.load else facts.breakdown.wait_ms_mean or 0.0
    return (
        f"{serial:.2f} ms of input run on the training's own thread in each step"
        if facts.worth(serial)
        else None
    )


def _sequential_map(facts: Facts) -> str | None:
    if facts.config.map.parallel != "none" or facts.cores == 1:
        return None
    per_example_map = facts.per_example()
    steps = [step for step in facts.plan.steps if isinstance(step, Map | Gather)]
    work = sum(
        facts.work_ms(op, batched=step is not per_example_map) for step in steps for op in step.ops
    )
    calls = facts.batch_size * facts.costs.call_us / 1e3 if per_example_map else 0.0
    return (
        f"its ops take {work:.2f} ms of a step, one call after another, on one of {facts.cores}"
        " cores"
        if facts.worth(work) and work > calls
        else None
    )


def _costly_calls(facts: Facts) -> str | None:
    per_example_map = facts.per_example()
    if (
        facts.config.vectorize
        or per_example_map is None
        or all(op.takes == "example" for op in per_example_map.ops)
    ):
        return None
    calls = facts.batch_size * facts.costs.call_us / 1e3
    work = sum(facts.work_ms(op, batched=False) for op in per_example_map.ops)
    how = (
        f"in parallel ({facts.config.map.parallel}), "
        if facts.config.map.parallel != "none"
        else ""
    )
    return (
        f"{facts.batch_size} calls per step, {how}take {facts.costs.call_us:.0f} µs each,"
        f" {calls:.2f} ms, before any work of the ops ({work:.2f} ms)"
        if facts.worth(calls) and calls > work / 2
        else None
    )


def _sequential_read(facts: Facts) -> str | None:
    step = facts.plan.steps[0]
    if (
        not isinstance(step, Read)
        or step.source not in ("shards", "gzip_shards")
        or facts.shard_count == 1
    ):
        return None
    if step.interleave and step.interleave.parallel != "none":
        return None
    work = facts.batch_size * facts.costs.read_us.get(step.source, 0.0) / 1e3
    return (
        f"reading takes {work:.2f} ms of a step, from one file at a time"
        if facts.worth(work)
        else None
    )


def _repeated_work(facts: Facts) -> str | None:
    if facts.plan.reads_snapshot or facts.plan.caches:
        return None
    work = facts.repeated_ms()
    return (
        f"deterministic work takes {work:.2f} core-ms of every step and gives the same in every"
        " epoch"
        if facts.worth(work)
        else None
    )


def _no_cache(facts: Facts) -> str | None:
    repeated = _repeated_work(facts)
    fits = facts.stored_mib < facts.memory_mib / 2 and facts.plan.service is None
    return (
        f"{repeated}; its results take {facts.stored_mib:,.0f} MiB" if repeated and fits else None
    )


def _decode_bound(facts: Facts) -> str | None:
    decode = next(
        (
            op
            for step in facts.map_steps
            for op in step.ops
            if op.name == "decode" and hasattr(op, "dct")
        ),
        None,
    )
    resized = any(op.name == "resize" for step in facts.map_steps for op in step.ops)
    if decode is None or not resized or facts.config.decode.scale > 1 or facts.plan.caches:
        return None
    work = facts.work_ms(decode, batched=False)
    return (
        f"decoding takes {work:.2f} core-ms of a step" if facts.worth(work / facts.cores) else None
    )


def _host_widening(facts: Facts) -> str | None:
    if facts.config.postprocess_on == "device" or facts.plan.device_ops:
        return None
    steps = [step for step in facts.plan.steps if isinstance(step, Map | Gather)]
    per_example_map = facts.per_example()
    casts = [(op, step) for step in steps for op in step.ops if op.device and not op.random]
    work = sum(facts.work_ms(op, batched=step is not per_example_map) for op, step in casts)
    names = ", ".join(op.name for op, _ in casts)
    evidence = (
        f"{names} on the host takes {work:.2f} core-ms of a step and makes a batch"
        f" {facts.batch_mib:,.1f} MiB"
    )
    return (
        evidence
        if casts
        and (
            facts.worth(work)
            or (facts.accelerator and facts.worth(facts.breakdown.gpu_copy_ms or 0.0))
        )
        else None
    )


def _compressed_reads(facts: Facts) -> str | None:
    if facts.config.read != "gzip_shards" or facts.plan.caches:
        return None
    packed, plain = (
        facts.batch_size * facts.costs.read_us.get(source, 0.0) / 1e3
        for source in ("gzip_shards", "shards")
    )
    return (
        f"reading takes {packed:.2f} ms of a step, {plain:.2f} ms from plain shards"
        if facts.worth(packed - plain)
        else None
    )


def _epoch_gap(facts: Facts) -> str | None:
    if (
        facts.epoch_gap_ms is None
        or facts.plan.reads_snapshot
        or facts.plan.service
        or 100 * facts.epoch_gap_ms / facts.epoch_ms < WORTH_PCT
    ):
        return None
    return (
        f"{facts.epoch_gap_ms:.0f} ms pass between two epochs of {facts.epoch_ms:,.0f} ms before"
        " the first batch comes"
    )


def _variable_cost(facts: Facts) -> str | None:
    if not facts.config.deterministic or facts.config.map.parallel == "none":
        return None
    maps = [
        item
        for item in facts.breakdown.iterators
        if "Map" in item.path.rpartition("::")[2] and item.named and item.critical_pct > WORTH_PCT
    ]
    call = next(
        (item for item in maps if item.call_ms_p95 > 3 * item.call_ms_p50 and item.call_ms_p95 > 1),
        None,
    )
    return (
        f"a call of {call.step} takes {call.call_ms_p50:.1f} ms (median) to {call.call_ms_p95:.1f}"
        " ms (p95): stragglers block in-order delivery"
        if call
        else None
    )


def _buffer_memory(facts: Facts) -> str | None:
    mixes = [
        step
        for step in facts.plan.steps
        if isinstance(step, Shuffle) and isinstance(step.size, int)
    ]
    # This epoch's, and that of the next one, which is opened ahead.
    held = 2 if facts.config.prefetch != "none" else 1
    used = (
        held
        * max((int(step.size) for step in mixes), default=0)
        * facts.batch_mib
        / facts.batch_size
    )
    return (
        f"what is shuffled takes up to {used:,.0f} MiB of memory"
        if used > facts.memory_mib / 10
        else None
    )


def _few_shards(facts: Facts) -> str | None:
    turns = facts.config.interleave
    if facts.plan.reads_snapshot or turns is None or facts.shard_count >= turns.cycle_length:
        return None
    return f"{facts.shard_count} shards for {turns.cycle_length} readers"


def _small_shards(facts: Facts) -> str | None:
    if facts.plan.reads_snapshot or facts.shard_mib >= 1 or facts.shard_count <= 64:  # noqa: PLR2004 - few shards are opened in no time
        return None
    return (
        f"{facts.shard_count} shards of {facts.shard_mib:.2f} MiB: opening files takes longer than"
        " reading them"
    )


def _copy_to_device(facts: Facts) -> str | None:
    copied = facts.breakdown.gpu_copy_ms
    return (
        f"{copied:.2f} ms of a step copy {facts.batch_mib:,.1f} MiB to the GPU"
        if copied is not None and facts.worth(copied)
        else None
    )


def _allocator(facts: Facts) -> str | None:
    if facts.malloc_tuned or facts.batch_mib <= MMAP_MIB:
        return None
    return (
        f"a batch takes {facts.batch_mib:,.0f} MiB, above malloc's {MMAP_MIB} MiB: it is mapped,"
        " page-faulted and unmapped for every batch"
    )


def _cold_start(facts: Facts) -> str | None:
    slower = facts.cold_examples_per_s < 0.7 * facts.input_examples_per_s
    return (
        f"{facts.cold_examples_per_s:,.0f} examples/s in the first pass,"
        f" {facts.input_examples_per_s:,.0f} later; a longer training does not feel it"
        if slower and facts.wait_pct < WORTH_PCT
        else None
    )


def _service_on_one_host(facts: Facts) -> str | None:
    service = facts.config.service
    return (
        f"its workers share this host's {facts.cores} cores and add none"
        if service and service.on_this_host
        else None
    )


def _slow_service(facts: Facts) -> str | None:
    service, wait_ms = facts.config.service, facts.breakdown.wait_ms_mean or 0.0
    if service is None or service.on_this_host or not facts.worth(wait_ms):
        return None
    return f"{wait_ms:.2f} ms of each step wait for batches from {service.address}"


def _too_parallel(facts: Facts) -> str | None:
    asked = facts.config.map.parallel
    return (
        f"{asked} calls at once on {facts.cores} cores"
        if isinstance(asked, int) and asked > 2 * facts.cores
        else None
    )


def _few_threads(facts: Facts) -> str | None:
    threads = facts.config.threads
    return (
        f"{threads} threads for {facts.cores} cores"
        if isinstance(threads, int) and threads < facts.cores and facts.plan.steps
        else None
    )


def _gpu_idle(facts: Facts) -> str | None:
    used = facts.gpu_utilization_pct
    if used is None or used >= 80 or facts.wait_pct >= WORTH_PCT:  # noqa: PLR2004 - the usual target
        return None
    return (
        f"the GPU is busy {used:.0f} % of the time, and it is not the input that it waits for"
        f" ({facts.wait_pct:.1f} % of a step)"
    )


RULES = (
    Rule(
        name="no_prefetch",
        key="prefetch",
        cause="nothing is prepared while the model computes",
        detect=_no_prefetch,
        change=Change(config={"prefetch": 2}),
    ),
    Rule(
        name="sequential_map",
        key="map.parallel",
        cause="one call runs at a time",
        detect=_sequential_map,
        change=Change(config={"map": {"parallel": "cores"}}),
    ),
    Rule(
        name="costly_calls",
        key="vectorize",
        cause="the functions are cheaper than calling them for single examples",
        detect=_costly_calls,
        change=Change(config={"vectorize": True, "map": {"parallel": "none"}}),
    ),
    Rule(
        name="sequential_read",
        key="interleave",
        cause="shards are read one after another",
        detect=_sequential_read,
        change=Change(
            config={"interleave": {"cycle_length": 4, "block_length": 16, "parallel": "cores"}}
        ),
    ),
    Rule(
        name="compressed_reads",
        key="read",
        cause="every epoch unpacks the shards again",
        detect=_compressed_reads,
        change=Change(config={"read": "shards"}),
    ),
    Rule(
        name="repeated_work",
        key="read",
        cause="every epoch repeats the preprocessing",
        detect=_repeated_work,
        change=SNAPSHOT,
        effort=Effort.DISK,
    ),
    Rule(
        name="no_cache",
        key="cache",
        cause="every epoch repeats the preprocessing",
        detect=_no_cache,
        change=Change(config={"cache": {"where": "memory", "after": "preprocess"}}),
        effort=Effort.MEMORY,
    ),
    Rule(
        name="decode_bound",
        key="decode.scale",
        cause="images are decoded at full size and then made smaller",
        detect=_decode_bound,
        change=Change(config={"decode": {"scale": 2}}, factors={"decode": 0.6}),
        effort=Effort.RESULTS,
    ),
    Rule(
        name="host_widening",
        key="postprocess_on",
        cause=(
            "numbers are widened on the host, where they cost cores, memory and the way to the"
            " device"
        ),
        detect=_host_widening,
        change=Change(config={"postprocess_on": "device"}),
    ),
    Rule(
        name="copy_to_device",
        key="postprocess_on",
        cause="more bytes cross to the device than the model needs",
        detect=_copy_to_device,
        change=Change(
            config={"postprocess_on": "device"},
            saved_ms=lambda facts: 0.75 * (facts.breakdown.gpu_copy_ms or 0.0),
        ),
    ),
    Rule(
        name="epoch_gap",
        key="read",
        cause="every epoch starts its iterator, buffers and readers again",
        detect=_epoch_gap,
        change=Change(
            config=SNAPSHOT.config,
            saved_ms=lambda facts: (
                (facts.epoch_gap_ms or 0.0) / facts.epoch_ms * facts.train_step_ms
            ),
        ),
        effort=Effort.DISK,
    ),
    Rule(
        name="variable_cost",
        key="deterministic",
        cause="a parallel map that keeps the order waits for its slowest call",
        detect=_variable_cost,
        change=Change(config={"deterministic": False}),
    ),
    Rule(
        name="service_on_one_host",
        key="service",
        cause="tf.data service brings cores of other hosts; on one host it only adds copies",
        detect=_service_on_one_host,
        change=Change(config={"service": None}),
    ),
    Rule(
        name="slow_service",
        key="service.address",
        cause="the service's workers do not keep up with the training",
        detect=_slow_service,
        change=Change(),
        advice="more workers on other hosts, or `service: null`",
    ),
    Rule(
        name="too_parallel",
        key="map.parallel",
        cause="more calls than cores only compete",
        detect=_too_parallel,
        change=Change(config={"map": {"parallel": "cores"}}),
    ),
    Rule(
        name="few_threads",
        key="threads",
        cause="the private pool is smaller than the machine",
        detect=_few_threads,
        change=Change(config={"threads": "shared"}),
    ),
    Rule(
        name="buffer_memory",
        key="shuffle",
        cause="examples are shuffled by holding them",
        detect=_buffer_memory,
        change=Change(config=SNAPSHOT.config),
        effort=Effort.DISK,
    ),
    Rule(
        name="few_shards",
        key="shard.min_shards",
        cause="there are fewer files than readers",
        detect=_few_shards,
        change=Change(other={"shard.min_shards": 16}),
    ),
    Rule(
        name="small_shards",
        key="shard.target_size_mib",
        cause="shards are too small",
        detect=_small_shards,
        change=Change(other={"shard.target_size_mib": 128, "shard.min_shards": 8}),
    ),
    Rule(
        name="allocator",
        key="MALLOC_MMAP_THRESHOLD_",
        cause="large batches are given back to the kernel and asked for again",
        detect=_allocator,
        change=Change(other={"MALLOC_MMAP_THRESHOLD_": 1 << 30, "MALLOC_TRIM_THRESHOLD_": 1 << 30}),
    ),
    Rule(
        name="cold_start",
        key="train.epochs",
        cause="only the first epoch is slow",
        detect=_cold_start,
        change=Change(),
    ),
    Rule(
        name="gpu_idle",
        key="train.steps_per_execution",
        cause="the GPU waits for Python and for kernels to be launched",
        detect=_gpu_idle,
        change=Change(other={"train.steps_per_execution": 8, "train.jit_compile": True}),
    ),
)
