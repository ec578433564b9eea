"""One input-pipeline configuration: an entry of `pipelines` in params.yaml."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from throughline.settings.base import (
    Fraction,
    OrMapping,
    Settings,
    WeightByClass,
    word_or_count,
)

Parallel = Annotated[str | int, *word_or_count("none", "auto", "cores")]
PrefetchSize = Annotated[str | int, *word_or_count("none", "auto")]
ThreadPool = Annotated[str | int, *word_or_count("shared")]
Sampling = OrMapping[Literal["uniform", "balanced"], WeightByClass]
ShuffleSize = Annotated[str | int, *word_or_count("auto")]


def _check_boundaries(value: Any) -> str | tuple[int, ...] | None:
    if value is None or value == "auto":
        return value
    if isinstance(value, list | tuple) and value and all(type(one) is int for one in value):
        boundaries = tuple(value)
        if boundaries[0] >= 1 and boundaries == tuple(sorted({*boundaries})):
            return boundaries
    raise ValueError(f"expected auto or increasing lengths, as in [64, 128, 256]; found {value!r}")


Boundaries = Annotated[str | tuple[int, ...] | None, PlainValidator(_check_boundaries)]
Tokens = Annotated[int, Field(ge=1, le=1 << 30)]


class BatchSettings(Settings):
    """Batches of texts by their length: `pad_to`, `tokens` or `pack`; absent: padded to the longest
    text of each batch.
    """

    pad_to: Boundaries = None
    """length buckets, such as `[64, 128, 256]`: each batch holds `batch_size` sequences of one
    bucket, padded to its boundary [tokens]; auto: 32, 64, 128 … up to the longest
    """
    tokens: Tokens | None = None
    """tokens per batch at most, padding included, instead of `batch_size` sequences: the shorter
    the sequences, the more of them; in the buckets of `pad_to`, or those of auto
    """
    pack: Tokens | None = None
    """needs `read: snapshot` · several documents in each of `batch_size` rows of this many tokens,
    with segment ids and positions, which the model must respect (transformer_encoder)
    """


class InterleaveSettings(Settings):
    """Interleaving of several shards."""

    cycle_length: int = Field(default=4, ge=1)
    """shards open at once"""
    block_length: int = Field(default=16, ge=1)
    """consecutive records taken from one shard"""
    parallel: Parallel = "none"
    """parallel readers: none, auto (AUTOTUNE), cores or a number"""


class MapSettings(Settings):
    """Calls of the functions for examples or batches."""

    parallel: Parallel = "none"
    """parallel calls: none, auto (AUTOTUNE), cores or a number"""


class CacheSettings(Settings):
    """A cache of the first epoch's elements for later epochs."""

    where: Literal["memory", "disk", "tf_snapshot", "save_load"] = "memory"
    """memory or disk: tf.data's cache · tf_snapshot: Dataset.snapshot · save_load: Dataset.save,
    then load
    """
    after: str = "preprocess"
    """name of the preprocess op whose results are kept; preprocess: of the last one"""


class ShuffleSettings(Settings):
    """The order of training examples within an epoch."""

    kind: Literal["none", "buffer", "window", "lanes", "global"] = "buffer"
    """none: order of the shards · buffer: shards in random order, and random draws from a buffer ·
    with a snapshot or indexed shards, window: chunks of rows in random order, mixed within a
    window, for data larger than memory · lanes: equally many rows of each of `lanes` parts in every
    batch, so that a host reads only its own parts · global: a true permutation
    """
    size: ShuffleSize = "auto"
    """buffer, window: examples mixed with each other; auto: a twentieth of the split, since filling
    a buffer takes time; with `prefetch`, two buffers are in memory, this epoch's and the next one's
    """
    lanes: int | None = Field(default=None, ge=2)
    """lanes: number of contiguous parts of the rows; a multiple of the number of processes and a
    divisor of the batch size
    """


class JpegDecoding(Settings):
    """Decoding of JPEG. Values other than the defaults change the pixels; the difference is
    measured and shown.
    """

    dct: Literal["fast", "accurate"] = "fast"
    """inverse transform: the fast integer one, TensorFlow's default, or the accurate one"""
    ratio: Literal[1, 2, 4, 8] = 1
    """shrink to 1/ratio of the size while decoding"""
    crop: Literal["after", "fused"] = "after"
    """fused: a center_crop right after decode is done while decoding, which skips the rest of the
    image
    """

    @property
    def approximate(self) -> bool:
        """Whether pixels may differ from TensorFlow's defaults; by a fused crop, only at edges."""
        return self != JpegDecoding()


class SnapshotPart(Settings):
    """The part of the snapshot that is read. The other examples are decoded from the shards through
    their index, in the same order.
    """

    fraction: Fraction = 1.0
    """images: share of each split's rows, from the first, that is read from the snapshot"""


class ServiceSettings(Settings):
    """The tf.data service: reading and mapping in separate processes."""

    workers: int = Field(default=2, ge=1, le=64)
    """local worker processes, started and stopped with the stage; not used with `address`"""
    address: str = ""
    """grpc://host:port of a running dispatcher to join instead"""
    sharding: Literal["off", "dynamic", "static"] = "static"
    """off: every worker delivers all examples · dynamic: first come, first served; at most once if
    a worker dies · static: each worker its own files; every example exactly once
    """

    @property
    def on_this_host(self) -> bool:
        """Whether the workers share the cores of the training, as far as the address tells."""
        host = self.address.removeprefix("grpc://").rpartition(":")[0]
        return host in ("", "localhost", "[::1]") or host.startswith("127.")


class PipelineConfig(Settings):
    """One input-pipeline configuration: how the same examples get from disk to the accelerator."""

    read: Literal["files", "arrays", "shards", "indexed_shards", "snapshot"] = "shards"
    """files: the original image files · arrays: all records of the split in memory · shards:
    TFRecord · indexed_shards: TFRecord in any order, through an index of offsets · snapshot: mapped
    columns of preprocessed examples
    """
    snapshot: SnapshotPart = SnapshotPart()
    """how much of the snapshot is read; absent: all"""
    interleave: InterleaveSettings | None = None
    """interleave several shards; absent: one after another"""
    map: MapSettings = MapSettings()
    decode: JpegDecoding = JpegDecoding()
    vectorize: bool = False
    """batch as early as the ops allow and map whole batches"""
    cache: CacheSettings | None = None
    """keep preprocessed elements; absent: do the work again each epoch"""
    sampling: Sampling = "uniform"
    """how often the examples of each class are drawn; an epoch keeps its length. uniform: every
    example once · balanced: every class equally often · {class: weight, …}: classes in proportion
    to these weights; a class that is not named has 1
    """
    shuffle: ShuffleSettings = ShuffleSettings()
    batch: BatchSettings | None = None
    """text: batches by its length"""
    prefetch: PrefetchSize = "none"
    """batches prepared ahead of the accelerator: none, auto (AUTOTUNE) or a number; a stream then
    opens its next epoch ahead, too
    """
    deterministic: bool = True
    """keep the order of elements whatever the timing of parallel calls"""
    postprocess_on: Literal["host", "device"] = "host"
    """where the `postprocess` ops run; device: the stored values go to the accelerator"""
    snapshot_on: Literal["host", "device"] = "host"
    """device: the snapshot's training split is in the accelerator's memory, and the train step
    gathers its batches there
    """
    service: ServiceSettings | None = None
    """prepare batches in tf.data service workers; absent: in this process"""
    threads: ThreadPool = "shared"
    """threads of tf.data: shared with the rest of TensorFlow, or a private pool of this many"""
    graph_rewrites: bool = False
    """let tf.data rewrite the graph (inject prefetch, parallelize, fuse), its default"""

    @property
    def remote_address(self) -> str:
        """Address of a tf.data service that the program does not start; empty if there is none."""
        return self.service.address if self.service else ""
