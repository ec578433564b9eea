"""What the sections of params.yaml are made of: their common class, and fields that are a word or
a count.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
# A tagged union of a word and a mapping reports a problem once.
WORD, MAPPING = Tag("literal"), Tag("constrained")
WORD_OR_MAPPING = Discriminator(
    lambda value: "constrained" if isinstance(value, dict) else "literal"
)


def _name_keys(value: Any) -> Any:
    """A mapping by names, of which YAML reads those of digits, as classes may have, as numbers."""
    if not isinstance(value, dict):
        return value
    return {str(key) if type(key) is int else key: one for key, one in value.items()}


BY_NAME = BeforeValidator(_name_keys)
WeightByClass = Annotated[dict[str, Annotated[float, Field(ge=0)]], BY_NAME]


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
