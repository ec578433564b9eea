"""How sequences of variable length are batched: part of a configuration in params.yaml."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from throughline.settings.base import Settings


def _check_boundaries(value: Any) -> str | tuple[int, ...] | None:
    if value is None or value == "auto":
        return value
    if isinstance(value, list | tuple) and value and all(type(one) is int for one in value):
        boundaries = tuple(value)
        if boundaries[0] >= 1 and boundaries == tuple(sorted({*boundaries})):
            return boundaries
    raise ValueError(f"expected auto or increasing lengths, as in [64, 128, 256]; found {value!r}")


_COUNT = {"type": "integer", "minimum": 1}
Boundaries = Annotated[
    str | tuple[int, ...] | None,
    PlainValidator(_check_boundaries),
    WithJsonSchema({"anyOf": [{"enum": ["auto"]}, {"type": "array", "items": _COUNT}]}),
]
Tokens = Annotated[int, Field(ge=1, le=1 << 30)]


class BatchSettings(Settings):
    """Batches of texts by their length: `pad_to`, `tokens` or `pack`; absent: padded to the longest
    text of each batch.
    """

    pad_to: Boundaries = Field(
        default=None,
        description=(
            "length buckets, such as `[64, 128, 256]`: each batch holds `batch_size` sequences of"
            " one bucket, padded to its boundary [tokens]; auto: 32, 64, 128 … until the longest"
        ),
    )
    tokens: Tokens | None = Field(
        default=None,
        description=(
            "so many tokens in a batch, padding included, instead of `batch_size` sequences: more"
            " of them where they are short; in the buckets of `pad_to`, or those of auto"
        ),
    )
    pack: Tokens | None = Field(
        default=None,
        description=(
            "read: snapshot · several documents in each of `batch_size` rows of so many tokens,"
            " with segment ids and positions; the model must honor these (transformer_encoder)"
        ),
    )
