"""The steps of a plan: frozen values, each with its key of params.yaml. Pure; no TensorFlow.

A step's `trace_name` is the `name=` of its tf.data transformation, by which traces, timelines and
findings identify it. A new kind of step needs a class here, its place in `plan.py`, and a function
in `dataset.py` that builds it; docs/extending.md has an example.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from throughline.plan.ops import Op
from throughline.settings import (
    BatchSettings,
    InterleaveSettings,
    Sampling,
    ServiceSettings,
    ShuffleSettings,
)
from throughline.shared.limits import usable_cores

AUTO_BUFFER_DIVISOR = 20
AUTOTUNE = -1  # tf.data.AUTOTUNE, without TensorFlow
StreamSource = Literal["files", "arrays", "shards"]


@dataclass(frozen=True)
class Parallelism:
    """Parallel calls or readers: none, auto (AUTOTUNE), cores (one per core) or a number."""

    setting: str | int = "none"

    def __str__(self) -> str:
        return str(self.setting)

    @property
    def is_sequential(self) -> bool:
        return self.setting == "none"

    def num_parallel_calls(self, *, on_host: int = 1, useful: int | None = None) -> int | None:
        """Return tf.data's argument of this name, for one of `on_host` processes that share cores.

        For `cores`, it is at most `useful`, if given.
        """
        cores = max(1, usable_cores() // on_host)
        words = {"none": None, "auto": AUTOTUNE, "cores": min(cores, useful or cores)}
        return words[self.setting] if isinstance(self.setting, str) else self.setting

    def threads(self, cores: int) -> int:
        """Return the number of threads; AUTOTUNE ends up with as many as there are cores."""
        if isinstance(self.setting, int):
            return self.setting
        return 1 if self.is_sequential else cores


class Step(ABC):
    """One transformation of the input pipeline; `params_key` is its field of params.yaml."""

    params_key: ClassVar[str]

    @property
    def trace_name(self) -> str:
        return self.params_key

    @abstractmethod
    def __str__(self) -> str:
        """Return the step as a plan prints it."""


@dataclass(frozen=True, kw_only=True)
class Window(Step):
    """Windows of a series: `length` steps of all columns, then `horizon` steps of `targets`.

    `targets` are indices of columns. No window crosses one of the `cuts`. A cut is a split and the
    number of the time step in it that follows missing ones.
    """

    params_key = "window"
    length: int
    horizon: int
    stride: int
    targets: tuple[int, ...]
    cuts: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"window[{self.length}+{self.horizon},{self.stride}]"

    @property
    def size(self) -> int:
        return self.length + self.horizon

    def cuts_of(self, split: str) -> tuple[int, ...]:
        return tuple(cut for name, cut in self.cuts if name == split)

    def count(self, split: str, steps: int) -> int:
        """Return the number of windows in a split of this many time `steps`."""
        return sum(count for _, count in self.list_runs(split, steps))

    def list_runs(self, split: str, steps: int) -> list[tuple[int, int]]:
        """Return the number of the first window and the count of windows in each part between cuts.

        Window n of a split begins at its time step n × `stride`.
        """
        runs = []
        for begin, end in pairwise([0, *self.cuts_of(split), steps]):
            first = -(-begin // self.stride)
            runs.append((first, max(0, (end - self.size) // self.stride - first + 1)))
        return runs


@dataclass(frozen=True, kw_only=True)
class TokenWindow(Step):
    """All documents of a split, joined and cut into `length` tokens; labels are the next tokens."""

    params_key = "window"
    length: int

    def __str__(self) -> str:
        return f"window[{self.length} tokens]"

    def count(self, tokens: int) -> int:
        """Return the number of windows in a split of this many `tokens`; the rest is dropped."""
        return max(0, (tokens - 1) // self.length)


@dataclass(frozen=True, kw_only=True)
class Read(Step):
    """Deliver file names, records in memory, or records of shards, whose order may be shuffled."""

    params_key = "read"
    source: StreamSource
    interleave: InterleaveSettings | None = None
    shuffle_files: bool = False

    @property
    def parallel(self) -> Parallelism:
        return Parallelism(self.interleave.parallel) if self.interleave else Parallelism()

    @property
    def trace_name(self) -> str:
        return "interleave" if self.interleave else "read"

    def __str__(self) -> str:
        text = f"read:{'shuffled ' if self.shuffle_files else ''}{self.source}"
        if self.interleave is None:
            return text
        cycle = f"{self.interleave.cycle_length}×{self.interleave.block_length}"
        return f"{text}[{cycle},{self.parallel}]"


@dataclass(frozen=True, kw_only=True)
class ReadIndexedShards(Step):
    """Deliver records of uncompressed shards by number, in any order, singly or in batches."""

    params_key = "read"
    trace_name: ClassVar[str] = "records"
    shuffle: ShuffleSettings
    sampling: Sampling
    batch_size: int
    whole_batches: bool
    parallel: Parallelism

    def __str__(self) -> str:
        batches = f",{self.batch_size}" if self.whole_batches else ""
        order = f"{_order(self.shuffle, self.sampling)}{batches}"
        return f"read:indexed_shards[{order}]{_calls(self.parallel)}"


@dataclass(frozen=True, kw_only=True)
class Gather(Step):
    """Deliver whole batches by row number from the snapshot's columns, and run `ops` on them.

    If only the first `fraction` of the rows is read there, the others are decoded from the shards'
    records by the ops of `decoding`. The first `example_op_count` ops run on single examples before
    batching; if they crop a rectangle and flip it, they are part of the fetch.
    """

    params_key = "read"
    trace_name: ClassVar[str] = "gather"
    shuffle: ShuffleSettings
    sampling: Sampling
    batch_size: int
    batching: BatchSettings | None
    on: Literal["host", "device"]
    window: Window | TokenWindow | None
    ops: tuple[Op, ...]
    example_op_count: int
    parallel: Parallelism
    fraction: float = 1.0
    decoding: tuple[Op, ...] = ()

    @property
    def fetched_ops(self) -> tuple[Op, ...]:
        """The ops that are part of the fetch: one that crops, and those that flip its result."""
        first = self.ops[: self.example_op_count]
        fetched = bool(first) and first[0].crops and all(op.flips for op in first[1:])
        return first if fetched else ()

    def __str__(self) -> str:
        what = f"{self.window} of " if self.window else ""
        what += f"{self.fraction:g} of " if self.decoding else ""
        where = "device" if self.on == "device" else "snapshot"
        first = " fetched" if self.fetched_ops else " each"
        ops = "".join(
            f"+{op.name}{first if number < self.example_op_count else ''}"
            for number, op in enumerate(self.ops)
        )
        size = _lengths(self.batching, self.batch_size)
        order = f"{_order(self.shuffle, self.sampling)},{size}"
        rest = "+".join(op.name for op in self.decoding)
        rest = f" (else {rest})" if rest else ""
        return f"gather:{what}{where}{rest}[{order}]{ops}{_calls(self.parallel)}"


@dataclass(frozen=True, kw_only=True)
class Map(Step):
    """Run consecutive ops in one call.

    `first_op_position` is the first op's position in `augment`, negative for ops before it.
    """

    params_key = "map"
    ops: tuple[Op, ...]
    parallel: Parallelism
    first_op_position: int

    @property
    def trace_name(self) -> str:
        return "_".join(op.name for op in self.ops)

    def __str__(self) -> str:
        return "map:" + "+".join(op.name for op in self.ops) + _calls(self.parallel)


@dataclass(frozen=True, kw_only=True)
class SampleByClass(Step):
    """Draw a class by weight (balanced: equal weights), then an example of this class."""

    params_key = "sampling"
    trace_name: ClassVar[str] = "sample"
    sampling: Sampling

    def __str__(self) -> str:
        return f"sample:{_kind(self.sampling)}"


@dataclass(frozen=True, kw_only=True)
class Cache(Step):
    """Keep the elements that arrive here for later epochs."""

    params_key = "cache"
    where: Literal["memory", "disk", "tf_snapshot", "save_load"]

    @property
    def trace_name(self) -> str:
        return self.where if self.where == "tf_snapshot" else f"cache_{self.where}"

    def __str__(self) -> str:
        return f"cache:{self.where}"


@dataclass(frozen=True, kw_only=True)
class Shuffle(Step):
    """Shuffle through a buffer of `size` elements (auto: 1/20 of the split), anew each epoch."""

    params_key = "shuffle"
    size: str | int

    def __str__(self) -> str:
        return f"shuffle[{self.size}]"


@dataclass(frozen=True, kw_only=True)
class Batch(Step):
    """Batch `size` consecutive examples, padding texts; an epoch's last batch may be smaller."""

    params_key = "batch_size"
    trace_name: ClassVar[str] = "batch"
    size: int

    def __str__(self) -> str:
        return f"batch[{self.size}]"


@dataclass(frozen=True, kw_only=True)
class BucketBatch(Step):
    """Batch examples of similar length, with tf.data's bucket_by_sequence_length."""

    params_key = "batch"
    trace_name: ClassVar[str] = "bucket_batch"
    size: int
    batching: BatchSettings

    def __str__(self) -> str:
        return f"bucket_batch[{_lengths(self.batching, self.size)}]"


@dataclass(frozen=True, kw_only=True)
class Service(Step):
    """Run all steps before this one in the tf.data service's workers, then rebatch."""

    params_key = "service"
    settings: ServiceSettings
    batch_size: int

    def __str__(self) -> str:
        return f"service[{self.settings.address or self.settings.workers},{self.settings.sharding}]"


@dataclass(frozen=True, kw_only=True)
class Prefetch(Step):
    """Prepare batches before the consumer asks for them."""

    params_key = "prefetch"
    batches: str | int

    def __str__(self) -> str:
        return f"prefetch[{self.batches}]"


def shuffle_buffer_size(size: str | int, *, examples: int) -> int:
    return max(1, examples // AUTO_BUFFER_DIVISOR) if isinstance(size, str) else min(size, examples)


def count_mixed(shuffle: ShuffleSettings, *, examples: int) -> int:
    if shuffle.kind == "none":
        return 1
    by_buffer = shuffle.kind in ("buffer", "window")
    return shuffle_buffer_size(shuffle.size, examples=examples) if by_buffer else examples


def _order(shuffle: ShuffleSettings, sampling: Sampling) -> str:
    orders = {
        "none": "in order",
        "global": "global shuffle",
        "window": f"shuffle within {shuffle.size}",
        "lanes": f"shuffle of {shuffle.lanes} lanes",
        "buffer": "buffer",
    }
    return orders[shuffle.kind] + ("" if sampling == "uniform" else f",{_kind(sampling)}")


def _calls(parallel: Parallelism) -> str:
    return "" if parallel.is_sequential else f"[{parallel}]"


def _lengths(batching: BatchSettings | None, size: int) -> str:
    if batching is None:
        return str(size)
    if batching.pack:
        return f"{size} rows of {batching.pack}"
    given = batching.pad_to
    buckets = "|".join(map(str, given)) if isinstance(given, tuple) else "auto"
    count = f"{batching.tokens} tokens" if batching.tokens else str(size)
    return f"{count} to {buckets}"


def _kind(sampling: Sampling) -> str:
    return sampling if isinstance(sampling, str) else "weighted"
