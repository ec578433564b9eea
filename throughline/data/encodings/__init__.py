"""One file per family of encodings: what of a value is examined, how it is stored, what decodes it.

A new encoding is a class under `@register` in a file that is imported here.
"""

from __future__ import annotations

from throughline.data.encodings import (  # noqa: F401 - they register theirs
    arrays,
    images,
    labels,
    texts,
)
