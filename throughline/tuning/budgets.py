"""The budgets of a search: memory, disk, preparation time, epochs and its own time.

Budgets are written as `8GiB` or `10min`, and capped by what the machine has left. Imports no
TensorFlow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import AfterValidator, Field, ValidationError

from throughline.plan.training_workers import training_worker_from_tf_config
from throughline.settings.base import Settings, word_or_count
from throughline.shared.errors import InvalidBudget, Untunable
from throughline.shared.layout import Layout
from throughline.shared.limits import KEPT_SHARE, available_memory

AVAILABLE, UNLIMITED, AUTO = "available", "unlimited", "auto"
SIZES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12} | {
    unit: 2.0 ** (10 * power) for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)
}
TIMES = {"s": 1, "min": 60, "h": 3600}
SHORTEST_SEARCH_S = 60
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
        raise ValueError(f"a search takes at least 1min, in which few plans race; found {text!r}")
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
            " is free"
        ),
    )
    prepare: Annotated[str, AfterValidator(_check_time)] = Field(
        default=UNLIMITED,
        description="time to write a snapshot, such as 10min; unlimited: any, but it is counted",
    )
    epochs: Annotated[str | int, *word_or_count(AUTO)] = Field(
        default=AUTO, description="of the training that is to be fast; auto: train.epochs"
    )
    time: Annotated[str, AfterValidator(_check_search_time)] = Field(
        default="5min",
        description="of racing, at least 1min; to prepare and to prove the winner comes on top",
    )
    allow: tuple[Allowance, ...] = Field(
        default=(),
        description=(
            "approximate: pixels decoded otherwise · unordered: elements in the order of their"
            " timing; neither: every example as it is, in an order that repeats"
        ),
    )


def read_budgets(*, allow: Sequence[str] | None = None, **options: Any) -> Budgets:
    """Read the budgets from the options of a command line; options of None are left out.

    `allow` may be given several times, or once with commas.

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
    """Return the budgets except time and epochs as numbers, so that 1min equals 60s."""
    return {
        "ram": budgets.ram if budgets.ram == AVAILABLE else parse_size(budgets.ram),
        "disk": budgets.disk if budgets.disk == AVAILABLE else parse_size(budgets.disk),
        "prepare": budgets.prepare if budgets.prepare == UNLIMITED else parse_time(budgets.prepare),
        "allow": sorted({*budgets.allow}),
    }


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Budgets as numbers, capped by what the machine has left; splits may take `kept_bytes`."""

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


def refuse_several_hosts(environment: Mapping[str, str]) -> None:
    """Raise Untunable if TF_CONFIG names several workers."""
    if training_worker_from_tf_config(environment).count > 1:
        raise Untunable(
            "TF_CONFIG names several workers, and a search is about one process on one machine;"
            " unset it"
        )
