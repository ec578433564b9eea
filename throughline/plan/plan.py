"""Makes plans from parameters: ordered, printable tuples of frozen steps. Pure; no TensorFlow.

The order is right by construction and reads top to bottom in `_stream_steps`. Impossible
combinations are refused with a reason before anything runs (`constraints.py`). `dataset.py` builds
the tf.data.Dataset of a plan, with a function per kind of step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from throughline.plan.constraints import find_config_problems
from throughline.plan.data_constraints import (
    find_data_problems,
    find_ops_problems,
    find_variable_size_problems,
)
from throughline.plan.ops import DecodeImage, Load, Op, Parse
from throughline.plan.schema import Schema
from throughline.plan.shapes import ops_until_uniform, output_shape, resolve_decode
from throughline.plan.steps import (
    Batch,
    BucketBatch,
    Cache,
    Gather,
    Map,
    Parallelism,
    Prefetch,
    Read,
    ReadIndexedShards,
    SampleByClass,
    Service,
    Shuffle,
    Step,
    StreamSource,
    TokenWindow,
    Window,
)
from throughline.settings import (
    BatchSettings,
    PipelineConfig,
    Sampling,
    ServiceSettings,
    ShuffleSettings,
)
from throughline.shared.errors import ImpossiblePlan

Ops = tuple[Op, ...]


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """The common input of all configurations of a run; `batch_size` is over all workers."""

    schema: Schema
    preprocess: Sequence[Op]
    augment: Sequence[Op]
    postprocess: Sequence[Op]
    batch_size: int
    window: Window | TokenWindow | None = None

    @property
    def ops(self) -> list[tuple[str, Op]]:
        """All ops in their order, each with the name of its section."""
        sections = ("preprocess", "augment", "postprocess")
        return [(section, op) for section in sections for op in getattr(self, section)]

    @property
    def ops_to_uniform_shape(self) -> Sequence[Op]:
        """The leading augmenting ops until images of variable size have one size; all if never."""
        needed = ops_until_uniform((*self.preprocess, *self.augment), self.schema)
        count = None if needed is None else max(0, needed - len(self.preprocess))
        return self.augment[:count]

    @property
    def per_example_augment(self) -> Sequence[Op]:
        """The leading augmenting ops that must run, or run faster, on single examples."""
        needing = [number for number, op in enumerate(self.augment, 1) if op.takes == "example"]
        return max(
            self.augment[: max(needing, default=0)],
            self.ops_to_uniform_shape,
            self.fetched_augment,
            tuple(takewhile(lambda op: op.prefers_single_examples, self.augment)),
            key=len,
        )

    @property
    def fetched_augment(self) -> Sequence[Op]:
        """The leading augmenting ops that can be part of fetching rows: a crop, then any flips."""
        crop = tuple(self.augment[:1])
        if not crop or not crop[0].crops:
            return ()
        return (*crop, *takewhile(lambda op: op.flips, self.augment[1:]))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ordered steps of one configuration, options of the dataset, and the spec it computes."""

    spec: InputSpec
    steps: tuple[Step, ...]
    device_ops: Ops
    deterministic: bool
    graph_rewrites: bool
    threads: str | int
    approximate: bool

    def __str__(self) -> str:
        line = " → ".join(str(step) for step in self.steps)
        on_device = "+".join(op.name for op in self.device_ops)
        return f"{line} ⇒ device:{on_device}" if on_device else line

    @property
    def autotunes(self) -> bool:
        return self.graph_rewrites or any(
            step.parallel.setting == "auto"
            if isinstance(step, Read | ReadIndexedShards | Map | Gather)
            else isinstance(step, Prefetch) and step.batches == "auto"
            for step in self.steps
        )

    @property
    def caches(self) -> bool:
        return any(isinstance(step, Cache) for step in self.steps)

    @property
    def gather(self) -> Gather | None:
        first = self.steps[0]
        return first if isinstance(first, Gather) else None

    @property
    def reads_snapshot(self) -> bool:
        return self.gather is not None

    @property
    def reads_whole_snapshot(self) -> bool:
        """Whether every row comes from the snapshot, none from the shards."""
        return self.gather is not None and not self.gather.decoding

    @property
    def seekable(self) -> bool:
        """Whether epochs can be entered at any step and shared by workers, unlike a stream's."""
        return isinstance(self.steps[0], Gather | ReadIndexedShards)

    @property
    def gathers_on_device(self) -> bool:
        return self.gather is not None and self.gather.on == "device"

    @property
    def batching(self) -> BatchSettings | None:
        """The settings for batches of sequences by length; None without such batches."""
        found = (step for step in self.steps if isinstance(step, Gather | BucketBatch))
        return next((step.batching for step in found), None)

    @property
    def service(self) -> ServiceSettings | None:
        return next((step.settings for step in self.steps if isinstance(step, Service)), None)

    @property
    def window(self) -> Window | TokenWindow | None:
        return self.spec.window

    @property
    def sampling(self) -> Sampling:
        for step in self.steps:
            if isinstance(step, Gather | ReadIndexedShards | SampleByClass):
                return step.sampling
        return "uniform"


def make_plan(config: PipelineConfig, spec: InputSpec) -> Plan:
    """Lay out the steps for one configuration.

    Raises:
      ImpossiblePlan: The combination would be wrong or useless (the message gives every reason),
        the images cannot be batched, or an op does not fit their shape.
    """
    encoding = spec.schema.input.encoding
    about = {
        "predicts_number": spec.schema.predicts_number,
        "columns": spec.schema.table_input is not None,
    }
    windows = spec.window is not None
    problems = [
        *find_config_problems(config, spec.ops, batch_size=spec.batch_size),
        *find_variable_size_problems(config, spec.ops_to_uniform_shape),
        *find_data_problems(config, encoding, spec.ops, windows=windows, **about),
        *find_ops_problems(encoding, spec.ops, **about),
    ]
    if problems:
        raise ImpossiblePlan("; ".join(problems))
    output_shape([op for _, op in spec.ops], spec.schema, spec.window)
    preprocess = _preprocess(config, spec)
    device_ops = tuple(
        op for op in spec.postprocess if config.postprocess_on == "device" and not op.on_labels
    )
    after_preprocess = (*spec.augment, *(op for op in spec.postprocess if op not in device_ops))
    if config.read == "snapshot":
        steps: Sequence[Step] = [_gather(config, spec, preprocess, after_preprocess)]
    elif config.read == "indexed_shards":
        steps = _indexed_shard_steps(config, spec, preprocess, after_preprocess)
    else:
        steps = _stream_steps(config.read, config, spec, preprocess, after_preprocess)
    if config.prefetch != "none":  # last, so that everything overlaps with training
        steps = [*steps, Prefetch(batches=config.prefetch)]
    return Plan(
        spec=spec,
        steps=tuple(_number_ops(steps, first_op_position=-len(preprocess))),
        device_ops=device_ops,
        deterministic=config.deterministic,
        graph_rewrites=config.graph_rewrites,
        threads=config.threads,
        approximate=config.decode.approximate
        and config.read != "snapshot"
        and any(isinstance(op, DecodeImage) for op in preprocess),
    )


def set_storage_order(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration without shuffling, sampling by class or data on the device."""
    return config.model_copy(
        update={
            "shuffle": ShuffleSettings(kind="none"),
            "sampling": "uniform",
            "snapshot_on": "host",
        }
    )


def _gather(
    config: PipelineConfig, spec: InputSpec, preprocess: Ops, after_preprocess: Ops
) -> Gather:
    """Return a gather of rows whose numbers are computed, so that no shuffle buffer is needed."""
    return Gather(
        shuffle=config.shuffle,
        sampling=config.sampling,
        batch_size=spec.batch_size,
        batching=config.batch,
        on=config.snapshot_on,
        window=spec.window,
        ops=after_preprocess,
        example_op_count=len(spec.per_example_augment) if config.snapshot_on == "host" else 0,
        parallel=Parallelism(config.map.parallel),
        fraction=config.snapshot.fraction,
        decoding=() if config.snapshot.fraction == 1 else preprocess,
    )


def _indexed_shard_steps(
    config: PipelineConfig, spec: InputSpec, preprocess: Ops, after_preprocess: Ops
) -> list[Step]:
    """Lay out the steps of a stream whose records already arrive in the epoch's order."""
    ops = preprocess + after_preprocess
    example_ops, batch_ops = _split_for_batching(
        ops, vectorize=config.vectorize, at_least=ops_until_uniform(ops, spec.schema) or 0
    )
    read = ReadIndexedShards(
        shuffle=config.shuffle,
        sampling=config.sampling,
        batch_size=spec.batch_size,
        whole_batches=not example_ops,
        parallel=Parallelism(config.map.parallel),
    )
    batch = [Batch(size=spec.batch_size)] if example_ops else []
    return [read, _map(config, example_ops), *batch, _map(config, batch_ops)]


def _stream_steps(
    source: StreamSource,
    config: PipelineConfig,
    spec: InputSpec,
    preprocess: Ops,
    after_preprocess: Ops,
) -> list[Step]:
    """Lay out a pipeline that streams its examples, in the order in which they pass through it."""
    ops = preprocess
    # The number of ops that see images of variable size, which no batch can hold.
    variable = ops_until_uniform(preprocess + after_preprocess, spec.schema) or 0

    # No shuffle buffer is large enough, so the order of shards changes each epoch, too. Windows,
    # however, need the stored order.
    shuffle_files = config.shuffle.kind == "buffer" and source == "shards" and spec.window is None
    steps: list[Step] = [
        Read(source=source, interleave=config.interleave, shuffle_files=shuffle_files)
    ]

    if config.cache:  # costly work whose result is the same in every epoch
        names = [op.name for op in ops]
        # The cache is at the end for `preprocess`, or a fused crop.
        end = names.index(config.cache.after) + 1 if config.cache.after in names else len(ops)
        steps += [_map(config, ops[:end]), Cache(where=config.cache.where)]
        ops = ops[end:]

    # After the cache, which holds every example once. Labels must be parsed first.
    if config.sampling != "uniform":
        end = 0 if config.cache or source in ("files", "arrays") else 1
        steps += [_map(config, ops[:end]), SampleByClass(sampling=config.sampling)]
        ops = ops[end:]

    if spec.window:  # made of preprocessed time steps or tokens that are still in order
        steps += [_map(config, ops), spec.window]
        ops = ()

    # Shuffle while examples are small, and after the cache, which would freeze the order.
    if config.shuffle.kind == "buffer":
        steps += [Shuffle(size=config.shuffle.size)]

    ops += after_preprocess  # random from here on, so never cached
    done = len(preprocess + after_preprocess) - len(ops)
    example_ops, batch_ops = _split_for_batching(
        ops, vectorize=config.vectorize, at_least=max(0, variable - done)
    )
    batch = (
        BucketBatch(size=spec.batch_size, batching=config.batch)
        if config.batch
        else Batch(size=spec.batch_size)
    )
    steps += [_map(config, example_ops), batch, _map(config, batch_ops)]

    if config.service:  # whole batches cross the network
        steps += [Service(settings=config.service, batch_size=spec.batch_size)]
    return steps


def _preprocess(config: PipelineConfig, spec: InputSpec) -> Ops:
    """Return the ops that turn the examples as read into those that a snapshot stores."""
    opening: dict[str, Ops] = {"files": (Load(feature=spec.schema.input.name),), "arrays": ()}
    opened = opening.get(config.read, (Parse.of(spec.schema),))
    return opened + resolve_decode(spec.preprocess, spec.schema, config)


def _map(config: PipelineConfig, ops: Ops) -> Map:
    return Map(ops=ops, parallel=Parallelism(config.map.parallel), first_op_position=0)


def _split_for_batching(ops: Ops, *, vectorize: bool, at_least: int) -> tuple[Ops, Ops]:
    """Split ops into at least `at_least` for single examples, and the rest for batches.

    With `vectorize`, as many as possible run on batches; otherwise, only from the first that must.
    """
    if vectorize:
        single = [op.takes == "example" or op.prefers_single_examples for op in ops]
        end = max((index + 1 for index, alone in enumerate(single) if alone), default=0)
    else:
        end = next((index for index, op in enumerate(ops) if op.takes == "batch"), len(ops))
    end = max(at_least, end)
    return ops[:end], ops[end:]


def _number_ops(steps: Sequence[Step], *, first_op_position: int) -> Iterator[Step]:
    """Drop empty maps, and number the ops of the others from `first_op_position`."""
    position = first_op_position
    for step in steps:
        if not isinstance(step, Map):
            yield step
        elif step.ops:
            yield replace(step, first_op_position=position)
            position += len(step.ops)
