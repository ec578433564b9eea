"""Encodings, one file per family: how values are examined, stored and decoded.

A new encoding is a class under `@register` in a file that is imported here.
"""

from throughline.data.encodings import (  # noqa: F401 - they register their encodings
    arrays,
    images,
    labels,
    texts,
)
