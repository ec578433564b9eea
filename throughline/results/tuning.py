"""The result of a search: every candidate with its figures, the choice, and a sentence about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from throughline.results.base import ResultFile

TUNED = "tuned"  # the configuration that a search adds to params.yaml; ignored by the next search
# found: `chosen` is new · kept: the user's fastest stays · compute-bound: no input could gain 5 % ·
# undecided: other programs disturbed the search, the time was up, or it lost one of the user's own.
Outcome = Literal["found", "kept", "compute-bound", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Need:
    """The needs of a configuration: `kept_bytes` of memory hold splits, `written_bytes` are new."""

    ram_bytes: float
    disk_bytes: float
    prepare_s: float
    kept_bytes: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TunedCandidate:
    """A candidate of a search; None: not measured. `dropped` says why it was dropped, if it was."""

    name: str
    family: str
    config: Mapping[str, Any]
    examples_per_s: float | None = None
    seconds: float | None = None
    seconds_low: float | None = None
    seconds_high: float | None = None
    ram_mib: float | None = None
    disk_mib: float = 0.0
    prepare_s: float = 0.0
    dropped: str


@dataclass(frozen=True, kw_only=True)
class TuningResult(ResultFile, file="tune.json", stage="tune"):
    """The result of a whole search.

    Attributes:
      baseline, incumbent: Configurations to compare with; the incumbent is the user's fastest.
      ceiling_examples_per_s: The rate of the model alone.
      stored: The fraction of the snapshot's rows that was stored.
      lost: Candidates that were dropped for reasons that may pass.
      needed, refused: The needs of the choice, and those of the candidates beyond the limits.
      mlflow_run_id: None until `recorded`, or if MLflow could not be reached.
    """

    PICTURE: ClassVar[str] = "tune.png"

    outcome: Outcome
    sentence: str
    chosen: str
    config: Mapping[str, Any]
    baseline: str
    incumbent: str
    epochs: int
    examples: int
    ceiling_examples_per_s: float
    rounds: int
    searched_s: float
    stored: float
    time_s: float = 0.0
    candidates: Sequence[TunedCandidate]
    lost: Sequence[str] = ()
    needed: Need
    refused: Sequence[Need] = ()
    recorded: bool = False
    mlflow_run_id: str | None = None
