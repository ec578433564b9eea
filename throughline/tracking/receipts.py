"""The receipts of all trainings that MLflow knows, and the model versions made from them."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlflow

from throughline.tracking.store import use_store

RECEIPT_TAG = "mlflow.throughline.receipt"  # tags with this prefix take no space in the UI


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """A run's id and name, its receipt as JSON, and its model versions in words."""

    run_id: str
    name: str
    receipt: Mapping[str, Any]
    versions: tuple[str, ...]


def list_trainings() -> list[LoggedTraining]:
    """List the trainings with a receipt, the oldest first.

    Raises one of `STORE_ERRORS` if the store does not answer.
    """
    use_store()
    client, versions = mlflow.MlflowClient(), defaultdict[str, list[str]](list)
    for model in client.search_registered_models():
        aliases = {number: alias for alias, number in model.aliases.items()}
        for one in client.search_model_versions(f"name = '{model.name}'"):
            alias = aliases.get(str(one.version)) or aliases.get(one.version)
            versions[str(one.run_id)].append(
                f"{model.name} {one.version}{f' ({alias})' if alias else ''}"
            )
    runs = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`{RECEIPT_TAG}` LIKE '%'",
        order_by=["attributes.start_time ASC"],
        output_format="list",
    )
    return [
        LoggedTraining(
            run_id=run.info.run_id,
            name=str(run.info.run_name),
            receipt=json.loads(run.data.tags[RECEIPT_TAG]),
            versions=tuple(versions[run.info.run_id]),
        )
        for run in runs
    ]
