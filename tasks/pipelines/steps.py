"""The steps that a plan is made of: frozen values, each with the key of params.yaml that it comes from. Pure; no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.pipelines.ops import Op
from tasks.settings import Interleave, Sample, Service, Shuffle

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
    """Deliver whole batches of preprocessed examples by their indices, from the mapped columns of the snapshot, and run `ops` on them.

    The first `alone` of the ops run on one example at a time, before they are batched.
    """

    shuffle: Shuffle
    sample: Sample
    batch_size: int
    place: Literal["host", "device"]
    windows: Windows | None
    ops: tuple[Op, ...]
    alone: int
    parallel: str | int
    key: str = "read"

    def __str__(self) -> str:
        orders = {"none": "in order", "global": "global shuffle", "window": f"shuffle within {self.shuffle.size}", "buffer": "buffer"}
        drawn = "" if self.sample.kind == "all" else f",{self.sample.kind}"
        what = f"{self.windows} of " if self.windows else ""
        where = "device" if self.place == "device" else "snapshot"
        ops = "".join(f"+{op.name}{' each' if number < self.alone else ''}" for number, op in enumerate(self.ops))
        calls = "" if self.parallel == "none" else f"[{self.parallel}]"
        return f"gather:{what}{where}[{orders[self.shuffle.kind]}{drawn},{self.batch_size}]{ops}{calls}"


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Run consecutive ops in one map; `first` is the position in `augment` of the first of them, negative for ops before."""

    ops: tuple[Op, ...]
    parallel: str | int
    first: int
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


def mixed_together(size: str | int, *, examples: int) -> int:
    """How many examples a shuffle mixes with each other."""
    return max(1, examples // AUTO_SHARE) if isinstance(size, str) else min(size, examples)
