"""Makes plans from parameters: ordered, printable tuples of frozen steps. Pure; no TensorFlow.

The order is right by construction and reads top to bottom in `_stream_steps`. Impossible
combinations are refused with a reason before anything runs (`constraints.py`). `dataset.py` builds
the tf.data.Dataset of a plan, with a function per kind of step.
"""

from collections.abc import Sequence
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
    """What all configurations of a run compute alike; `batch_size` counts all workers' examples."""

    schema: Schema
    preprocess: Sequence[Op]
    augment: Sequence[Op]
    postprocess: Sequence[Op]
    batch_size: int
    window: Window | TokenWindow | None = None

    @property
    def ops(self) -> list[tuple[str, Op]]:
        sections = ("preprocess", "augment", "postprocess")
        return [(section, op) for section in sections for op in getattr(self, section)]

    @property
    def ops_to_uniform_shape(self) -> Sequence[Op]:
        """The leading augmenting ops until images of variable size have one size; all if never."""
        needed = ops_until_uniform((*self.preprocess, *self.augment), self.schema)
        return (
            self.augment
            if needed is None
            else self.augment[: max(0, needed - len(self.preprocess))]
        )

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
        return line + (
            " ⇒ device:" + "+".join(op.name for op in self.device_ops) if self.device_ops else ""
        )

    @property
    def autotunes(self) -> bool:
        return self.graph_rewrites or any(
            step.parallel.is_autotuned
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
        """How sequences are batched by their lengths; None if they are not."""
        for step in self.steps:
            if isinstance(step, Gather | BucketBatch):
                return step.batching
        return None

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
    schema = spec.schema
    encoding, predicts_number = schema.input.encoding, schema.predicts_number
    columns = schema.table_input is not None
    problems = [
        *find_config_problems(config, spec.ops, batch_size=spec.batch_size),
        *find_variable_size_problems(config, spec.ops_to_uniform_shape),
        *find_data_problems(
            config,
            encoding,
            spec.ops,
            windows=spec.window is not None,
            predicts_number=predicts_number,
            columns=columns,
        ),
        *find_ops_problems(encoding, spec.ops, predicts_number=predicts_number, columns=columns),
    ]
    if problems:
        raise ImpossiblePlan("; ".join(problems))
    output_shape([op for _, op in spec.ops], schema, spec.window)
    device_ops = tuple(
        op for op in spec.postprocess if config.postprocess_on == "device" and not op.on_labels
    )
    after_preprocess = (*spec.augment, *(op for op in spec.postprocess if op not in device_ops))
    return Plan(
        spec=spec,
        steps=tuple(_steps(config, spec, after_preprocess)),
        device_ops=device_ops,
        deterministic=config.deterministic,
        graph_rewrites=config.graph_rewrites,
        threads=config.threads,
        approximate=config.decode.approximate
        and config.read != "snapshot"
        and any(isinstance(op, DecodeImage) for op in resolve_decode(spec.preprocess, spec.schema)),
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


def _steps(config: PipelineConfig, spec: InputSpec, after_preprocess: Ops) -> list[Step]:
    if config.read == "snapshot":
        return _snapshot_steps(config, spec, after_preprocess)
    if config.read == "indexed_shards":
        return _indexed_shard_steps(config, spec, after_preprocess)
    return _stream_steps(config.read, config, spec, after_preprocess)


def _snapshot_steps(config: PipelineConfig, spec: InputSpec, after_preprocess: Ops) -> list[Step]:
    """Lay out a gather of rows whose numbers are computed, so that no shuffle buffer is needed."""
    whole = config.snapshot.fraction == 1
    stored = (Parse.of(spec.schema), *resolve_decode(spec.preprocess, spec.schema))
    gather = Gather(
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
        decoding=() if whole else stored,
    )
    return [gather, *_prefetch(config)]


def _indexed_shard_steps(
    config: PipelineConfig, spec: InputSpec, after_preprocess: Ops
) -> list[Step]:
    """Lay out the steps of a stream whose records already arrive in the epoch's order."""
    preprocess = _preprocess(config, spec)
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
    steps: list[Step] = [read, _map(config, example_ops)]
    if example_ops:
        steps.append(Batch(size=spec.batch_size))
    steps.append(_map(config, batch_ops))
    return [*_number_ops(steps, first_op_position=-len(preprocess)), *_prefetch(config)]


def _stream_steps(
    source: StreamSource, config: PipelineConfig, spec: InputSpec, after_preprocess: Ops
) -> list[Step]:
    """Lay out a pipeline that streams its examples, in the order in which they pass through it."""
    ops = preprocess = _preprocess(config, spec)
    # The number of ops that see images of variable size, which cannot be batched.
    variable = ops_until_uniform(preprocess + after_preprocess, spec.schema) or 0

    # No shuffle buffer is large enough, so the order of shards changes each epoch, too. Windows,
    # however, need the stored order.
    shuffle_files = config.shuffle.kind == "buffer" and source == "shards" and spec.window is None
    steps: list[Step] = [
        Read(source=source, interleave=config.interleave, shuffle_files=shuffle_files)
    ]

    if config.cache:  # costly work whose result is the same in every epoch
        cached, ops = _split_after(ops, config.cache.after)
        steps += [_map(config, cached), Cache(where=config.cache.where)]

    # After the cache, which holds every example once. Labels must be parsed first.
    if config.sampling != "uniform":
        labeled, ops = (
            (ops[:0], ops) if config.cache or source in ("files", "arrays") else (ops[:1], ops[1:])
        )
        steps += [_map(config, labeled), SampleByClass(sampling=config.sampling)]

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
    # Last, so that everything overlaps with training.
    return [*_number_ops(steps, first_op_position=-len(preprocess)), *_prefetch(config)]


def _prefetch(config: PipelineConfig) -> list[Step]:
    return [] if config.prefetch == "none" else [Prefetch(batches=config.prefetch)]


def _preprocess(config: PipelineConfig, spec: InputSpec) -> Ops:
    """Return the ops that turn what is read into what a snapshot stores."""
    opening: dict[str, Ops] = {"files": (Load(feature=spec.schema.input.name),), "arrays": ()}
    opened = opening.get(config.read, (Parse.of(spec.schema),))
    return opened + resolve_decode(spec.preprocess, spec.schema, config)


def _map(config: PipelineConfig, ops: Ops) -> Map:
    return Map(ops=ops, parallel=Parallelism(config.map.parallel), first_op_position=0)


def _split_after(ops: Ops, name: str) -> tuple[Ops, Ops]:
    """Split ops after the one of this name, or at the end for `preprocess` or a fused crop."""
    end = next((index + 1 for index, op in enumerate(ops) if op.name == name), len(ops))
    return ops[:end], ops[end:]


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


def _number_ops(steps: Sequence[Step], *, first_op_position: int) -> list[Step]:
    """Drop empty maps, and number the ops of the others from `first_op_position`."""
    numbered: list[Step] = []
    position = first_op_position
    for step in steps:
        if not isinstance(step, Map):
            numbered.append(step)
        elif step.ops:
            numbered.append(replace(step, first_op_position=position))
            position += len(step.ops)
    return numbered
