"""Checks before writing that the snapshot fits into the disk budget. Imports no TensorFlow."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from throughline.config.params import Params
from throughline.data.columns.index import Column
from throughline.data.shards.index import read_shard_index
from throughline.plan.shapes import stored_shape
from throughline.shared.errors import InvalidBudget
from throughline.shared.layout import Layout
from throughline.tuning.budgets import AVAILABLE, Budgets, parse_size
from throughline.tuning.needs import format_bytes

KEY_BYTES = 8


def refuse_large_snapshot(params: Params, root: Path, budgets: Budgets) -> None:
    """Refuse to write a snapshot that exceeds `--disk`, if its rows are images of one size.

    Raises:
      InvalidBudget: If it would; says by how much, and which fraction of it fits.
    """
    if budgets.disk == AVAILABLE or params.storage.url:  # the stage itself reports a full disk
        return
    shards = read_shard_index(Layout(root).shards)
    value, target = shards.schema.input, shards.schema.target
    image = Column(
        name=value.name, dtype=value.dtype, shape=stored_shape(params.preprocess, shards.schema)
    )
    if value.encoding.modality != "images" or image.ragged:
        return
    rows, allowed = sum(map(shards.examples, shards.splits)), parse_size(budgets.disk)
    table = shards.schema.table_input
    numbers = [one for one in (target, table) if one]
    others = KEY_BYTES + sum(
        np.dtype(one.dtype).itemsize * math.prod(size or 1 for size in one.shape) for one in numbers
    )
    needed = rows * (others + params.snapshot.stored_fraction * image.stride)
    if needed <= allowed:
        return
    fitting = math.floor(100 * (allowed / rows - others) / image.stride) / 100
    more = [
        f"pipelines.{name}"
        for name, config in params.pipelines.items()
        if config.read == "snapshot" and config.snapshot.fraction > fitting
    ]
    where = " and ".join(["params.yaml", *more])
    remedy = (
        f"`snapshot: {{fraction: {fitting}}}` in {where} stores as many rows as fit; or raise"
        if fitting > 0
        else "raise"
    )
    raise InvalidBudget(
        f"the snapshot would take {format_bytes(needed)} of disk, {format_bytes(allowed)} are"
        f" allowed; {remedy} --disk"
    )
