"""The sections of params.yaml as frozen values: every field has a type, a default, bounds and a
description with its unit.

Pure declarations: `tasks.params` loads and cross-checks them, the stages receive the sections they
need, the Prefect form and docs/configurations.md are generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)

from tasks.batch_settings import BatchSettings
from tasks.errors import did_you_mean
from tasks.record_settings import RecordSettings
from tasks.source_kinds import SOURCES


def _known_source(name: Any) -> str:
    if not isinstance(name, str) or name not in SOURCES:
        hint = did_you_mean(str(name), list(SOURCES))
        raise ValueError(f"found {name}, which is not a kind of input; {hint}")
    return name


def _word_or_count(*words: str) -> PlainValidator:
    """Check a field that is one of a few words or a whole number from 1, with one plain message for
    anything else.
    """

    def check(value: Any) -> str | int:
        if value in words or (type(value) is int and value >= 1):
            return value
        raise ValueError(f"expected {', '.join(words)} or a whole number from 1; found {value!r}")

    return PlainValidator(check)


def _json_word_or_count(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"enum": list(words)}, {"type": "integer", "minimum": 1}]})


SourceName = Annotated[str, PlainValidator(_known_source), WithJsonSchema({"enum": list(SOURCES)})]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Parallel = Annotated[
    str | int, _word_or_count("none", "auto", "cores"), _json_word_or_count("none", "auto", "cores")
]
PrefetchSize = Annotated[
    str | int, _word_or_count("none", "auto"), _json_word_or_count("none", "auto")
]
ThreadPool = Annotated[str | int, _word_or_count("shared"), _json_word_or_count("shared")]
# So that a problem is said once.
Sampling = Annotated[
    Annotated[Literal["uniform", "balanced"], Tag("literal")]
    | Annotated[dict[str, Annotated[float, Field(ge=0)]], Tag("constrained")],
    Discriminator(lambda value: "constrained" if isinstance(value, dict) else "literal"),
]
ShuffleSize = Annotated[str | int, _word_or_count("auto"), _json_word_or_count("auto")]
_PERIOD = r"[1-9][0-9]* (epochs?|steps?)"


class Settings(BaseModel):
    """A section of params.yaml: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SplitSettings(Settings):
    """How examples are dealt to splits where the source itself does not say: by content alone."""

    validation: Fraction = Field(
        default=0.1, description="share of the training examples held out for validation"
    )
    test: Fraction = Field(
        default=0.1,
        description=(
            "share held out for the final test; unused where the source brings its own test split"
        ),
    )
    seed: int = Field(
        default=0, ge=0, description="another seed deals another, equally stable, split"
    )


class DataSettings(Settings):
    """Where the examples come from and what is refused."""

    fetch: Literal["none", "fashion_mnist", "photos", "mails"] = Field(
        default="none",
        description="a known data set that the first stage gets and puts into data/raw/NAME",
    )
    source: SourceName = Field(description="kind of input; one file each in tasks/data/sources/")
    path: str = Field(
        description="folder or file that holds the source; a DVC dependency of ingest"
    )
    path_column: str = Field(
        default="path",
        description="image_table: column with the image's path, relative to the table's folder",
    )
    label_column: str = Field(
        default="label",
        description="tables, text_lines: column with the class, or the number to predict",
    )
    text_column: str = Field(
        default="text", description="text_table, text_lines: column (JSON: key) with the text"
    )
    encoding: str = Field(
        default="utf-8", description="texts: encoding, kept as UTF-8 from then on"
    )
    max_bytes: int = Field(
        default=50_000_000, ge=1, description="a text with more bytes is rejected, a file unread"
    )
    label_kind: Literal["auto", "class", "number"] = Field(
        default="auto",
        description=(
            "table: whether the label is a class or a number to predict; auto: text, booleans and"
            " whole numbers are classes"
        ),
    )
    numeric: list[str] = Field(
        default=[],
        description="table, time_series: numeric columns; none named: every numeric column",
    )
    categorical: list[str] = Field(
        default=[], description="table: columns of categories; none named: every column of text"
    )
    features: str = Field(
        default="x",
        description="arrays: name of the array (examples, height, width[, channels]) uint8",
    )
    labels: str = Field(
        default="y",
        description="arrays: name of the array (examples,) of integer or string classes",
    )
    time_column: str = Field(
        default="",
        description="time_series: column that increases from row to row; empty: as rows stand",
    )
    max_reject_fraction: Fraction = Field(
        default=0.01, description="share of examples that may be rejected before ingest stops"
    )
    max_pixels: int = Field(
        default=50_000_000,
        ge=1,
        description="an image with more pixels is rejected from its header, undecoded",
    )
    duplicates: Literal["reject", "keep"] = Field(
        default="reject",
        description="examples with the same bytes: the first only, or all, within one split",
    )
    records: RecordSettings = RecordSettings()
    split: SplitSettings = SplitSettings()


class ShardSettings(Settings):
    """How TFRecord shards are cut and written."""

    target_size_mib: float = Field(default=128, gt=0, description="size to aim at per shard [MiB]")
    min_shards: int = Field(
        default=8,
        ge=1,
        le=10_000,
        description="at least so many per split, so that small data still reads in parallel",
    )
    compression: Literal["none", "gzip", "both"] = Field(
        default="none",
        description=(
            "GZIP pays for text and floats, not for JPEG; both keeps two sets, so that"
            " configurations can compare them"
        ),
    )
    writers: int = Field(
        default=4,
        ge=1,
        le=256,
        description="threads that write shards; any number gives the same bytes",
    )


class SnapshotSettings(Settings):
    """What happens when a shard is damaged while the snapshot is written."""

    on_corrupt: Literal["fail", "skip"] = Field(
        default="fail",
        description=(
            "fail: stop and name it · skip: leave damaged records out, in every configuration, and"
            " say so"
        ),
    )
    max_corrupt_fraction: Fraction = Field(
        default=0.001,
        description="skip: share of the examples that may be left out before it stops all the same",
    )


class WindowSettings(Settings):
    """Windows over a time series: what the model sees and what it is to predict. They never cross
    from one split into another.
    """

    length: int = Field(default=24, ge=1, description="time steps the model sees")
    horizon: int = Field(default=1, ge=1, description="time steps after them that it predicts")
    stride: int = Field(
        default=1, ge=1, description="time steps between the beginnings of neighboring windows"
    )
    targets: list[str] = Field(default=[], description="columns to predict; none named: all")


class InterleaveSettings(Settings):
    """Reading several shards interleaved."""

    cycle_length: int = Field(default=4, ge=1, description="shards open at once")
    block_length: int = Field(
        default=16, ge=1, description="consecutive records taken from one shard"
    )
    parallel: Parallel = Field(
        default="none", description="readers at work at once: none, auto, cores or a number"
    )


class MapSettings(Settings):
    """Running the per-example or per-batch functions."""

    parallel: Parallel = Field(
        default="none", description="calls at work at once: none, auto, cores or a number"
    )


class CacheSettings(Settings):
    """Keeping elements of the first epoch for the later ones."""

    where: Literal["memory", "disk", "tf_snapshot", "save_load"] = Field(
        default="memory",
        description=(
            "memory or disk: tf.data's cache · tf_snapshot: Dataset.snapshot · save_load:"
            " Dataset.save, then load"
        ),
    )
    after: str = Field(
        default="preprocess",
        description=(
            "what is kept: results of the preprocess op of this name; preprocess: of the last one"
        ),
    )


class ShuffleSettings(Settings):
    """The order of training examples within an epoch."""

    kind: Literal["none", "buffer", "window", "global"] = Field(
        default="buffer",
        description=(
            "none: order of the shards · buffer: shards in random order, and random draw from a"
            " buffer · of a snapshot or indexed shards, window: chunks of rows in random order,"
            " mixed within a window, for data beyond memory · global: a true permutation"
        ),
    )
    size: ShuffleSize = Field(
        default="auto",
        description=(
            "buffer, window: examples mixed with each other; auto: a twentieth of the split, since"
            " filling a buffer takes time; with `prefetch`, two buffers are in memory, this epoch's"
            " and the next one's"
        ),
    )


class JpegDecoding(Settings):
    """How JPEG is decoded. Anything but the defaults gives other pixels than the rest; the
    difference is measured and shown.
    """

    dct: Literal["fast", "accurate"] = Field(
        default="fast",
        description=(
            "inverse transform: the fast integer one, TensorFlow's default, or the accurate one"
        ),
    )
    scale: Literal[1, 2, 4, 8] = Field(
        default=1, description="decode at 1/scale of the size, while decoding"
    )
    crop: Literal["after", "fused"] = Field(
        default="after",
        description=(
            "fused: a center_crop right after decode is done while decoding, which skips the rest"
            " of the image"
        ),
    )

    @property
    def approximate(self) -> bool:
        """Whether pixels may differ from TensorFlow's own decoding; a fused crop differs at its
        edges.
        """
        return self != JpegDecoding()


class ServiceSettings(Settings):
    """The tf.data service: reading and mapping in processes of their own."""

    workers: int = Field(
        default=2,
        ge=1,
        le=64,
        description=(
            "local worker processes, started and stopped with the stage; not used with `address`"
        ),
    )
    address: str = Field(
        default="", description="grpc://host:port of a running dispatcher to join instead"
    )
    sharding: Literal["off", "dynamic", "static"] = Field(
        default="static",
        description=(
            "off: every worker delivers all examples · dynamic: first come, first served; at most"
            " once if a worker dies · static: each worker its own files; every example exactly once"
        ),
    )

    @property
    def on_this_host(self) -> bool:
        """Whether its workers share the cores of the training, as far as the address tells."""
        host = self.address.removeprefix("grpc://").rpartition(":")[0]
        return host in ("", "localhost", "[::1]") or host.startswith("127.")


class PipelineConfig(Settings):
    """One input-pipeline configuration: how the same examples get from disk to the accelerator."""

    read: Literal["files", "arrays", "shards", "gzip_shards", "indexed_shards", "snapshot"] = Field(
        default="shards",
        description=(
            "files: the original image files · arrays: all records of the split in memory · shards:"
            " TFRecord · gzip_shards: compressed TFRecord · indexed_shards: TFRecord in any order,"
            " through an index of offsets · snapshot: mapped columns of preprocessed examples"
        ),
    )
    interleave: InterleaveSettings | None = Field(
        default=None, description="interleave several shards; absent: one after another"
    )
    map: MapSettings = MapSettings()
    decode: JpegDecoding = JpegDecoding()
    vectorize: bool = Field(
        default=False, description="batch as early as the ops allow and map whole batches"
    )
    cache: CacheSettings | None = Field(
        default=None, description="keep preprocessed elements; absent: do the work again each epoch"
    )
    sampling: Sampling = Field(
        default="uniform",
        description=(
            "how often the examples of each class are drawn; an epoch keeps its length. uniform:"
            " every example once · balanced: every class equally often · {class: weight, …}:"
            " classes in proportion to these weights, a class not named has 1"
        ),
    )
    shuffle: ShuffleSettings = ShuffleSettings()
    batch: BatchSettings | None = Field(default=None, description="text: batches by its length")
    prefetch: PrefetchSize = Field(
        default="none",
        description=(
            "batches prepared ahead of the accelerator: none, auto or a number; a stream then opens"
            " its next epoch ahead, too"
        ),
    )
    deterministic: bool = Field(
        default=True, description="keep the order of elements whatever the timing of parallel calls"
    )
    postprocess_on: Literal["host", "device"] = Field(
        default="host",
        description=(
            "where the `postprocess` ops run: device means that only uint8 crosses to the"
            " accelerator"
        ),
    )
    snapshot_on: Literal["host", "device"] = Field(
        default="host",
        description=(
            "device: the snapshot's training split lives in the accelerator's memory and is"
            " gathered in the train step"
        ),
    )
    service: ServiceSettings | None = Field(
        default=None,
        description="prepare batches in tf.data service workers; absent: in this process",
    )
    threads: ThreadPool = Field(
        default="shared",
        description=(
            "threads of tf.data: shared with the rest of TensorFlow, or a private pool of so many"
        ),
    )
    graph_rewrites: bool = Field(
        default=False,
        description=(
            "let tf.data rewrite the graph (inject prefetch, parallelize, fuse), its default"
        ),
    )


class ModelSettings(Settings):
    """What is trained."""

    name: str = Field(
        default="auto",
        description=(
            "auto (fits the data: small_cnn, mlp or, for text, text_classifier), one of these,"
            " transformer_encoder (text), emulated (no accelerator: `options: {step_ms: 58}`),"
            " a keras.applications name, or package.module:function of your own"
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments for the builder"
    )


class TrainSettings(Settings):
    """How it is trained."""

    epochs: int = Field(default=2, ge=1, description="passes over the training split")
    learning_rate: float = Field(default=1e-3, gt=0, description="initial rate of Adam")
    schedule: Literal["constant", "cosine"] = Field(
        default="cosine", description="constant, or cosine decay to zero over all epochs"
    )
    seed: int = Field(default=0, ge=0, description="of weights, order and augmentation")
    deterministic: bool = Field(
        default=False, description="bit-for-bit repeatable kernels; slower on a GPU"
    )
    mixed_precision: bool = Field(
        default=False, description="compute in float16/bfloat16 where the accelerator gains from it"
    )
    jit_compile: bool = Field(
        default=False, description="compile the train step with XLA; pays on GPUs, rarely on CPUs"
    )
    steps_per_execution: int = Field(
        default=1, ge=1, description="train steps per call into the runtime"
    )
    checkpoint_every: Annotated[str, Field(pattern=f"^{_PERIOD}$")] = Field(
        default="1 epoch",
        description=(
            "`N epochs` or `N steps` between checkpoints that an interrupted training goes on from;"
            " within an epoch only configurations that can seek (read: snapshot)"
        ),
    )

    @property
    def checkpoint_period(self) -> tuple[int, Literal["epochs", "steps"]]:
        """`checkpoint_every` as a number and its unit."""
        count, unit = self.checkpoint_every.split()
        return int(count), "steps" if unit.startswith("step") else "epochs"


class MeasureSettings(Settings):
    """How throughput is measured and traced."""

    max_seconds: float = Field(
        default=2.0, gt=0, description="bound on each throughput measurement [s]"
    )
    passes: int = Field(
        default=3,
        ge=1,
        le=50,
        description="epochs drained for the input-only throughput; the median counts",
    )
    rounds: int = Field(
        default=9,
        ge=1,
        le=50,
        description=(
            "profile: at most so many rounds of the model alone, training from full buffers, and"
            " training from empty ones; fewer where the interval is precise"
        ),
    )
    stall_max_seconds: float = Field(
        default=30.0,
        gt=0,
        description=(
            "profile: bound on the time of these rounds, but for the first three [s]; a stall not"
            " decided by then is said to be so"
        ),
    )
    trace_after: int = Field(
        default=10,
        ge=1,
        description="steps before the traced window opens, so that start-up stays out",
    )
    trace_steps: int = Field(default=20, ge=1, le=1000, description="steps in the traced window")
