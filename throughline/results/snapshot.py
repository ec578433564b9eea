"""The cost of the snapshot, in a file of its own, on which no other stage's results depend."""

from dataclasses import dataclass

from throughline.results.base import ResultFile


@dataclass(frozen=True, kw_only=True)
class SnapshotCost(ResultFile, file="snapshot.json", stage="snapshot"):
    """The time that writing the snapshot took, and the disk space that it takes."""

    seconds: float
    examples_per_s: float
    bytes_per_example: float
