"""The source of the data and the rules for rejecting examples: section `data` of params.yaml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from throughline.settings.base import BY_NAME, Fraction, OrMapping, Settings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.data_url import is_address, to_store_url
from throughline.shared.errors import did_you_mean


def _known_source(name: Any) -> str:
    if not isinstance(name, str) or name not in SOURCES:
        hint = did_you_mean(str(name), list(SOURCES))
        raise ValueError(f"found {name}, which is not a kind of input; {hint}")
    return name


def _known_layout(layout: Any) -> str:
    *folders, last = str(layout).split("/")
    parts = (*folders, "class" if "class" in last else last)
    named = sorted(part for part in parts if part not in ("*", "**"))
    known = named in (["class"], ["split"], ["class", "split"]) and "**" not in folders
    if layout != "auto" and not known:
        raise ValueError(
            f"found {layout}; expected auto, or the parts of a path: split, class or both, once, *"
            " for any folder, and ** at the end, as in split/class, class/split or class/**; or, at"
            " the end, the file's name, as in split/class_*.jpg"
        )
    return str(layout)


SourceName = Annotated[str, BeforeValidator(_known_source)]
Layout = Annotated[str, BeforeValidator(_known_layout)]
Filling = Literal["reject", "median", "category", "interpolate", "previous", "cut"]
Missing = OrMapping[Filling, Annotated[dict[str, Filling], BY_NAME]]


def _as_mark(value: Any) -> Any:
    """Return a mark of missing cells as text; YAML reads some as numbers."""
    if value is None or isinstance(value, bool):
        written = {None: "null", True: "true", False: "false"}[value]
        raise ValueError(f"write it in quotes, as the cells have it: '{written}'")
    return str(value) if isinstance(value, int | float) else value


Marks = list[Annotated[str, BeforeValidator(_as_mark)]]
MissingValues = OrMapping[Marks, Annotated[dict[str, Marks], BY_NAME]]
Columns = Annotated[
    Annotated[str, Tag("literal")] | Annotated[list[str], Field(min_length=1), Tag("constrained")],
    Discriminator(lambda value: "constrained" if isinstance(value, list) else "literal"),
]


class RecordSettings(Settings):
    """Sources tfrecord and tfds: the features of records that are the model's input and label."""

    input: str = ""
    """feature with the encoded image or the values; empty: the one with a usual name, such as image
    or image/encoded
    """
    label: str = ""
    """feature with the class, or the number to predict; empty: the one with a usual name, such as
    label or image/class/label
    """
    shape: list[int] = Field(default=[])
    """shape of values that are stored without one, such as [28, 28, 1]; empty: a vector"""
    dtype: Literal[
        "auto",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    ] = "auto"
    """tfrecord: dtype of values that are stored as bare bytes, the lowest byte first; auto: uint8,
    or float32 where `shape` has a quarter as many values as there are bytes
    """


class SplitSettings(Settings):
    """Splits of examples that have none: by content or group; a series is cut in order."""

    validation: Fraction = 0.1
    """share held out for validation, of the examples that the source itself does not assign"""
    test: Fraction = 0.1
    """share held out for the final test; unused where the source brings its own test split"""
    seed: int = Field(default=0, ge=0)
    """another seed gives another, equally stable, split"""


class DataSettings(Settings):
    """The source of the examples, and the rules for rejecting some."""

    fetch: Literal["none", "fashion_mnist", "photos", "mails"] = "none"
    """a known dataset that the first stage fetches into data/raw/NAME"""
    source: SourceName
    """kind of input; auto: found by the names of the files at `path`, and by time_column,
    text_column and path_column; refused where they leave a doubt
    """
    path: str
    """folder or file that holds the source, or s3://BUCKET/PREFIX (gs://, azure://); a DVC
    dependency of ingest
    """

    @field_validator("path")
    @classmethod
    def _is_here_or_in_a_bucket(cls, path: str) -> str:
        if is_address(path):
            to_store_url(path)
        return path

    layout: Layout = "auto"
    """image_folder, text_folder: meaning of each part of a file's path, such as split/class,
    class/split, class or split; * is any folder, ** all further ones; `class` may also be in the
    file's name, as in split/class.*.jpg for train/cat.0.jpg; auto: splits where all folders of a
    level have names of splits, else classes; text_lines, image_table: `class` if the names of
    files, or of the folders of listed images, do not mean splits
    """
    follow_links: bool = True
    """whether links to regular files outside of `path` are read, such as those into DVC's cache or
    a model hub's snapshots, if no other user owns the files; runs from the UI read them only if
    params.yaml has the same path
    """
    leave_out: list[str] = Field(default=[])
    """folders and files, by name, path or pattern, and classes that are left out; ingest reports
    their number of examples
    """
    same_labels: Literal["exact", "ignore_case", "ignore_marks"] = "exact"
    """names of the same class: exact: only equal ones · ignore_case: also names that differ in
    case · ignore_marks: also in blanks, dashes, underscores and final periods; the most frequent
    spelling becomes the name
    """
    group: str = ""
    r"""group of examples that stay in one split: a column (JSON: key) with the name of the group,
    or a regular expression whose first group finds that name in an example's id, such as
    (patient\d+)_; empty, also in a cell: examples are assigned one by one
    """
    path_column: str = "path"
    """image_table: column with the image's path, relative to the table's folder; in Parquet and
    Arrow files also one with the image itself, which need not be named if it is the only one and
    there is no column `path`
    """
    label_column: Columns = "label"
    """tables, text_lines: column with the class, or the number to predict; [a, b]: with the numbers
    to predict
    """

    @property
    def label_columns(self) -> tuple[str, ...]:
        named = self.label_column
        return (named,) if isinstance(named, str) else tuple(named)

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """Columns that are kept with texts: those that the model sees, and numbers to predict."""
        label = self.label_columns if self.label_kind == "number" else ()
        return (*self.numeric, *self.categorical, *label)

    text_column: str = "text"
    """text_table, text_lines: column (JSON: key) with the text"""
    encoding: str = "utf-8"
    """texts, CSV: encoding of the files; shards and snapshot store UTF-8"""
    delimiter: Literal["auto", ",", ";", "tab", "|", "blanks"] = "auto"
    """CSV: separator of cells · blanks: any number of blanks and tabs · auto: the one by which the
    header has as many cells as most lines
    """
    header: Literal["auto", "names", "none"] = "auto"
    """CSV: none: the first line is a row; columns are named column_1, column_2, … · names: the line
    names the columns · auto: as names, but numbers that do not increase are an error
    """
    decimal: Literal["auto", ".", ","] = "auto"
    """CSV: decimal separator; auto: a comma where numbers have one and none has a point; an error
    where it may separate thousands
    """
    thousands: Literal["auto", "none", ",", "'", " "] = "auto"
    """CSV: thousands separator, besides points where the decimal separator is a comma; auto: a mark
    that can only be one, as in 1,003.75
    """
    quoting: Literal["auto", "multi_line", "none"] = "auto"
    """CSV: none: quotes are ordinary characters · multi_line: quoted cells may hold line breaks ·
    auto: only texts may, and it is an error if their lines look like rows
    """
    missing_values: MissingValues = Field(default=[])
    """tables, series, JSON lines: cells or values that mean missing besides empty ones, such as NA;
    numbers count by value: -200 also means -200.0 · {column: [0], …}: only in these columns
    """

    def missing_marks(self, column: str) -> list[str]:
        marks = self.missing_values
        return marks.get(column, []) if isinstance(marks, dict) else marks

    missing: Missing = "reject"
    """tables: rows with an empty cell. reject: left out · category: kept, an empty category is one
    of its own · median: as category, and an empty number becomes the training split's median ·
    {column: …, …}: for these columns, reject for others · time_series: interpolate, previous: what
    replaces an empty cell between others; cut: no window crosses such rows; else an error
    """

    @model_validator(mode="after")
    def _fills_gaps_of_series(self) -> DataSettings:
        ways = {*self.missing.values()} if isinstance(self.missing, dict) else {self.missing}
        of_series = {"interpolate", "previous", "cut"}
        if self.source == "time_series" and not ways <= of_series | {"reject"}:
            raise ValueError("missing: a time series accepts reject, interpolate, previous or cut")
        if self.source != "time_series" and ways & of_series:
            raise ValueError("missing: interpolate, previous and cut are for source: time_series")
        return self

    def missing_in(self, column: str) -> Filling:
        ways = self.missing
        return ways.get(column, "reject") if isinstance(ways, dict) else ways

    max_bytes: int = Field(default=50_000_000, ge=1)
    """texts with more bytes are rejected; files without being read"""
    label_kind: Literal["auto", "class", "number", "none"] = "auto"
    """tables, records, arrays: whether the label is a class or a number to predict; auto: text,
    booleans and whole numbers of few values are classes; in tables of images or texts, all labels
    are · texts: none for documents without classes
    """
    numeric: list[str] = Field(default=[])
    """table, time_series: numeric columns; empty: those in which most cells are numbers ·
    image_table, text_table, text_lines: those that the model sees besides image or text
    """
    categorical: list[str] = Field(default=[])
    """table: columns of categories; empty: all other columns · image_table, text_table, text_lines:
    those that the model sees besides image or text
    """
    ignore: list[str] = Field(default=[])
    """table, time_series: columns to leave out, such as ids, dates and free text ·
    all tables: columns that do not name the splits, though their cells look so
    """
    features: str = "x"
    """arrays: name of the array of images (examples, height, width[, channels]) uint8; if there is
    no x or no y, and none is set, the names of the arrays decide
    """
    labels: str = "y"
    """arrays: name of the array (examples,) of classes, or of numbers to predict"""
    time_column: Columns = ""
    """time_series: column of times, which must increase from row to row; [date, time]: both
    together; empty: rows are in the order of time
    """

    @property
    def time_columns(self) -> tuple[str, ...]:
        named = self.time_column
        return tuple(named) if isinstance(named, list) else (named,) if named else ()

    max_reject_fraction: Fraction = 0.01
    """share of examples that may be rejected before ingest stops"""
    max_pixels: int = Field(default=50_000_000, ge=1)
    """an image with more pixels is rejected from its header, undecoded"""
    duplicates: Literal["reject", "keep"] = "reject"
    """of examples with the same bytes, reject all but the first, or keep all, in one split"""
    records: RecordSettings = RecordSettings()
    split: SplitSettings = SplitSettings()
