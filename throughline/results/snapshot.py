"""The cost of the snapshot, apart from what other stages depend on."""

from dataclasses import dataclass

from throughline.results.base import ResultFile


@dataclass(frozen=True, kw_only=True)
class SnapshotCost(ResultFile, file="snapshot.json", stage="snapshot"):
    """How long the snapshot took to write, and how much disk it takes."""

    seconds: float
    examples_per_s: float
    bytes_per_example: float
