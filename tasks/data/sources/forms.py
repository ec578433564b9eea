"""The two forms in which any source presents its examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """An example that cannot be used, and why."""

    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """An image that lies in a file of its own, not yet examined. `split` is None unless the source decides it."""

    id: str
    path: Path
    label: str
    split: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Image files below one root; none may lead outside it."""

    root: Path
    files: Sequence[ImageFile]
    rejected: Sequence[Rejected] = ()
    empty_classes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ImageArrays:
    """Images that lie in arrays: images (examples, height, width, channels) uint8, labels (examples,) class names.

    `ids` and `splits` have one entry per example; a split of None is dealt by content.
    """

    images: np.ndarray
    labels: Sequence[str]
    ids: Sequence[str]
    splits: Sequence[str | None]
    classes: Sequence[str]
