"""Encodings, one file per family. An encoding examines, stores and decodes values.

A new encoding is a class under `@register` in a file that is imported here.
"""

from throughline.data.encodings import (  # noqa: F401 - they register their encodings
    arrays,
    images,
    labels,
    texts,
)
