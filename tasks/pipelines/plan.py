"""From parameters to a plan: an ordered, printable tuple of frozen steps. Pure; no TensorFlow.

The order is right by construction: read → costly deterministic ops → cache → shuffle → augmentation → widening ops →
prefetch, with the batch as early as `vectorize` and the ops allow. What cannot be right is refused with its reason
before anything runs. `dataset.py` folds a plan into a tf.data.Dataset, one verb per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.data.records import RecordSchema
from tasks.errors import ImpossiblePlan
from tasks.pipelines.ops import CenterCrop, Decode, DecodeImage, DecodeRaw, Load, Op, Parse, Resize
from tasks.settings import Cache, Interleave, PipelineConfig


@dataclass(frozen=True, kw_only=True)
class Read:
    """Deliver stored examples: file names, records in memory, or serialized records of shards."""

    source: Literal["files", "arrays", "shards"]
    interleave: Interleave | None = None
    key: str = "read"

    def __str__(self) -> str:
        turns = self.interleave
        return f"read:{self.source}" + (f"[{turns.cycle_length}×{turns.block_length},{turns.parallel}]" if turns else "")


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Deliver whole batches of preprocessed examples by their indices, from the mapped columns of the snapshot."""

    shuffle: bool
    batch_size: int
    key: str = "read"

    def __str__(self) -> str:
        return f"gather:snapshot[{'global shuffle' if self.shuffle else 'in order'},{self.batch_size}]"


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Run consecutive ops in one map."""

    ops: tuple[Op, ...]
    parallel: str | int
    key: str = "map"

    def __str__(self) -> str:
        calls = "" if self.parallel == "none" else f"[{self.parallel}]"
        return "map:" + "+".join(op.name for op in self.ops) + calls


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Cache the elements that arrive here."""

    where: Literal["memory", "disk"]
    key: str = "cache"

    def __str__(self) -> str:
        return f"cache:{self.where}"


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Shuffle through a reservoir of `size` elements, anew each epoch."""

    size: int
    key: str = "shuffle"

    def __str__(self) -> str:
        return f"shuffle[{self.size}]"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Stack `size` consecutive examples; the last batch of an epoch may be smaller, so that no example is lost."""

    size: int
    key: str = "batch_size"

    def __str__(self) -> str:
        return f"batch[{self.size}]"


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """Prepare batches ahead of the consumer."""

    batches: str | int
    key: str = "prefetch"

    def __str__(self) -> str:
        return f"prefetch[{self.batches}]"


Step = Read | Gather | Apply | Keep | Mix | Batch | Prefetch


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one configuration does, in order, plus the options that hold for the whole data set."""

    steps: tuple[Step, ...]
    device_ops: tuple[Op, ...]
    deterministic: bool
    rewrites: bool

    def __str__(self) -> str:
        line = " → ".join(str(step) for step in self.steps)
        return line + (" ⇒ device:" + "+".join(op.name for op in self.device_ops) if self.device_ops else "")

    @property
    def autotunes(self) -> bool:
        """Whether anything is left to tf.data's AUTOTUNE."""
        return self.rewrites or any("auto" in str(step) for step in self.steps)

    @property
    def caches(self) -> bool:
        """Whether the first epoch fills a cache for the later ones."""
        return any(isinstance(step, Keep) for step in self.steps)

    @property
    def gathers(self) -> bool:
        """Whether the plan reads the mapped snapshot, and so can start at any (epoch, step)."""
        return isinstance(self.steps[0], Gather)


def make_plan(
    config: PipelineConfig,
    *,
    schema: RecordSchema,
    preprocess: Sequence[Op],
    augment: Sequence[Op],
    finish: Sequence[Op],
    batch_size: int,
) -> Plan:
    """Lay out the steps for one configuration.

    Leave `augment` empty for evaluation; `in_order` configurations are made with `without_shuffle`.

    Raises:
      ImpossiblePlan: the combination would be wrong or useless; every reason is given.
    """
    problems = refusals(config, preprocess=preprocess, augment=augment, finish=finish)
    if problems:
        raise ImpossiblePlan("; ".join(problems))
    on_host = tuple(finish) if config.finish == "host" else ()
    late = (*augment, *on_host)
    steps: list[Step]
    if config.read == "snapshot":
        steps = [Gather(shuffle=config.shuffle.kind == "global", batch_size=batch_size)]
        steps += [Apply(ops=late, parallel=config.map.parallel)] if late else []
    else:
        steps = [Read(source=config.read, interleave=config.interleave)]
        steps += _streamed(config, early=_stored_ops(config, schema, preprocess), late=late, batch_size=batch_size)
    if config.prefetch != "none":
        steps.append(Prefetch(batches=config.prefetch))
    device = tuple(finish) if config.finish == "device" else ()
    return Plan(steps=tuple(steps), device_ops=device, deterministic=config.deterministic, rewrites=config.rewrites)


def without_shuffle(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration that delivers the same examples in storage order, for evaluation and equality."""
    return config.model_copy(update={"shuffle": config.shuffle.model_copy(update={"kind": "none"})})


def refusals(config: PipelineConfig, *, preprocess: Sequence[Op], augment: Sequence[Op], finish: Sequence[Op]) -> list[str]:
    """List why a configuration cannot be right; each reason begins with the field it is about."""
    names = [op.name for op in preprocess]
    reading_shards, mapped = config.read == "shards", config.read == "snapshot"
    found = []
    if config.cache and config.cache.after in [op.name for op in augment]:
        found.append(f"cache.after: {config.cache.after} is random; cached, every epoch would repeat the first one's draws")
    elif config.cache and config.cache.after not in names:
        found.append(f"cache.after: {config.cache.after} is not one of the preprocess ops ({', '.join(names) or 'none'})")
    if mapped and config.cache:
        found.append("cache: a snapshot is already the stored result of preprocessing and is cached by the operating system; drop `cache`")
    if mapped and config.vectorize:
        found.append("vectorize: reading a snapshot always works on whole batches; drop `vectorize`")
    if mapped and config.shuffle.kind == "buffer":
        found.append("shuffle.kind: a snapshot can be permuted as a whole; use `global` or `none` instead of a buffer")
    if not mapped and config.shuffle.kind == "global":
        found.append(f"shuffle.kind: a global permutation needs random access; `read: {config.read}` is a stream, use `buffer` or `read: snapshot`")
    if config.interleave and not reading_shards:
        found.append(f"interleave: only shards are read by turns, not `read: {config.read}`")
    if config.finish == "device":
        found += [f"finish: {op.name} cannot run on the device" for op in finish if not op.device]
    return found


def _stored_ops(config: PipelineConfig, schema: RecordSchema, preprocess: Sequence[Op]) -> tuple[Op, ...]:
    """Put the op that reads an element first, and replace `decode` by what it means for this payload."""
    opening: dict[str, tuple[Op, ...]] = {"files": (Load(),), "arrays": (), "shards": (Parse(payload=schema.payload),)}
    return opening[config.read] + resolve(preprocess, schema)


def resolve(preprocess: Sequence[Op], schema: RecordSchema) -> tuple[Op, ...]:
    """Replace `decode` by decoding of encoded images or reinterpretation of raw pixels, as the schema says."""
    raw = DecodeRaw(shape=schema.shape) if schema.shape is not None else None
    decode = raw if schema.payload == "raw" and raw else DecodeImage(channels=schema.channels)
    return tuple(decode if isinstance(op, Decode) else op for op in preprocess)


def output_shape(preprocess: Sequence[Op], schema: RecordSchema) -> tuple[int, int, int]:
    """Shape (height, width, channels) of a preprocessed image, derived from the data and the ops.

    Raises:
      ImpossiblePlan: the images differ in size and no op makes them alike.
    """
    shape = schema.shape
    for op in preprocess:
        if isinstance(op, Resize | CenterCrop):
            shape = (op.height, op.width, schema.channels)
    if shape is None:
        raise ImpossiblePlan("preprocess: the images differ in size, so they cannot be batched; add `- resize: {height: …, width: …}`")
    return shape


def _streamed(config: PipelineConfig, *, early: tuple[Op, ...], late: tuple[Op, ...], batch_size: int) -> list[Step]:
    """Order cache, shuffle, batch and the ops of a configuration that streams its examples."""
    cached = _position_after(early, config.cache)
    ops = early + late
    batched = _earliest_batchable(ops, floor=cached) if config.vectorize else len(ops)
    # Without a cache, shuffling comes first, while examples are small; behind a cache, or its order would be frozen.
    steps: list[Step] = []
    for position in range(len(ops) + 1):
        if position == cached:
            steps += [Keep(where=config.cache.where)] if config.cache else []
            steps += [Mix(size=config.shuffle.size)] if config.shuffle.kind == "buffer" else []
        if position == batched:
            steps.append(Batch(size=batch_size))
        if position < len(ops):
            steps.append(Apply(ops=(ops[position],), parallel=config.map.parallel))
    return _fused(steps)


def _position_after(ops: tuple[Op, ...], cache: Cache | None) -> int:
    return 0 if cache is None else next(index for index, op in enumerate(ops) if op.name == cache.after) + 1


def _earliest_batchable(ops: tuple[Op, ...], *, floor: int) -> int:
    position = len(ops)
    while position > floor and ops[position - 1].batchable:
        position -= 1
    return position


def _fused(steps: list[Step]) -> list[Step]:
    """Join neighbouring ops into one map: a map call has a fixed cost that one function need pay only once."""
    fused: list[Step] = []
    for step in steps:
        previous = fused[-1] if fused else None
        if isinstance(step, Apply) and isinstance(previous, Apply):
            fused[-1] = Apply(ops=previous.ops + step.ops, parallel=step.parallel)
        else:
            fused.append(step)
    return fused
