"""The budgets of a search (memory, disk, preparation, epochs, its own time), and checks of them.

Budgets are written as `8GiB` or `10min`, and capped by the machine's free resources. Imports no
TensorFlow.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
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
SIZES = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12} | {
    unit: 2.0 ** (10 * power) for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)
}
TIMES = {"s": 1, "min": 60, "h": 3600}
SHORTEST_SEARCH_S = 60
KEY_BYTES = 8  # size of a row's key in the snapshot
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]+)")

Allowance = Literal["approximate", "unordered"]


def parse_size(text: str) -> float:
    """Return the bytes of a size such as 500MB, infinity for available; or raise a ValueError."""
    advice = "a size needs a number and a unit, such as 500MB or 8GiB"
    return math.inf if text == AVAILABLE else _parse(text, SIZES, advice)


def parse_time(text: str) -> float:
    """Return the seconds of a time such as 1.5h, infinity for unlimited; or raise a ValueError."""
    advice = "a time needs a number and a unit, such as 90s, 10min or 1.5h"
    return math.inf if text == UNLIMITED else _parse(text, TIMES, advice)


def _parse(text: str, units: Mapping[str, float], advice: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    factor = units.get(match["unit"].lower()) if match else None
    if not match or factor is None or float(match["number"]) == 0:
        raise ValueError(f"{advice}; found {text!r}")
    return float(match["number"]) * factor


def _checked(parse: Callable[[str], float], *, shortest: float = 0.0) -> AfterValidator:
    def check(text: str) -> str:
        amount = parse(text)
        if shortest and not shortest <= amount < math.inf:
            raise ValueError(f"a search needs at least 1min, and more to race many; found {text!r}")
        return text

    return AfterValidator(check)


class Budgets(Settings):
    """The budgets of a search, and the epochs of the training that it optimizes."""

    ram: Annotated[str, _checked(parse_size)] = Field(
        default=AVAILABLE,
        description="memory of a training, such as 8GiB; available: what this machine has left",
    )
    disk: Annotated[str, _checked(parse_size)] = Field(
        default=AVAILABLE,
        description=(
            "what a configuration keeps on disk besides the shards, such as 20GiB; available: what"
            " is free, with the space of the present snapshot"
        ),
    )
    prepare: Annotated[str, _checked(parse_time)] = Field(
        default=UNLIMITED,
        description="time to write a snapshot, such as 10min; unlimited: any, but it counts",
    )
    epochs: Annotated[str | int, *word_or_count(AUTO)] = Field(
        default=AUTO, description="epochs of the training to optimize; auto: train.epochs"
    )
    time: Annotated[str, _checked(parse_time, shortest=SHORTEST_SEARCH_S)] = Field(
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

    An item of `allow` may list several words with commas. InvalidBudget names all wrong options.
    """
    given = {name: value for name, value in options.items() if value is not None}
    given["allow"] = [word for text in allow or () for word in text.split(",") if word]
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
        "ram": parse_size(budgets.ram),
        "disk": parse_size(budgets.disk),
        "prepare": parse_time(budgets.prepare),
        "allow": sorted({*budgets.allow}),
    }


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Budgets as numbers, capped by free resources; `kept_bytes` is for splits kept in memory."""

    ram_bytes: float
    kept_bytes: float
    disk_bytes: float
    prepare_s: float
    free_bytes: float = math.inf


def find_limits(budgets: Budgets, folder: Path) -> Limits:
    """Convert budgets to numbers, capped by free memory and disk.

    Free disk is the free space in the project's `folder`, plus the space of its snapshot.
    """
    memory, snapshot = available_memory(), Layout(folder).snapshot.rglob("*")
    taken = sum(file.stat().st_size for file in snapshot if file.is_file())
    free = psutil.disk_usage(str(folder.absolute())).free
    return Limits(
        ram_bytes=min(parse_size(budgets.ram), memory),
        kept_bytes=KEPT_SHARE * memory,
        disk_bytes=min(parse_size(budgets.disk), free + taken),
        prepare_s=parse_time(budgets.prepare),
        free_bytes=free,
    )


def find_excess(needs: Mapping[str, Need], limits: Limits) -> dict[str, str]:
    """Return why configurations exceed the limits, by name.

    If all exceed them, raises InvalidBudget with the reasons of those that need the least memory.
    """
    excess = {name: why for name, need in needs.items() if (why := describe_excess(need, limits))}
    if len(excess) == len(needs):
        ordered = sorted(excess, key=lambda name: needs[name].ram_bytes)
        reasons = name_some([f"`{name}` {excess[name]}" for name in ordered], most=3)
        raise InvalidBudget(
            f"no configuration fits into the budgets: {reasons}; raise --ram, --disk or --prepare"
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
    if seconds == math.inf:
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

    InvalidBudget gives the disk that the snapshot needs, and the fraction that fits.
    """
    allowed = parse_size(budgets.disk)
    if allowed == math.inf or params.storage.url:  # the stage itself reports a full disk
        return
    shards = read_shard_index(Layout(root).shards)
    schema, rows = shards.schema, sum(map(shards.examples, shards.splits))
    image = Column(
        name=schema.input.name,
        dtype=schema.input.dtype,
        shape=stored_shape(params.preprocess, schema),
    )
    if schema.input.encoding.modality != "images" or image.ragged:
        return
    others = KEY_BYTES + sum(
        np.dtype(one.dtype).itemsize * math.prod(size or 1 for size in one.shape)
        for one in (schema.target, schema.table_input)
        if one
    )
    needed = rows * (others + params.snapshot.stored_fraction * image.stride)
    if needed <= allowed:
        return
    remedy, fitting = "raise", math.floor(100 * (allowed / rows - others) / image.stride) / 100
    if fitting > 0:
        more = [
            f"pipelines.{name}"
            for name, config in params.pipelines.items()
            if config.read == "snapshot" and config.snapshot.fraction > fitting
        ]
        where = " and ".join(["params.yaml", *more])
        remedy = (
            f"`snapshot: {{fraction: {fitting}}}` in {where} stores as many rows as fit; or raise"
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
