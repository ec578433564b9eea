"""What snapshot says about its work, apart from what others depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from throughline.results.base import ResultFile


@dataclass(frozen=True, kw_only=True)
class SnapshotCost(ResultFile):
    """How long the snapshot took to write, and what it takes on the disk."""

    FILE: ClassVar[str] = "snapshot.json"
    STAGE: ClassVar[str] = "snapshot"

    seconds: float
    examples_per_s: float
    bytes_per_example: float
