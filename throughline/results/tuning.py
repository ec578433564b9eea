"""What a search for the best configuration found: every candidate with its figures, the choice, and
the sentence about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from throughline.results.base import ResultFile

TUNED = "tuned"  # the configuration that a search adds to params.yaml; no part of its own question
# found: `chosen` is new · kept: one's own fastest stays · compute-bound: no input could gain 5 % ·
# undecided: others were at work, or the time was up.
Outcome = Literal["found", "kept", "compute-bound", "undecided"]


@dataclass(frozen=True, kw_only=True)
class TunedCandidate:
    """One candidate: its configuration, the rate that was measured [examples/s], the whole training
    [s] with its interval, what it needs, and why it was dropped; empty for the choice. What was not
    measured is None.
    """

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
class TuningResult(ResultFile):
    """A whole search: its outcome, in a sentence, too; the chosen configuration, and with which
    others it is compared. `ceiling_examples_per_s` is the model alone; of the snapshot's rows the
    fraction `stored` was there; `time_s` is what the search was given; `lost` are those that were
    dropped for what may pass; `mlflow_run_id` is None where MLflow could not be reached, and as
    long as it is not `recorded`.
    """

    FILE: ClassVar[str] = "tune.json"
    STAGE: ClassVar[str] = "tune"
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
    recorded: bool = False
    mlflow_run_id: str | None = None
