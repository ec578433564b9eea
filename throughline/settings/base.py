"""The base class of the sections of params.yaml, and the types that their fields share."""

import ast
import inspect
from itertools import pairwise
from typing import Annotated, Any, TypeVar

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
W = TypeVar("W")
M = TypeVar("M")
# With tags, pydantic reports a problem only for the type that is meant.
OrMapping = Annotated[
    Annotated[W, Tag("literal")] | Annotated[M, Tag("constrained")],
    Discriminator(lambda value: "constrained" if isinstance(value, dict) else "literal"),
]


def _name_keys(value: Any) -> Any:
    """Turn integer keys into strings: YAML reads class names that are digits as numbers."""
    if not isinstance(value, dict):
        return value
    return {str(key) if type(key) is int else key: one for key, one in value.items()}


BY_NAME = BeforeValidator(_name_keys)
WeightByClass = Annotated[dict[str, Annotated[float, Field(ge=0)]], BY_NAME]


class Settings(BaseModel):
    """A section of params.yaml: immutable, without unknown keys.

    The text below a field is its description.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read_descriptions(cls) -> dict[str, str]:
        """Return the descriptions of the fields by name, as the source has them."""
        (section,) = ast.parse(inspect.getsource(cls)).body
        return {
            ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
            for field, text in pairwise(section.body if isinstance(section, ast.ClassDef) else ())
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
        }


def word_or_count(*words: str) -> tuple[PlainValidator, WithJsonSchema]:
    """Return validator and JSON schema of a field that is one of `words`, or an integer from 1."""

    def check(value: Any) -> str | int:
        if value in words or (type(value) is int and value >= 1):
            return value
        raise ValueError(f"expected {', '.join(words)} or a whole number from 1; found {value!r}")

    schema = {"anyOf": [{"enum": list(words)}, {"type": "integer", "minimum": 1}]}
    return PlainValidator(check), WithJsonSchema(schema)
