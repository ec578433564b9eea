"""The receipts of all trainings that MLflow knows, and the model versions made from them."""

import json
from collections import defaultdict
from dataclasses import dataclass

import mlflow

from throughline.results.base import parse
from throughline.results.receipt import Receipt
from throughline.shared.errors import ServiceFailed
from throughline.shared.progress import echo_problem
from throughline.tracking.store import STORE_ERRORS, reason, search_runs, show_address, use_store

RECEIPT_TAG = "mlflow.throughline.receipt"  # tags with this prefix take no space in the UI


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """A run's name with the start of its id, its receipt, and its model versions in words."""

    name: str
    receipt: Receipt
    versions: tuple[str, ...]


def list_trainings() -> list[LoggedTraining]:
    """List the trainings with a receipt, the oldest first; ServiceFailed if MLflow is away."""
    use_store()
    client, versions = mlflow.MlflowClient(), defaultdict[str, list[str]](list)
    try:
        for model in client.search_registered_models():
            aliases = {number: alias for alias, number in model.aliases.items()}
            for one in client.search_model_versions(f"name = '{model.name}'"):
                alias = f" ({aliases[one.version]})" if one.version in aliases else ""
                versions[str(one.run_id)].append(f"{model.name} version {one.version}{alias}")
        runs = search_runs(f"tags.`{RECEIPT_TAG}` LIKE '%'")
    except STORE_ERRORS as error:
        raise ServiceFailed(
            f"MLflow at {show_address()} cannot be reached ({reason(error)})"
        ) from error
    trainings = []
    for run in runs:
        name, tag = f"{run.info.run_name} ({run.info.run_id[:8]})", run.data.tags[RECEIPT_TAG]
        try:
            receipt = parse(Receipt, json.loads(tag))
        except TypeError as error:
            echo_problem(f"{name} is left out: another version of the program trained it ({error})")
            continue
        own = tuple(versions[run.info.run_id])
        trainings.append(LoggedTraining(name=name, receipt=receipt, versions=own))
    return trainings
