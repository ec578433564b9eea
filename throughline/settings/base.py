"""What the sections of params.yaml are made of: their common class, and fields that are a word or
a count.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """A section of params.yaml: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def word_or_count(*words: str) -> tuple[PlainValidator, WithJsonSchema]:
    """Check a field that is one of a few words or a whole number from 1, with one plain message for
    anything else; and its JSON schema.
    """

    def check(value: Any) -> str | int:
        if value in words or (type(value) is int and value >= 1):
            return value
        raise ValueError(f"expected {', '.join(words)} or a whole number from 1; found {value!r}")

    schema = {"anyOf": [{"enum": list(words)}, {"type": "integer", "minimum": 1}]}
    return PlainValidator(check), WithJsonSchema(schema)
