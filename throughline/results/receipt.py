"""The receipt of a training: the origin of its batches and its model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from throughline.results.base import ResultFile
from throughline.shared.errors import expect_current_schema

LOSSES = "losses.npy"  # the loss of each step (steps,) float32


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """A batch by its step, counted from 0 over all epochs, and the digest of its content."""

    step: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Receipt(ResultFile, file="receipt.json", stage="train@{name}"):
    """The values by which any batch of a training can be rebuilt and checked.

    Attributes:
      config: The configuration's fields that differ from their defaults.
      steps: The number of steps taken, over all epochs.
      parts: The digest of each part that defines the training: data, code, settings, versions.
      sample: The first batch of the last epoch; None if batches depend on timing.
      commit: The git commit, or ""; with `changed`, code or parameters differed from it.
      model, losses: The digests of the files.
    """

    pipeline: str
    config: Mapping[str, Any]
    plan: str
    seed: int
    batch_size: int
    batch_multiple: int
    examples: int
    steps_per_epoch: int
    steps: int
    parts: Mapping[str, str]
    versions: Mapping[str, str]
    data_digest: str
    sample: SampleBatch | None
    commit: str
    changed: bool
    model: str
    losses: str


def name_step(step: int, per_epoch: int) -> str:
    """Return a step, counted from 0 over all epochs, as EPOCH/N, both counted from 1."""
    epoch, number = divmod(step, per_epoch)
    return f"{epoch + 1}/{number + 1}"


def read_losses(folder: Path) -> np.ndarray:
    """Read a training's losses (steps,) float32: empty if emulated, NaN if the step reports none.

    Raises:
      MissingInput, DamagedFile: There is no such file, or it holds something else.
    """
    with expect_current_schema(folder / LOSSES, f"train@{folder.name}"):
        return np.load(folder / LOSSES, allow_pickle=False)
