"""Rules that find faults of an input pipeline, in the order in which their changes are tried.

A rule is a detector, decorated with the key to blame and the change that helps. A detector returns
the evidence, with numbers, or None. The change is merged into the configuration (`config`), or into
other sections of params.yaml (`other`, by dotted keys); the race measures its gain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from throughline.diagnosis.facts import WORTH_PCT, Facts
from throughline.plan.steps import Gather, Map, Read, Shuffle
from throughline.results.profiling import GOOD_UTILIZATION_PCT, Effort

FEW_SHARDS = 64  # opening so few takes almost no time
STEPS_PER_EXECUTION = 8  # steps per call from Python
SNAPSHOT: Mapping[str, Any] = {
    "read": "snapshot",
    "snapshot": {},
    "shuffle": {"kind": "global"},
    "map": {"parallel": "cores"},
    "prefetch": 2,
    "vectorize": False,
    "deterministic": True,
    "cache": None,
    "interleave": None,
    "service": None,
    "decode": {},
}

Detector = Callable[[Facts], str | None]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A possible fault: `params_key` is to blame, and `cause` says why it costs time.

    Attributes:
      config: New values for the configuration.
      other: New values for other sections by dotted keys; a value may be a function of the facts.
      fix: The fix in words, if it is outside params.yaml.
    """

    name: str
    detect: Detector
    params_key: str
    cause: str
    config: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = Effort.SETTING
    fix: str = "nothing to change"


RULES: list[Rule] = []


def rule(**fields: Any) -> Callable[[Detector], Rule]:
    """Turn a detector into a rule with these fields, named after it without the underscore."""

    def add(detect: Detector) -> Rule:
        RULES.append(Rule(name=detect.__name__.removeprefix("_"), detect=detect, **fields))
        return RULES[-1]

    return add


@rule(
    params_key="read",
    cause="every epoch repeats the preprocessing",
    config=SNAPSHOT,
    effort=Effort.DISK,
)
def _repeated_work(facts: Facts) -> str | None:
    work = facts.worthwhile(facts.work_ms(Map, Gather))
    if not work or facts.plan.reads_whole_snapshot or facts.plan.caches:
        return None
    return (
        f"the ops take {work:.2f} core-ms of every step; the deterministic ones have the same"
        " results in every epoch"
    )


@rule(
    params_key="cache",
    cause="every epoch repeats the preprocessing",
    config={"cache": {"where": "memory", "after": "preprocess"}},
    effort=Effort.MEMORY,
)
def _no_cache(facts: Facts) -> str | None:
    repeated = _repeated_work.detect(facts)
    fits = facts.stored_mib < facts.available_memory_mib / 2
    if not repeated or not fits or facts.plan.service:
        return None
    return f"{repeated}; their results take {facts.stored_mib:,.0f} MiB"


@rule(
    params_key="vectorize",
    cause="calling functions for single examples may cost more than their work",
    config={"vectorize": True, "map": {"parallel": "none"}, "prefetch": 2},
)
def _costly_calls(facts: Facts) -> str | None:
    called, work = facts.per_example_map(), facts.worthwhile(facts.work_ms(Map))
    if not work or not called or facts.config.vectorize:
        return None
    if all(op.takes == "example" for op in called.ops):
        return None
    return (
        f"{facts.examples_per_step:.0f} calls per step take {work:.2f} core-ms,"
        f" {1e3 * work / facts.examples_per_step:.0f} µs each"
    )


@rule(
    params_key="map.parallel",
    cause="one call runs at a time",
    config={"map": {"parallel": "cores"}, "prefetch": 2},
)
def _sequential_map(facts: Facts) -> str | None:
    work = facts.worthwhile(facts.work_ms(Map, Gather))
    if not work or not facts.map_parallelism.is_sequential or facts.cores == 1:
        return None
    if facts.plan.gathers_on_device:  # part of the model's step
        return None
    return (
        f"its ops take {work:.2f} ms of a step, one call after another, on one of {facts.cores}"
        " cores"
    )


@rule(
    params_key="prefetch",
    cause="nothing is prepared while the model computes",
    config={"prefetch": 2},
)
def _no_prefetch(facts: Facts) -> str | None:
    wait = facts.worthwhile(facts.breakdown.wait_ms_mean)
    if not wait or facts.config.prefetch != "none" or facts.plan.gathers_on_device:
        return None
    return f"each step waits {wait:.2f} ms for a batch that is prepared only then"


@rule(
    params_key="interleave",
    cause="shards are read one after another",
    config={"interleave": {"cycle_length": 4, "block_length": 16, "parallel": "cores"}},
)
def _sequential_read(facts: Facts) -> str | None:
    step, work = facts.plan.steps[0], facts.worthwhile(facts.work_ms(Read))
    if not work or not isinstance(step, Read) or step.source != "shards":
        return None
    if not step.parallel.is_sequential or facts.shard_count == 1 or facts.plan.caches:
        return None
    return f"reading takes {work:.2f} ms of a step, from one file at a time"


@rule(
    params_key="decode.ratio",
    cause="images are decoded at full size and then resized",
    config={"decode": {"ratio": 2}},
    effort=Effort.RESULTS,
)
def _decode_bound(facts: Facts) -> str | None:
    ops = [op for step in facts.warm_steps if isinstance(step, Map) for op in step.ops]
    decoded = any(op.name == "decode" and hasattr(op, "dct") for op in ops)
    resized = any(op.name == "resize" for op in ops)
    if not decoded or not resized or facts.config.decode.ratio > 1 or facts.plan.caches:
        return None
    work = facts.work_ms(Map)
    if not facts.worthwhile(work / facts.cores):
        return None
    return f"decoding and what follows take {work:.2f} core-ms of a step"


@rule(
    params_key="postprocess_on",
    cause="numbers are widened on the host, which costs cores, memory and transfer to the device",
    config={"postprocess_on": "device"},
)
def _host_widening(facts: Facts) -> str | None:
    on_device = facts.plan.device_ops or facts.plan.gathers_on_device
    if on_device or facts.config.postprocess_on == "device":
        return None
    steps = [step for step in facts.warm_steps if isinstance(step, Map | Gather)]
    casts = [op.name for step in steps for op in step.ops if op.device and not op.random]
    if not casts or not facts.worthwhile(facts.work_ms(Map, Gather)):
        return None
    return f"a batch has {facts.batch_mib:,.1f} MiB after {', '.join(casts)} on the host"


@rule(
    params_key="service",
    cause="tf.data service adds cores of other hosts; on one host it only adds copies",
    config={"service": None},
)
def _service_on_one_host(facts: Facts) -> str | None:
    service = facts.config.service
    if service is None or not service.on_this_host:
        return None
    return f"its workers share this host's {facts.cores} cores and add none"


@rule(
    params_key="service.address",
    cause="the service's workers do not keep up with the training",
    fix="more workers on other hosts, or `service: null`",
)
def _slow_service(facts: Facts) -> str | None:
    service, wait = facts.config.service, facts.worthwhile(facts.breakdown.wait_ms_mean)
    if not wait or service is None or service.on_this_host:
        return None
    return f"each step waits {wait:.2f} ms for batches from {service.address}"


@rule(
    params_key="map.parallel",
    cause="more calls than cores only compete for the cores",
    config={"map": {"parallel": "cores"}},
)
def _too_parallel(facts: Facts) -> str | None:
    threads = facts.map_parallelism.threads(facts.cores)
    return f"{threads} calls at once on {facts.cores} cores" if threads > 2 * facts.cores else None


@rule(
    params_key="threads",
    cause="the private pool has fewer threads than the machine has cores",
    config={"threads": "shared"},
)
def _few_threads(facts: Facts) -> str | None:
    threads = facts.config.threads
    few = isinstance(threads, int) and threads < facts.cores and facts.plan.steps
    return f"{threads} threads for {facts.cores} cores" if few else None


@rule(
    params_key="shuffle",
    cause="a shuffle buffer holds many examples in memory",
    config=SNAPSHOT,
    effort=Effort.DISK,
)
def _buffer_memory(facts: Facts) -> str | None:
    sizes = [step.size for step in facts.plan.steps if isinstance(step, Shuffle)]
    most = max((size for size in sizes if isinstance(size, int)), default=0)
    # The buffer of this epoch, and of the next, which is opened ahead.
    held = 2 if facts.config.prefetch != "none" else 1
    used = held * min(most, facts.examples) * facts.shuffled_mib
    if used <= facts.available_memory_mib / 10:
        return None
    return f"the shuffle buffer takes up to {used:,.0f} MiB of memory"


# The docstring is the value in the table of rules in docs/measuring.md.
def _count_readers(facts: Facts) -> int:
    """as many as `interleave.cycle_length`"""
    return facts.config.interleave.cycle_length if facts.config.interleave else 1


@rule(
    params_key="shard.min_shards",
    cause="there are fewer files than readers",
    other={"shard.min_shards": _count_readers},
)
def _few_shards(facts: Facts) -> str | None:
    turns = facts.config.interleave
    if turns is None or facts.shard_count >= turns.cycle_length:
        return None
    if facts.plan.reads_snapshot or facts.plan.caches:
        return None
    shards = "1 shard" if facts.shard_count == 1 else f"{facts.shard_count} shards"
    return f"{shards} for {turns.cycle_length} readers"


@rule(
    params_key="shard.target_size_mib",
    cause="shards are too small",
    other={"shard.target_size_mib": 128, "shard.min_shards": 8},
)
def _small_shards(facts: Facts) -> str | None:
    large = facts.shard_mib >= 1 or facts.shard_count <= FEW_SHARDS
    if facts.plan.seekable or facts.plan.caches or large:
        return None
    return (
        f"{facts.shard_count} shards of {facts.shard_mib:.2f} MiB: opening files takes longer than"
        " reading them"
    )


@rule(
    params_key="deterministic",
    cause="a parallel map that keeps the order waits for its slowest call",
    config={"deterministic": False},
    effort=Effort.RESULTS,
)
def _variable_cost(facts: Facts) -> str | None:
    if not facts.config.deterministic or facts.map_parallelism.is_sequential:
        return None
    for item in facts.breakdown.iterators:
        median, late = item.call_ms_p50, item.call_ms_p95
        waited_for = item.named and "Map" in item.kind and item.critical_pct > WORTH_PCT
        if waited_for and late > 3 * median and late > 1:
            return (
                f"a call of {item.step} takes {median:.1f} ms (median) to {late:.1f} ms (p95):"
                " stragglers block in-order delivery"
            )
    return None


@rule(
    params_key="batch.pad_to",
    cause="each batch is as long as its longest sequence, and so steps also differ in time",
    config={"batch": {"pad_to": "auto"}},
    effort=Effort.RESULTS,
)
def _padding(facts: Facts) -> str | None:
    now, then = facts.padding_pct, facts.padding_pct_in_buckets
    if now is None or then is None or facts.config.batch is not None:
        return None
    if 100 * (1 - (100 - now) / (100 - then)) < WORTH_PCT:
        return None
    return (
        f"{now:.0f} % of the model's input is padding; in buckets of doubling length it would be"
        f" {then:.0f} %"
    )


@rule(
    params_key="train.steps_per_execution",
    cause="the GPU waits for Python and kernel launches",
    other={"train.steps_per_execution": STEPS_PER_EXECUTION},
)
def _gpu_idle(facts: Facts) -> str | None:
    # NVML covers the whole training, with the time between epochs and for compiling kernels; the
    # trace covers single steps.
    trained, traced, waits = facts.gpu_utilization_pct, facts.gpu_busy_pct, facts.wait_pct or 0.0
    if trained is None or traced is None or max(trained, traced) >= GOOD_UTILIZATION_PCT:
        return None
    if facts.steps_per_execution >= STEPS_PER_EXECUTION or waits >= WORTH_PCT:
        return None
    return f"the GPU is busy {traced:.0f} % of a step, but waits for input only {waits:.1f} % of it"
