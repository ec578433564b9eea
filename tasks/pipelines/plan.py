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
from tasks.pipelines.ops import Decode, DecodeImage, DecodeRaw, Load, Op, Parse, Shape
from tasks.pipelines.refusals import refusals
from tasks.settings import Interleave, PipelineConfig, Sample, Service, Shuffle

AUTO_SHARE = 20


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of a series: `length` steps of all columns, then `horizon` steps of the `targets` (places of columns)."""

    length: int
    horizon: int
    stride: int
    targets: tuple[int, ...]
    key: str = "window"

    def __str__(self) -> str:
        return f"windows[{self.length}+{self.horizon},{self.stride}]"

    def count(self, steps: int) -> int:
        """Windows in a split of so many time steps."""
        return max(0, (steps - self.length - self.horizon) // self.stride + 1)


@dataclass(frozen=True, kw_only=True)
class Read:
    """Deliver stored examples: file names, records in memory, or serialized records of shards; `mixed`: shards in another order each epoch."""

    source: Literal["files", "arrays", "shards", "gzip_shards"]
    interleave: Interleave | None = None
    mixed: bool = False
    key: str = "read"

    def __str__(self) -> str:
        turns = self.interleave
        return f"read:{'mixed ' if self.mixed else ''}{self.source}" + (
            f"[{turns.cycle_length}×{turns.block_length},{turns.parallel}]" if turns else ""
        )


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Deliver whole batches of preprocessed examples by their indices, from the mapped columns of the snapshot, and run `ops` on them."""

    shuffle: Shuffle
    sample: Sample
    batch_size: int
    place: Literal["host", "device"]
    windows: Windows | None
    ops: tuple[Op, ...]
    parallel: str | int
    key: str = "read"

    def __str__(self) -> str:
        orders = {"none": "in order", "global": "global shuffle", "window": f"shuffle within {self.shuffle.size}", "buffer": "buffer"}
        drawn = "" if self.sample.kind == "all" else f",{self.sample.kind}"
        what = f"{self.windows} of " if self.windows else ""
        where = "device" if self.place == "device" else "snapshot"
        ops = "".join(f"+{op.name}" for op in self.ops)
        calls = "" if self.parallel == "none" else f"[{self.parallel}]"
        return f"gather:{what}{where}[{orders[self.shuffle.kind]}{drawn},{self.batch_size}]{ops}{calls}"


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
class DrawByClass:
    """Draw examples class by class, so that rare ones come more often."""

    sample: Sample
    key: str = "sample"

    def __str__(self) -> str:
        return f"sample:{self.sample.kind}"


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Keep the elements that arrive here for later epochs."""

    where: Literal["memory", "disk", "tf_snapshot", "save_load"]
    key: str = "cache"

    def __str__(self) -> str:
        return f"cache:{self.where}"


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Shuffle through a reservoir of `size` elements (auto: a twentieth of the split), anew each epoch."""

    size: str | int
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
class Distribute:
    """Do everything up to here in the workers of the tf.data service; batches are made whole again behind it."""

    service: Service
    batch_size: int
    key: str = "service"

    def __str__(self) -> str:
        return f"service[{self.service.address or self.service.workers},{self.service.sharding}]"


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """Prepare batches ahead of the consumer."""

    batches: str | int
    key: str = "prefetch"

    def __str__(self) -> str:
        return f"prefetch[{self.batches}]"


Step = Read | Gather | Windows | Apply | DrawByClass | Keep | Mix | Batch | Distribute | Prefetch


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one configuration does, in order, plus the options that hold for the whole data set."""

    steps: tuple[Step, ...]
    device_ops: tuple[Op, ...]
    deterministic: bool
    rewrites: bool
    threads: str | int
    approximate: bool

    def __str__(self) -> str:
        line = " → ".join(str(step) for step in self.steps)
        return line + (" ⇒ device:" + "+".join(op.name for op in self.device_ops) if self.device_ops else "")

    @property
    def autotunes(self) -> bool:
        """Whether anything is left to tf.data's AUTOTUNE."""
        turns = [step.interleave for step in self.steps if isinstance(step, Read) and step.interleave]
        set_by = [*turns, *(step for step in self.steps if isinstance(step, Apply | Gather))]
        ahead = [step.batches for step in self.steps if isinstance(step, Prefetch)]
        return self.rewrites or "auto" in [*(item.parallel for item in set_by), *ahead]

    @property
    def caches(self) -> bool:
        """Whether the first epoch fills a cache for the later ones."""
        return any(isinstance(step, Keep) for step in self.steps)

    @property
    def gathers(self) -> bool:
        """Whether the plan reads the mapped snapshot, and so can start at any (epoch, step)."""
        return isinstance(self.steps[0], Gather)

    @property
    def resident(self) -> bool:
        """Whether batches are gathered on the device, within the train step."""
        return isinstance(self.steps[0], Gather) and self.steps[0].place == "device"

    @property
    def service(self) -> Service | None:
        """The tf.data service that the plan uses, if any."""
        return next((step.service for step in self.steps if isinstance(step, Distribute)), None)

    @property
    def continuous(self) -> bool:
        """Whether one data set runs through all epochs; otherwise each epoch is an iteration of its own."""
        return self.gathers or self.service is not None

    @property
    def windows(self) -> Windows | None:
        """The windows that are the examples of a series."""
        return next((found for step in self.steps if (found := step if isinstance(step, Windows) else getattr(step, "windows", None))), None)

    @property
    def classwise(self) -> bool:
        """Whether classes are drawn in other proportions than they have."""
        return any(isinstance(step, DrawByClass) or (isinstance(step, Gather) and step.sample.kind != "all") for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be computed, whatever the configuration: the data's schema, the ops, the batch, and a series' windows."""

    schema: RecordSchema
    preprocess: Sequence[Op]
    augment: Sequence[Op]
    finish: Sequence[Op]
    batch_size: int
    windows: Windows | None = None


def make_plan(config: PipelineConfig, work: Work) -> Plan:
    """Lay out the steps for one configuration.

    Raises:
      ImpossiblePlan: the combination would be wrong or useless; every reason is given.
    """
    problems = refusals(config, preprocess=work.preprocess, augment=work.augment, finish=work.finish)
    if problems:
        raise ImpossiblePlan("; ".join(problems))
    on_device = tuple(op for op in work.finish if config.finish == "device" and not op.on_labels)
    late = (*work.augment, *(op for op in work.finish if op not in on_device))
    steps: list[Step]
    if config.read == "snapshot":
        steps = [
            Gather(
                shuffle=config.shuffle,
                sample=config.sample,
                batch_size=work.batch_size,
                place=config.place,
                windows=work.windows,
                ops=late,
                parallel=config.map.parallel,
            )
        ]
    else:
        # A series is in the order of time, which its windows need.
        mixed = config.shuffle.kind == "buffer" and config.read in ("shards", "gzip_shards") and work.windows is None
        steps = [Read(source=config.read, interleave=config.interleave, mixed=mixed), *_streamed(config, work, late)]
    if config.service:
        steps.append(Distribute(service=config.service, batch_size=work.batch_size))
    if config.prefetch != "none":
        steps.append(Prefetch(batches=config.prefetch))
    return Plan(
        steps=tuple(steps),
        device_ops=on_device,
        deterministic=config.deterministic,
        rewrites=config.rewrites,
        threads=config.threads,
        approximate=config.decode.approximate and work.schema.payload == "encoded" and config.read != "snapshot",
    )


def mixed_together(size: str | int, *, examples: int) -> int:
    """How many examples a shuffle mixes with each other."""
    return max(1, examples // AUTO_SHARE) if isinstance(size, str) else min(size, examples)


def in_order(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration that delivers every example once, in storage order, for evaluation and equality."""
    return config.model_copy(update={"shuffle": Shuffle(kind="none"), "sample": Sample(), "place": "host"})


def resolve(preprocess: Sequence[Op], schema: RecordSchema, config: PipelineConfig | None = None) -> tuple[Op, ...]:
    """Replace `decode` by decoding of encoded images or reinterpretation of raw values, as schema and configuration say."""
    if schema.payload == "series":
        decode: Op = DecodeRaw(size=(None, *(schema.shape or ())), dtype=schema.dtype)
    elif schema.payload == "raw":
        decode = DecodeRaw(size=schema.shape or (), dtype=schema.dtype)
    else:
        decode = DecodeImage(channels=schema.channels)
        if config is not None:
            decode = DecodeImage(channels=schema.channels, dct=config.decode.dct, scale=config.decode.scale)
    ops = [decode if isinstance(op, Decode) else op for op in preprocess]
    fused = config is not None and config.decode.crop == "fused" and schema.payload == "encoded"
    if fused and isinstance(decode, DecodeImage) and len(ops) > 1 and ops[1].name == "center_crop":
        crop = ops[1].shape((None, None, None)) or ()
        ops[:2] = [decode.model_copy(update={"crop": crop[:2]})]
    return tuple(ops)


def output_shape(ops: Sequence[Op], schema: RecordSchema, windows: Windows | None = None) -> tuple[int, ...]:
    """Shape of the model's input behind `ops`, derived from the data: (height, width, channels), (columns,) or (length, columns).

    Raises:
      ImpossiblePlan: the images differ in size and no op makes them alike.
    """
    start: Shape = schema.shape
    shape: Shape = (windows.length, *(start or ())) if windows else start
    for op in ops:
        shape = op.shape(shape)
    if shape is None or schema.payload == "encoded":
        shape = None if shape is None else (*shape[:-1], schema.channels)
    if shape is None or any(size is None for size in shape):
        raise ImpossiblePlan("preprocess: the images differ in size, so they cannot be batched; add `- resize: {height: …, width: …}`")
    return tuple(int(size or 0) for size in shape)


def _streamed(config: PipelineConfig, work: Work, late: tuple[Op, ...]) -> list[Step]:
    """Order cache, shuffle, batch and the ops of a configuration that streams its examples."""
    schema = work.schema
    opening: dict[str, tuple[Op, ...]] = {"files": (Load(),), "arrays": ()}
    parse = (Parse(feature=schema.feature, label=schema.label),)
    early = opening.get(config.read, parse) + resolve(work.preprocess, schema, config)
    ops = early + late
    cached = _position_after(early, config)
    # The class of an example must be known before it can be drawn.
    drawn = None if config.sample.kind == "all" else max(cached, 0 if config.read in ("files", "arrays") else 1)
    floor = max(cached, drawn or 0, len(early) if work.windows else 0)
    batched = _earliest_batchable(ops, floor=floor) if config.vectorize else _first_for_batches(ops, floor=floor)
    # Without a cache, shuffling comes first, while examples are small; behind a cache, or its order would be frozen.
    mixed = len(early) if work.windows else max(cached, drawn or 0)
    steps: list[Step] = []
    for position in range(len(ops) + 1):
        if position == cached and config.cache:
            steps.append(Keep(where=config.cache.where))
        if position == drawn:
            steps.append(DrawByClass(sample=config.sample))
        if work.windows and position == len(early):
            steps.append(work.windows)
        if position == mixed and config.shuffle.kind == "buffer":
            steps.append(Mix(size=config.shuffle.size))
        if position == batched:
            steps.append(Batch(size=work.batch_size))
        if position < len(ops):
            steps.append(Apply(ops=(ops[position],), parallel=config.map.parallel))
    return _fused(steps)


def _position_after(ops: tuple[Op, ...], config: PipelineConfig) -> int:
    """Number of ops before the cache."""
    if config.cache is None:
        return 0
    if config.cache.after == "preprocess":
        return len(ops)
    # A crop that is done while decoding is no op of its own any more.
    found = [index + 1 for index, op in enumerate(ops) if op.name == config.cache.after]
    return found[0] if found else len(ops)


def _earliest_batchable(ops: tuple[Op, ...], *, floor: int) -> int:
    position = len(ops)
    while position > floor and ops[position - 1].takes != "example":
        position -= 1
    return position


def _first_for_batches(ops: tuple[Op, ...], *, floor: int) -> int:
    """The end, unless an op wants batches."""
    return max(floor, next((index for index, op in enumerate(ops) if op.takes == "batch"), len(ops)))


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
