"""Parses the ops of params.yaml and reports problems with their place. No TensorFlow."""

import importlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from throughline.plan import (
    augmentations,  # noqa: F401 - they register their ops
    text_ops,  # noqa: F401 - they register their ops
)
from throughline.plan.ops import REGISTRY, Decode, Op
from throughline.plan.schema import Schema
from throughline.shared.code_identity import PROGRAM
from throughline.shared.errors import did_you_mean


def parse_op(spec: str | Mapping[str, Any], *, where: str) -> tuple[Op | None, list[str]]:
    """Turn `name` or `{name: {argument: value}}` into an op, or None and a list of problems.

    A name `package.module:Class` is a user's own `Op`. Problems begin with `where`, their path.
    """
    given = list(spec.items()) if isinstance(spec, Mapping) else [(spec, None)]
    if len(given) != 1:
        return None, [
            f"{where}: an op is one name with its arguments, such as `resize: {{height: 224,"
            " width: 224}`"
        ]
    ((name, arguments),) = given
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return None, [
            f"{where}: expected an op name, or a name with a mapping of arguments; found {spec!r}"
        ]
    kind = _find_op(name)
    if isinstance(kind, str):
        return None, [f"{where}: {name} {kind}"]
    return _make_op(kind, arguments, where=f"{where}.{name}")


def describe_op(op: Op) -> dict[str, dict[str, Any]]:
    """Return an op as `{name: arguments}` in JSON types; `restore_op` is the inverse."""
    kind = type(op)
    own = kind.__module__.partition(".")[0] not in PROGRAM
    name = f"{kind.__module__}:{kind.__name__}" if own else op.name
    return {name: op.model_dump(mode="json")}


def restore_op(described: Mapping[str, Any], schema: Schema) -> tuple[Op | None, list[str]]:
    """Return the op that `describe_op` described, for data of this schema, or None and problems."""
    decode = schema.input.encoding.decode(schema.input, None)
    arguments = described.get(Decode.name)
    if arguments is None or decode is None:
        return parse_op(described, where="op")
    return _make_op(type(decode), arguments, where="op.decode")


def _make_op(
    kind: type[Op], arguments: Mapping[str, Any], *, where: str
) -> tuple[Op | None, list[str]]:
    try:
        return kind.model_validate(dict(arguments)), []
    except ValidationError as error:
        return None, [describe_problem(where, kind, item) for item in error.errors()]


def _find_op(name: str) -> type[Op] | str:
    module, own, attribute = name.partition(":")
    if not own:
        return REGISTRY.get(name) or f"is not an op; {did_you_mean(name, list(REGISTRY))}"
    try:
        kind = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, SyntaxError) as error:
        return f"cannot be imported ({error})"
    if isinstance(kind, type) and issubclass(kind, Op):
        return kind
    return "is not a class that inherits from throughline.plan.ops.Op"


def describe_problem(where: str, kind: type[BaseModel], item: Any) -> str:
    """Describe one of pydantic's errors in the arguments of an op or a model, at a path."""
    key = ".".join(str(part) for part in item["loc"])
    place = f"{where}.{key}" if key else where
    if item["type"] == "extra_forbidden":
        known = list(kind.model_fields)
        hint = did_you_mean(key, known) if known else "the op has none"
        return f"{place} is not an argument; {hint}"
    if item["type"] == "missing":
        return f"{place} is missing"
    if item["type"] == "value_error":  # our validators' messages have a remedy
        return f"{place}: {item['ctx']['error']}; found {item['input']!r}"
    return f"{place}: {item['msg'].lower()}; found {item['input']!r}"
