"""Results that stages write for one another: typed values in JSON files, and how to read them.

Each stage has its own module, so DVC reruns a stage only if the form of its own results, or of
those that it reads, changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from throughline.shared.errors import expect_current_schema
from throughline.shared.files import write_json

Value = TypeVar("Value")
MIN_ROUNDS = 3  # for a meaningful interval


class ResultFile:
    """Base of the dataclasses that are stored in a file each.

    Attributes:
      FILE: Its name.
      STAGE: The stage that writes it; {name} stands for the configuration.
      FOLDER: Subfolder of the configuration's folder; `read` adds it to the path, `write` does not.
    """

    FILE: ClassVar[str]
    STAGE: ClassVar[str]
    FOLDER: ClassVar[str]

    def __init_subclass__(cls, *, file: str, stage: str, folder: str = "") -> None:
        cls.FILE, cls.STAGE, cls.FOLDER = file, stage, folder

    @classmethod
    def path(cls, folder: Path) -> Path:
        return folder / cls.FOLDER / cls.FILE

    @classmethod
    def read(cls, folder: Path) -> Self:
        return read_value(cls, cls.path(folder), cls.STAGE.format(name=folder.name))

    def write(self, folder: Path) -> None:
        write_json(folder / self.FILE, self)


def name_machine(machine: Mapping[str, Any]) -> str:
    """Describe a machine's cores and GPUs, without its name, which differs in each container."""
    gpus = ", ".join(machine.get("gpus", ())) or "no GPU"
    return f"{machine.get('cores')} cores of {machine.get('cpu')} with {gpus}"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value from some rounds of a race, and its 95 % confidence interval."""

    value: float
    low: float
    high: float
    rounds: int

    def times(self, factor: float) -> Estimate:
        value, low, high = (end * factor for end in (self.value, self.low, self.high))
        return Estimate(value=value, low=low, high=high, rounds=self.rounds)

    @property
    def below_one(self) -> bool:
        """Whether the interval of this ratio, from at least `MIN_ROUNDS`, is below 1."""
        return self.rounds >= MIN_ROUNDS and self.high < 1

    @property
    def above_one(self) -> bool:
        """Whether the interval of this ratio, from at least `MIN_ROUNDS`, is above 1."""
        return self.rounds >= MIN_ROUNDS and self.low > 1

    @property
    def width(self) -> float:
        """The larger relative distance of the interval's ends from the value; inf if `low` ≤ 0."""
        return max(self.high / self.value, self.value / self.low) - 1 if self.low > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources that a process used while it was measured.

    Times and GPU metrics exclude pauses; reads from storage include them. CPU time includes
    children, such as workers of a local tf.data service; CPU utilization is of all usable cores.
    Memory is the peak since the start. GPU fields are None without a GPU, or if NVML lacks them.
    """

    wall_s: float
    cpu_s: float
    cpu_utilization_pct: float | None
    rss_mb_max: float
    disk_read_mb: float
    gpu_utilization_pct_mean: float | None
    gpu_utilization_pct_p10: float | None
    gpu_utilization_pct_p50: float | None
    gpu_memory_mb_max: float | None
    gpu_power_w_mean: float | None


def read_value(kind: type[Value], path: Path, stage: str) -> Value:
    """Read the typed value that a stage has written to a JSON file.

    Raises:
      MissingInput: If there is no file, or it has another form than this program's.
      DamagedFile: If the file is empty, truncated or not JSON.
    """
    with expect_current_schema(path, stage):
        return parse(kind, json.loads(path.read_bytes()))


def parse(kind: type[Value], document: Any) -> Value:
    """Convert a JSON document to a typed value; call it within `expect_current_schema`.

    Raises:
      TypeError: If the document has another form; says where.
    """
    try:
        return _adapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise TypeError(f"{where}: {first['msg'].lower()}") from error


def to_json(value: Any) -> Any:
    return _adapter(type(value)).dump_python(value, mode="json")


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
