"""A search in MLflow: a parent run with its result, and a child for every raced candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.tracking.experiments import RunKey
from throughline.tracking.lineage import read_lineage
from throughline.tracking.recorder import Recorder

# Fields of a candidate's result.
MEASURED = (
    "examples_per_s",
    "seconds",
    "seconds_low",
    "seconds_high",
    "ram_mib",
    "disk_mib",
    "prepare_s",
)


def record_search(run_key: RunKey, result: TuningResult, folder: Path, *, note: str) -> str | None:
    """Write a search as a run with children, and return the run's id.

    `note` (Markdown) is shown on its first page. The result's file and picture in `folder` are
    logged. If the store cannot be reached, one line says so, and the id is None.
    """
    with Recorder(run_key) as parent:
        parent.set_tags(
            {
                "headline": result.sentence,
                "outcome": result.outcome,
                "best": result.chosen,
                "mlflow.note.content": note,
            }
        )
        parent.log_params({"epochs": result.epochs, "chosen": result.config})
        parent.log_metrics(
            {
                "tuning/rounds": result.rounds,
                "tuning/searched_s": result.searched_s,
                "tuning/ceiling_examples_per_s": result.ceiling_examples_per_s,
            }
        )
        for path in (TuningResult.path(folder), folder / TuningResult.PICTURE):
            if path.exists():
                parent.log_artifact(path)
        parent.add_children(
            {
                f"{run_key.pipeline}/{each.name}": _describe(
                    each, chosen=each.name == result.chosen
                )
                for each in result.candidates
                if each.examples_per_s is not None
            }
        )
    return parent.run_id if parent.sent else None


def _describe(each: TunedCandidate, *, chosen: bool) -> dict[str, Any]:
    metrics = {f"tuning/{name}": getattr(each, name) for name in MEASURED}
    tags = {
        "pipeline": each.name,
        "family": each.family,
        "dropped": each.dropped,
        "chosen": str(chosen).lower(),
        **read_lineage(),
    }
    return {"params": each.config, "metrics": metrics, "tags": tags}
