"""From parameters to a plan: an ordered, printable tuple of frozen steps. Pure; no TensorFlow.

The order is right by construction: read → costly deterministic ops → cache → shuffle → augmentation → widening ops →
prefetch, with the batch as early as `vectorize` and the ops allow. What cannot be right is refused with its reason
before anything runs. `dataset.py` folds a plan into a tf.data.Dataset, one verb per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tasks.data.records import RecordSchema
from tasks.errors import ImpossiblePlan
from tasks.pipelines.ops import Load, Op, Parse
from tasks.pipelines.refusals import refusals
from tasks.pipelines.shapes import ops_until_alike, output_shape, resolve
from tasks.pipelines.steps import Apply, Batch, Distribute, DrawByClass, Gather, Keep, Mix, Prefetch, Read, Step, Windows
from tasks.settings import PipelineConfig, Sample, Service, Shuffle


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
    def phases(self) -> tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]]:
        """The steps of a stream that are laid once (opening files or arrays, all up to a cache), those of every epoch, those behind all epochs."""
        caches = [number for number, step in enumerate(self.steps) if isinstance(step, Keep)]
        opened = isinstance(self.steps[0], Read) and self.steps[0].source in ("files", "arrays")
        first = caches[0] + 1 if caches else int(opened)
        last = len(self.steps) - isinstance(self.steps[-1], Prefetch)
        return self.steps[:first], self.steps[first:last], self.steps[last:]

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

    @property
    def aligning(self) -> Sequence[Op]:
        """The first of the augmenting ops, up to where images that differ in size have become alike and can be batched."""
        needed = ops_until_alike((*self.preprocess, *self.augment), self.schema)
        return self.augment if needed is None else self.augment[: max(0, needed - len(self.preprocess))]

    @property
    def cuts(self) -> Sequence[Op]:
        """The first of the augmenting ops, which the host runs on one example at a time: they must be, or are cheaper so."""
        return max(self.aligning, tuple(takewhile(lambda op: op.alone, self.augment)), key=len)


def make_plan(config: PipelineConfig, work: Work) -> Plan:
    """Lay out the steps for one configuration.

    Raises:
      ImpossiblePlan: the combination would be wrong or useless, or the examples cannot be batched; every reason is given.
    """
    problems = refusals(config, preprocess=work.preprocess, augment=work.augment, finish=work.finish)
    problems += _of_unlike_sizes(config, work)
    if problems:
        raise ImpossiblePlan("; ".join(problems))
    output_shape((*work.preprocess, *work.augment), work.schema, work.windows)
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
                alone=len(work.cuts) if config.place == "host" else 0,
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


def in_order(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration that delivers every example once, in storage order, for evaluation and equality."""
    return config.model_copy(update={"shuffle": Shuffle(kind="none"), "sample": Sample(), "place": "host"})


def _of_unlike_sizes(config: PipelineConfig, work: Work) -> list[str]:
    """What cannot be done while images differ in size."""
    unbatched = [op.name for op in work.aligning if op.takes == "batch"]
    problems = [f"augment: {name} needs batches, and images must have the same size before: put the crop first" for name in unbatched]
    if work.aligning and config.place == "device":
        problems.append("place: images of unlike sizes are cut one by one on the host; resize them in preprocess, or use `place: host`")
    return problems


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
    alike = ops_until_alike(ops, schema) or 0
    floor = max(cached, drawn or 0, alike, len(early) if work.windows else 0)
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
            steps.append(Apply(ops=(ops[position],), parallel=config.map.parallel, first=position - len(early)))
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
    while position > floor and ops[position - 1].takes != "example" and not ops[position - 1].alone:
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
            fused[-1] = Apply(ops=previous.ops + step.ops, parallel=step.parallel, first=previous.first)
        else:
            fused.append(step)
    return fused
