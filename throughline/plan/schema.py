"""What an example is: its features, each with a role, an encoding, a shape and a dtype.

Ingest says so once, in the manifest; the index of the shards and the file of a model repeat it, and
everything after them asks here. How values of an encoding are examined, stored and decoded is in
the encoding's file below `throughline/data/encodings/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import PlainSerializer, PlainValidator

if TYPE_CHECKING:
    from throughline.plan.ops import Op
    from throughline.settings import PipelineConfig

Role = Literal["input", "target"]
# Where ingest leaves the values that become records: rows of values.npy, blocks of such rows, byte
# ranges of documents.bin, files, or, of numbers of the manifest itself, in its tables.
Storage = Literal["rows", "blocks", "documents", "files", "table"]
Shape = tuple[int | None, ...]
COLUMNS = "columns"  # the feature that is the table input


class Encoding(ABC):
    """How the values of a feature are stored in records, and what becomes of them.

    `modality` says what they are, whatever they are stored as: which ops and models take them.
    `noun` names the data in messages. Values that are `padded` may differ in length within a batch;
    GZIP gains nothing on those that are `compressed` already.
    """

    name: ClassVar[str]
    modality: ClassVar[str]
    noun: ClassVar[str]
    storage: ClassVar[Storage]
    padded: ClassVar[bool] = False
    compressed: ClassVar[bool] = False

    @abstractmethod
    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op | None:
        """What `decode` means for a feature of this encoding, in a configuration, or without one in
        the snapshot; None: nothing.
        """

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return find_encoding, (self.name,)  # there is one of each


ENCODINGS: dict[str, Encoding] = {}


def register(kind: type[Encoding]) -> type[Encoding]:
    """Make an encoding known by its name."""
    ENCODINGS[kind.name] = kind()
    return kind


def find_encoding(named: Any) -> Encoding:
    """The encoding of this name.

    Raises:
      ValueError: there is none.
    """
    if isinstance(named, Encoding):
        return named
    if named not in ENCODINGS:
        raise ValueError(f"{named} is no encoding; known: {', '.join(ENCODINGS)}")
    return ENCODINGS[named]


NamedEncoding = Annotated[
    Encoding, PlainValidator(find_encoding), PlainSerializer(lambda encoding: encoding.name)
]


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """The columns of a table or series, along the last axis of a feature: numbers, then categories.

    `categories` holds the vocabularies of the trailing columns, in which an empty word is the empty
    cell; `medians` what an empty cell of a numeric column stands for, by its name; `decimal` is the
    mark in numbers of text, `thousands` what divides their thousands besides, if anything.
    """

    names: tuple[str, ...] = ()
    categories: tuple[tuple[str, ...], ...] = ()
    medians: Mapping[str, float] = field(default_factory=dict)
    decimal: str = "."
    thousands: str = ""

    @property
    def numeric(self) -> int:
        """How many of them are numbers."""
        return len(self.names) - len(self.categories)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One value of every example: its `shape`, in which None stands for sizes that differ between
    examples, and the NumPy `dtype` of what it is decoded to.
    """

    name: str
    role: Role
    encoding: NamedEncoding
    shape: Shape
    dtype: str
    columns: TableColumns = field(default_factory=TableColumns)

    @property
    def channels(self) -> int:
        """Size of the last axis, such as 3 of images in color."""
        return self.shape[-1] or 1

    @property
    def batch_shape(self) -> Shape | None:
        """The shape, where values can be put into a batch as they are, or padded; None where they
        must be made the same size first.
        """
        return None if None in self.shape and not self.encoding.padded else self.shape

    @property
    def record_dtype(self) -> str:
        """What a record holds of it: its own dtype in numbers, or bytes."""
        return self.dtype if self.encoding.storage == "table" else "string"


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The features of every example of a dataset."""

    features: tuple[Feature, ...]

    @property
    def input(self) -> Feature:
        """What the model sees, before all."""
        return next(feature for feature in self.features if feature.role == "input")

    @property
    def table_input(self) -> Feature | None:
        """Columns of the table that lists the examples, which the model sees as well, if any."""
        inputs = [feature for feature in self.features if feature.role == "input"]
        return inputs[1] if len(inputs) > 1 else None

    @property
    def columns(self) -> TableColumns:
        """Those of the table or series that the model sees; none where it sees no table."""
        return (self.table_input or self.input).columns

    def with_columns(self, columns: TableColumns) -> Schema:
        """The schema with these in their place."""
        changed = self.table_input or self.input
        return Schema(
            features=tuple(
                replace(feature, columns=columns) if feature is changed else feature
                for feature in self.features
            )
        )

    @property
    def target(self) -> Feature | None:
        """What the model is to predict; None where that is cut out of the input, as of a series."""
        return next((feature for feature in self.features if feature.role == "target"), None)

    @property
    def is_series(self) -> bool:
        """Whether records are blocks of consecutive time steps, of which windows are cut."""
        return self.input.encoding.storage == "blocks"

    @property
    def is_text(self) -> bool:
        """Whether examples are texts."""
        return self.input.encoding.modality == "text"

    @property
    def predicts_number(self) -> bool:
        """Whether the target is a number, not a class."""
        return self.target is not None and self.target.encoding.name == "number"
