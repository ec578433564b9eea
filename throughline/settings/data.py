"""Where the data come from and how they are prepared: sections `data`, `shard`, `snapshot` and
`window` of params.yaml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from throughline.settings.base import (
    BY_NAME,
    MAPPING,
    WORD,
    WORD_OR_MAPPING,
    Fraction,
    Settings,
)
from throughline.settings.records import RecordSettings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.data_url import is_address, to_store_url
from throughline.shared.errors import did_you_mean


def _known_source(name: Any) -> str:
    if not isinstance(name, str) or name not in SOURCES:
        hint = did_you_mean(str(name), list(SOURCES))
        raise ValueError(f"found {name}, which is not a kind of input; {hint}")
    return name


def _known_layout(layout: Any) -> str:
    parts = str(layout).split("/")
    known = {"split", "class", "*", "**"}
    wrong = (
        not {"split", "class"}.intersection(parts)
        or set(parts) - known
        or any(parts.count(each) > 1 for each in ("split", "class"))
        or "**" in parts[:-1]
    )
    if layout != "auto" and wrong:
        raise ValueError(
            f"found {layout}; it is auto, or the parts of a path: split and class, each at most"
            " once, * for any folder, and ** at the end, as in split/class, class/split or class/**"
        )
    return str(layout)


SourceName = Annotated[str, PlainValidator(_known_source), WithJsonSchema({"enum": list(SOURCES)})]
Filling = Literal["reject", "median", "category"]
StoredFraction = Annotated[
    Annotated[Literal["auto"], Tag("literal")] | Annotated[Fraction, Tag("constrained")],
    Discriminator(lambda value: "literal" if isinstance(value, str) else "constrained"),
]
Missing = Annotated[
    Annotated[Filling, WORD] | Annotated[dict[str, Filling], BY_NAME, MAPPING], WORD_OR_MAPPING
]


LabelColumns = Annotated[
    Annotated[str, Tag("literal")] | Annotated[list[str], Field(min_length=1), Tag("constrained")],
    Discriminator(lambda value: "constrained" if isinstance(value, list) else "literal"),
]


class SplitSettings(Settings):
    """How examples are assigned to splits where the source itself does not: by content alone."""

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
        default=0, ge=0, description="another seed gives another, equally stable, split"
    )


class DataSettings(Settings):
    """Where the examples come from and what is refused."""

    fetch: Literal["none", "fashion_mnist", "photos", "mails"] = Field(
        default="none",
        description="a known dataset that the first stage gets and puts into data/raw/NAME",
    )
    source: SourceName = Field(
        description="kind of input; one file each in throughline/data/sources/"
    )
    path: str = Field(
        description=(
            "folder or file that holds the source, or s3://BUCKET/PREFIX (gs://, azure://); a DVC"
            " dependency of ingest"
        )
    )

    @field_validator("path")
    @classmethod
    def _is_here_or_in_a_bucket(cls, path: str) -> str:
        if is_address(path):
            to_store_url(path)
        return path

    layout: Annotated[str, PlainValidator(_known_layout), WithJsonSchema({"type": "string"})] = (
        Field(
            default="auto",
            description=(
                "image_folder, text_folder: what each part of a file's path says, such as"
                " split/class, class/split, class or split; * is any folder, ** all further ones;"
                " auto: splits where all folders of a level are named as such, else classes;"
                " text_lines: `class`, where the names of its files say no split"
            ),
        )
    )
    leave_out: list[str] = Field(
        default=[],
        description=(
            "folders, by name or path, and classes that are left out; how many examples that are"
            " is said"
        ),
    )
    same_labels: Literal["exact", "ignore_case", "ignore_marks"] = Field(
        default="exact",
        description=(
            "which names of classes are one: those that are equal, but for case, or but for case,"
            " blanks, dashes and a final stop; the most frequent spelling is the name"
        ),
    )
    path_column: str = Field(
        default="path",
        description="image_table: column with the image's path, relative to the table's folder",
    )
    label_column: LabelColumns = Field(
        default="label",
        description=(
            "tables, text_lines: column with the class, or the number to predict; [a, b]: with the"
            " numbers to predict"
        ),
    )

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Names of the columns with labels."""
        named = self.label_column
        return (named,) if isinstance(named, str) else tuple(named)

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The columns that texts bring along: those that the model sees as well, and the numbers to
        predict.
        """
        label = self.label_columns if self.label_kind == "number" else ()
        return (*self.numeric, *self.categorical, *label)

    text_column: str = Field(
        default="text", description="text_table, text_lines: column (JSON: key) with the text"
    )
    encoding: str = Field(
        default="utf-8", description="texts, CSV: encoding, kept as UTF-8 from then on"
    )
    delimiter: Literal["auto", ",", ";", "tab", "|"] = Field(
        default="auto",
        description="CSV: what divides cells; auto: what divides the header and most lines alike",
    )
    decimal: Literal["auto", ".", ","] = Field(
        default="auto",
        description=(
            "CSV: what divides a number's fraction; auto: a comma where numbers have one and none"
            " has a point; refused where it may divide thousands"
        ),
    )
    quoting: Literal["auto", "multi_line", "none"] = Field(
        default="auto",
        description=(
            "CSV: none: quotes are ordinary characters · multi_line: quoted cells may hold line"
            " breaks · auto: only texts may, unless the lines read as rows"
        ),
    )
    missing_values: list[str] = Field(
        default=[],
        description=(
            "tables, series, JSON lines: cells, or values, that mean missing besides the empty one,"
            " such as NA"
        ),
    )
    missing: Missing = Field(
        default="reject",
        description=(
            "tables: rows with an empty cell. reject: left out · category: kept, empty categories"
            " are one of their own · median: as category, and an empty number is the median of the"
            " training split · {column: …, …}: for these columns, all others reject"
        ),
    )

    def missing_in(self, column: str) -> Filling:
        """What `missing` says of a column."""
        if isinstance(self.missing, dict):
            return self.missing.get(column, "reject")
        return self.missing

    max_bytes: int = Field(
        default=50_000_000, ge=1, description="a text with more bytes is rejected, a file unread"
    )
    label_kind: Literal["auto", "class", "number", "none"] = Field(
        default="auto",
        description=(
            "tables: whether the label is a class or a number to predict; auto: text, booleans and"
            " whole numbers of few values are classes, of images and texts all · texts: none, of"
            " documents without classes"
        ),
    )
    numeric: list[str] = Field(
        default=[],
        description=(
            "table, time_series: numeric columns; empty: those in which most cells are numbers ·"
            " image_table, text_table, text_lines: those that the model sees next to image or text"
        ),
    )
    categorical: list[str] = Field(
        default=[],
        description=(
            "table: columns of categories; empty: all other columns · image_table, text_table,"
            " text_lines: those that the model sees next to image or text"
        ),
    )
    ignore: list[str] = Field(
        default=[],
        description="table, time_series: columns to leave out, such as ids, dates and free text",
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

    target_size_mib: float = Field(
        default=128,
        gt=0,
        description=(
            "size that shards have at most, about [MiB]; where they would exceed it, their number"
            " doubles"
        ),
    )
    min_shards: int = Field(
        default=8,
        ge=1,
        le=10_000,
        description=(
            "so many per split, or more for large data, so that small data still reads in parallel"
        ),
    )
    compression: Literal["none", "gzip"] = Field(
        default="none",
        description=(
            "gzip: less disk for text and floats, not for JPEG; every epoch unpacks it; compare"
            " with a run of --set shard.compression=gzip"
        ),
    )
    writers: int = Field(
        default=4,
        ge=1,
        le=256,
        description="threads that write shards; any number gives the same bytes",
    )


class EngineSettings(Settings):
    """Who inspects files and writes shards and the snapshot; any engine gives the same bytes."""

    address: str = Field(
        default="",
        pattern=r"^((tcp|tls)://\S+:[0-9]+)?$",
        description=(
            "scheduler of a Dask cluster that does it, such as tcp://scheduler:8786; empty: threads"
            " of the stages, or `workers`"
        ),
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Dask workers that each of these stages starts on its machine; 0: none",
    )

    @model_validator(mode="after")
    def _one_engine(self) -> EngineSettings:
        if self.address and self.workers:
            raise ValueError("address names a cluster that runs, workers starts one: give one")
        return self


class SnapshotSettings(Settings):
    """What the snapshot holds, and what happens when a shard is damaged while it is written."""

    fraction: StoredFraction = Field(
        default="auto",
        description=(
            "images: share of each split's rows, the first, whose preprocessed values are stored;"
            " auto: the most that a configuration reads; all, if none reads any"
        ),
    )
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

    @property
    def stored_fraction(self) -> float:
        """`fraction` as a number: all, where no configuration has said less."""
        return 1.0 if isinstance(self.fraction, str) else self.fraction


class WindowSettings(Settings):
    """Windows over a time series (`length`, `horizon`, `stride`, `targets`) or over text
    (`tokens`): what the model sees and what it is to predict. They never cross from one split into
    another. With other data, values other than the defaults are refused.
    """

    length: int = Field(default=24, ge=1, description="time steps the model sees")
    horizon: int = Field(default=1, ge=1, description="time steps after them that it predicts")
    stride: int = Field(
        default=1, ge=1, description="time steps between the beginnings of neighboring windows"
    )
    targets: list[str] = Field(default=[], description="columns to predict; empty: all")
    tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        default=None,
        description=(
            "text: predict each next token, in windows of so many of all documents in a row;"
            " absent: the class of each document"
        ),
    )
