"""The budgets of a search (memory, disk, preparation, epochs, its own time), and what exceeds them.

Budgets are written as `8GiB` or `10min`, and capped by what the machine has left. Imports no
TensorFlow.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import psutil
from pydantic import AfterValidator, Field, ValidationError

from throughline.config.params import Params
from throughline.data.columns.index import Column
from throughline.data.shards.index import read_shard_index
from throughline.plan.shapes import stored_shape
from throughline.plan.training_workers import training_worker_from_tf_config
from throughline.results.tuning import Need
from throughline.settings.base import Settings, word_or_count
from throughline.shared.errors import InvalidBudget, Untunable
from throughline.shared.layout import Layout
from throughline.shared.limits import KEPT_SHARE, available_memory
from throughline.shared.wording import name_some

AVAILABLE, UNLIMITED, AUTO = "available", "unlimited", "auto"
SIZES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12} | {
    unit: 2.0 ** (10 * power) for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)
}
TIMES = {"s": 1, "min": 60, "h": 3600}
SHORTEST_SEARCH_S = 60
KEY_BYTES = 8  # of each row in the snapshot
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]+)")

Allowance = Literal["approximate", "unordered"]


def parse_size(text: str) -> float:
    """Return the bytes of a size such as 500MB or 8GiB; raises a ValueError with advice."""
    return _parse(text, SIZES, "a size needs a number and a unit, such as 500MB or 8GiB")


def parse_time(text: str) -> float:
    """Return the seconds of a time such as 90s, 10min or 1.5h; raises a ValueError with advice."""
    return _parse(text, TIMES, "a time needs a number and a unit, such as 90s, 10min or 1.5h")


def _parse(text: str, units: Mapping[str, float], advice: str) -> float:
    known = {unit.lower(): factor for unit, factor in units.items()}
    match = _QUANTITY.fullmatch(text.strip())
    factor = known.get(match["unit"].lower()) if match else None
    if not match or factor is None or float(match["number"]) == 0:
        raise ValueError(f"{advice}; found {text!r}")
    return float(match["number"]) * factor


def _check_size(text: str) -> str:
    if text != AVAILABLE:
        parse_size(text)
    return text


def _check_time(text: str) -> str:
    if text != UNLIMITED:
        parse_time(text)
    return text


def _check_search_time(text: str) -> str:
    if parse_time(text) < SHORTEST_SEARCH_S:
        raise ValueError(f"a search needs at least 1min, and more to race many; found {text!r}")
    return text


class Budgets(Settings):
    """The budgets of a search, and the epochs of the training that it optimizes."""

    ram: Annotated[str, AfterValidator(_check_size)] = Field(
        default=AVAILABLE,
        description="memory of a training, such as 8GiB; available: what this machine has left",
    )
    disk: Annotated[str, AfterValidator(_check_size)] = Field(
        default=AVAILABLE,
        description=(
            "what a configuration keeps on disk besides the shards, such as 20GiB; available: what"
            " is free, with the space of the present snapshot"
        ),
    )
    prepare: Annotated[str, AfterValidator(_check_time)] = Field(
        default=UNLIMITED,
        description="time to write a snapshot, such as 10min; unlimited: any, but it counts",
    )
    epochs: Annotated[str | int, *word_or_count(AUTO)] = Field(
        default=AUTO, description="epochs of the training to optimize; auto: train.epochs"
    )
    time: Annotated[str, AfterValidator(_check_search_time)] = Field(
        default="5min",
        description="for the search, at least 1min; preparing and proving may come on top",
    )
    allow: tuple[Allowance, ...] = Field(
        default=(),
        description=(
            "approximate: pixels decoded approximately · unordered: an order that depends on"
            " timing; neither: exact examples, in a reproducible order"
        ),
    )


def read_budgets(*, allow: Sequence[str] | None = None, **options: Any) -> Budgets:
    """Read the budgets from the options of a command line; None means the default.

    An item of `allow` may list several words with commas.

    Raises:
      InvalidBudget: Names every option that is wrong.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if words := [word for text in allow or () for word in text.split(",") if word]:
        given["allow"] = words
    try:
        return Budgets(**given)
    except ValidationError as error:
        raise InvalidBudget("\n".join(_describe(problem) for problem in error.errors())) from error


def _describe(problem: Any) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    shown = "" if "found" in message else f"; found {problem['input']!r}"
    return f"--{problem['loc'][0]}: {message[0].lower()}{message[1:]}{shown}"


def as_numbers(budgets: Budgets) -> dict[str, Any]:
    """Return ram, disk, prepare and allow in a form in which 1GiB equals 1024MiB."""
    return {
        "ram": budgets.ram if budgets.ram == AVAILABLE else parse_size(budgets.ram),
        "disk": budgets.disk if budgets.disk == AVAILABLE else parse_size(budgets.disk),
        "prepare": budgets.prepare if budgets.prepare == UNLIMITED else parse_time(budgets.prepare),
        "allow": sorted({*budgets.allow}),
    }


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Budgets as numbers, capped by what is left; `kept_bytes` is for splits kept in memory."""

    ram_bytes: float
    kept_bytes: float
    disk_bytes: float
    prepare_s: float
    free_bytes: float = math.inf


def find_limits(budgets: Budgets, folder: Path) -> Limits:
    """Convert budgets to numbers, capped by free memory and disk.

    Memory is limited by the machine and its control groups. Disk is what is free in the project's
    `folder`, plus what its snapshot occupies.
    """

    def capped(text: str, left: float) -> float:
        return left if text == AVAILABLE else min(parse_size(text), left)

    memory, snapshot = available_memory(), Layout(folder).snapshot.rglob("*")
    taken = sum(file.stat().st_size for file in snapshot if file.is_file())
    free = psutil.disk_usage(str(folder.absolute())).free
    return Limits(
        ram_bytes=capped(budgets.ram, memory),
        kept_bytes=KEPT_SHARE * memory,
        disk_bytes=capped(budgets.disk, free + taken),
        prepare_s=math.inf if budgets.prepare == UNLIMITED else parse_time(budgets.prepare),
        free_bytes=free,
    )


def find_excess(needs: Mapping[str, Need], limits: Limits) -> dict[str, str]:
    """Return why configurations exceed the limits, by name.

    Raises:
      InvalidBudget: If all of them do; says why those do that need the least memory.
    """
    excess = {name: why for name, need in needs.items() if (why := describe_excess(need, limits))}
    if len(excess) == len(needs):
        ordered = sorted(excess, key=lambda name: needs[name].ram_bytes)
        reasons = [f"`{name}` {excess[name]}" for name in ordered]
        raise InvalidBudget(
            f"no configuration fits into the budgets: {name_some(reasons, most=3)}; raise --ram,"
            " --disk or --prepare"
        )
    return excess


def describe_excess(need: Need, limits: Limits) -> str:
    spent = (
        ("memory", need.ram_bytes, limits.ram_bytes, format_bytes),
        ("memory to keep splits in", need.kept_bytes, limits.kept_bytes, format_bytes),
        ("disk", need.disk_bytes, limits.disk_bytes, format_bytes),
        ("disk besides the snapshot", need.written_bytes, limits.free_bytes, format_bytes),
        ("preparation", need.prepare_s, limits.prepare_s, format_seconds),
    )
    return "; ".join(
        f"needs {shown(needed)} of {what} (allowed: {shown(allowed)})"
        for what, needed, allowed, shown in spent
        if needed > allowed
    )


def format_seconds(seconds: float) -> str:
    """Format a time for people: 0.8 s, 41 s, 12 min, 3.5 h; infinity is "any time"."""
    if seconds == float("inf"):
        return "any time"
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


def format_bytes(count: float) -> str:
    """Format bytes for people: 12 kiB, 38 MiB, 1.1 GiB."""
    mib = count / 2**20
    if mib < 1:
        return f"{count / 2**10:.0f} kiB"
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"  # noqa: PLR2004


def refuse_large_snapshot(params: Params, root: Path, budgets: Budgets) -> None:
    """Refuse to write a snapshot that exceeds `--disk`, if it is local and of images of one size.

    Raises:
      InvalidBudget: If it does; says how much it needs, and which fraction of it fits.
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
        f"the snapshot needs {format_bytes(needed)} of disk (allowed: {format_bytes(allowed)});"
        f" {remedy} --disk"
    )


def refuse_several_hosts(environment: Mapping[str, str]) -> None:
    """Raise Untunable if TF_CONFIG names several workers."""
    if training_worker_from_tf_config(environment).count > 1:
        raise Untunable(
            "TF_CONFIG names several workers, but a search measures a single process; unset"
            " TF_CONFIG"
        )
