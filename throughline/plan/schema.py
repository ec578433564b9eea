"""The schema of examples: features, each with a role, an encoding, a shape and a dtype.

Ingest writes it to the manifest; the index of the shards and the file of a model repeat it. Files
in `throughline/data/encodings/` define how values of an encoding are examined, stored and decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import PlainSerializer, PlainValidator

if TYPE_CHECKING:
    from throughline.plan.ops import Op
    from throughline.settings import PipelineConfig

Role = Literal["input", "target"]
# Ingest's places for the values that become records: rows of values.npy, blocks of such rows, byte
# ranges of documents.bin, files, or, for numbers, the manifest's own table.
Storage = Literal["rows", "blocks", "documents", "files", "table"]
Shape = tuple[int | None, ...]
COLUMNS = "columns"  # the name of the feature for the table input


class Encoding:
    """The way in which the values of a feature are stored in records and decoded.

    Attributes:
      modality: The kind of the data, which decides the ops and models for it.
      noun: Name of the data in messages.
      padded: Values may differ in length within a batch.
      compressed: Values are compressed already, so GZIP gains nothing.
    """

    name: ClassVar[str]
    modality: ClassVar[str]
    noun: ClassVar[str]
    storage: ClassVar[Storage]
    padded: ClassVar[bool] = False
    compressed: ClassVar[bool] = False

    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op | None:
        """Return the op that `decode` stands for under `config` (None: when a snapshot is written).

        The result is None if values need no op, as numbers, or texts for `tokenize`.
        """
        return None

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return find_encoding, (self.name,)  # each encoding has one instance


ENCODINGS: dict[str, Encoding] = {}


def register(kind: type[Encoding]) -> type[Encoding]:
    """Add an encoding to `ENCODINGS` under its name; a class decorator."""
    ENCODINGS[kind.name] = kind()
    return kind


def find_encoding(named: Any) -> Encoding:
    """Return the encoding with this name, or the given encoding; ValueError for other names."""
    if isinstance(named, Encoding):
        return named
    if named not in ENCODINGS:
        raise ValueError(f"{named} is not an encoding; known: {', '.join(ENCODINGS)}")
    return ENCODINGS[named]


NamedEncoding = Annotated[
    Encoding, PlainValidator(find_encoding), PlainSerializer(lambda encoding: encoding.name)
]


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """The columns of a table or series, along the last axis of a feature: numbers, then categories.

    Attributes:
      categories: Vocabularies of the trailing columns; an empty word is the empty cell.
      medians: Replacements for empty cells, by the names of numeric columns.
      decimal: The decimal mark in numbers that are text.
      thousands: The separator of thousands in such numbers, if any.
    """

    names: tuple[str, ...] = ()
    categories: tuple[tuple[str, ...], ...] = ()
    medians: Mapping[str, float] = field(default_factory=dict)
    decimal: str = "."
    thousands: str = ""

    @property
    def numeric(self) -> int:
        return len(self.names) - len(self.categories)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One value of every example.

    `shape` has None where sizes differ between examples; `dtype` is NumPy's, once decoded.
    """

    name: str
    role: Role
    encoding: NamedEncoding
    shape: Shape
    dtype: str
    columns: TableColumns = field(default_factory=TableColumns)

    @property
    def channels(self) -> int:
        """Size of the last axis, such as 3 for images in color; 1 if it is not known."""
        return self.shape[-1] or 1

    @property
    def batch_shape(self) -> Shape | None:
        """The shape, if values can be batched as they are or padded; otherwise None."""
        return None if None in self.shape and not self.encoding.padded else self.shape

    @property
    def record_dtype(self) -> str:
        """The dtype in a record: its own for numbers of a table, otherwise string (bytes)."""
        return self.dtype if self.encoding.storage == "table" else "string"


@dataclass(frozen=True, kw_only=True)
class Schema:
    features: tuple[Feature, ...]

    @property
    def input(self) -> Feature:
        return next(feature for feature in self.features if feature.role == "input")

    @property
    def table_input(self) -> Feature | None:
        """Columns of the table that lists the examples, as a second input, if any."""
        inputs = [feature for feature in self.features if feature.role == "input"]
        return inputs[1] if len(inputs) > 1 else None

    @property
    def columns(self) -> TableColumns:
        """The columns of the table or series that the model sees; without names for other data."""
        return (self.table_input or self.input).columns

    def with_columns(self, columns: TableColumns) -> Schema:
        changed = self.table_input or self.input
        return Schema(
            features=tuple(
                replace(feature, columns=columns) if feature is changed else feature
                for feature in self.features
            )
        )

    @property
    def target(self) -> Feature | None:
        """The feature to predict; None if it is cut out of the input, as for a series."""
        return next((feature for feature in self.features if feature.role == "target"), None)

    @property
    def is_series(self) -> bool:
        """Whether records are blocks of consecutive time steps, from which windows are cut."""
        return self.input.encoding.storage == "blocks"

    @property
    def is_text(self) -> bool:
        return self.input.encoding.modality == "text"

    @property
    def predicts_number(self) -> bool:
        return self.target is not None and self.target.encoding.name == "number"
