"""Chooses the MLflow experiment of a run: one per dataset and task.

An experiment is named after the dataset's folder or file and the first digest of its content. When
data is added or moved, it is recognized by a sketch of the content, the smallest hashes of
(example, label): two sketches tell how much of one dataset is in the other (docs/decisions, 4.4).
"""

import heapq
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException

from throughline.data import encodings  # noqa: F401 - a schema names them
from throughline.plan.schema import Schema
from throughline.results.base import parse
from throughline.settings import WindowSettings
from throughline.shared.errors import MissingInput
from throughline.shared.files import digest_blake2b, digest_json, read_json
from throughline.tracking.store import OWN_ARTIFACTS, store_home

EXPERIMENT_PREFIX = "throughline/"
SKETCH_TAG = "mlflow.throughline.sketch"  # tags with this prefix take no space in the UI
TASK_TAG = "data.task"
SKETCHED = 128  # hashes; if a dataset doubles, half of them remain
# The share of one dataset's examples that must be in the other, in either direction.
SHARED = 0.5
_NAME_LENGTH = 80


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """The dataset, configuration and task of a run; becomes its experiment, name and tags.

    `sketch` are hexadecimal hashes in ascending order; if empty, the dataset is known by name only.
    `task` is a digest of the prediction task: only results of the same task are comparable.
    """

    dataset: str
    pipeline: str
    data_digest: str
    sketch: Sequence[str] = ()
    task: str = ""


def make_run_key(
    manifest: Path,
    path: str,
    *,
    pipeline: str,
    window: WindowSettings | None = None,
    data_digest: str = "",
) -> RunKey:
    """Make the key of a configuration's run on the dataset that ingest has read from `path`.

    `manifest` is ingest's folder; `window` is set for series and tokens. Raises MissingInput.
    """
    if not (manifest / "manifest.json").exists():
        raise MissingInput(f"{manifest} holds no complete manifest; run `dvc repro ingest`")
    examples = pd.read_parquet(manifest / "examples.parquet", columns=["digest", "label"])
    summary = read_json(manifest / "manifest.json")
    classes = summary["classes"]
    labels = (
        classes[int(label)] if classes else str(np.asarray(label).tolist())
        for label in examples["label"]
    )
    labeled = zip(examples["digest"].tolist(), labels, strict=True)
    hashes = (digest_blake2b(digest.encode(), label.encode())[:16] for digest, label in labeled)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-.")[:_NAME_LENGTH] or "data"
    return RunKey(
        dataset=name,
        pipeline=pipeline,
        data_digest=data_digest or summary["digest"],
        sketch=tuple(heapq.nsmallest(SKETCHED, hashes)),
        task=describe_task(summary, window),
    )


def describe_task(summary: Mapping[str, Any], window: WindowSettings | None) -> str:
    """Return a digest of the prediction task: the label's kind, classes, columns and windows."""
    schema, windows = parse(Schema, summary["schema"]), None
    if window and window.tokens is not None:
        windows = [window.tokens]
    elif window and schema.is_series:
        windows = [window.length, window.horizon, sorted(window.targets)]
    label = schema.target.encoding.name if schema.target else "none"
    task = [label, summary["classes"], list(schema.columns.names), windows]
    return digest_json(task)[:16]


def same_data(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether half of one dataset's examples or more are in the other, by their sketches."""
    return max(_share(one, other), _share(other, one)) >= SHARED


def _share(one: Sequence[str], other: Sequence[str]) -> float:
    """Estimate the share of `one` in `other` from the hashes within the range of `other`."""
    reach = other[-1] if len(other) >= SKETCHED else "g"  # a short sketch covers the whole dataset
    within = [number for number in one if number <= reach]
    return len({*within} & {*other}) / len(within) if within else 0.0


def get_experiment_id(run_key: RunKey) -> str:
    """Find or make the experiment of a dataset and task, update its sketch, and return its id."""
    key = run_key
    if not key.sketch:
        return _named(EXPERIMENT_PREFIX + key.dataset)
    for experiment in mlflow.search_experiments(filter_string=f"name LIKE '{EXPERIMENT_PREFIX}%'"):
        known = json.loads(experiment.tags.get(SKETCH_TAG, "[]"))
        same_task = experiment.tags.get(TASK_TAG, "") in ("", key.task)
        if known and same_task and same_data(known, key.sketch):
            found = experiment.experiment_id
            break
    else:
        about = digest_json([key.data_digest, key.task]) if key.task else key.data_digest
        found = _named(f"{EXPERIMENT_PREFIX}{key.dataset}-{about[:8]}")
    client = mlflow.MlflowClient()
    client.set_experiment_tag(found, SKETCH_TAG, json.dumps(list(key.sketch)))
    client.set_experiment_tag(found, TASK_TAG, key.task)
    return found


def _named(name: str) -> str:
    """Find or make the experiment of this name; if that was deleted, add a number to the name."""
    local = mlflow.get_tracking_uri().startswith("sqlite:")
    artifacts = (store_home() / OWN_ARTIFACTS).as_uri() if local else None
    candidate, number = name, 1
    while True:
        found = mlflow.get_experiment_by_name(candidate)
        if found is None:
            try:
                return mlflow.create_experiment(candidate, artifact_location=artifacts)
            except MlflowException:
                # Another run has made it at the same time.
                found = mlflow.get_experiment_by_name(candidate)
                if found is None:
                    raise
        if found.lifecycle_stage == "active":
            return found.experiment_id
        number += 1
        candidate = f"{name}-{number}"
