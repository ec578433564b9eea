"""What one stage writes for the others: a typed value in a JSON file, and the one way to read it.

There is a module per stage, so that DVC runs a stage again only where the form of its own results,
or of those it reads, has changed.
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
MIN_ROUNDS = 3  # from which on an interval says something


class ResultFile:
    """Base of the values that are a file each: dataclasses that name their file and stage.

    `STAGE` is a name in dvc.yaml, in which {name} is the configuration. `FOLDER` is where below the
    configuration's folder the file is.
    """

    FILE: ClassVar[str]
    STAGE: ClassVar[str]
    FOLDER: ClassVar[str] = ""

    @classmethod
    def path(cls, folder: Path) -> Path:
        """The file below a configuration's folder, or whatever folder the stage writes into."""
        return folder / cls.FOLDER / cls.FILE

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the value from its file below `folder`; raises as `read_value`."""
        return read_value(cls, cls.path(folder), cls.STAGE.format(name=folder.name))

    def write(self, folder: Path) -> None:
        """Write the file into the folder that it is to be in, atomically."""
        write_json(folder / self.FILE, self)


def name_machine(machine: Mapping[str, Any]) -> str:
    """What of a machine decides how fast it is, in words; not its name, which is another one in
    each container.
    """
    gpus = ", ".join(machine.get("gpus", ())) or "no GPU"
    return f"{machine.get('cores')} cores of {machine.get('cpu')} with {gpus}"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value by some rounds of a race, and the interval that holds it in 95 of 100 races."""

    value: float
    low: float
    high: float
    rounds: int

    def times(self, factor: float) -> Estimate:
        """So many times of it."""
        ends = (self.value * factor, self.low * factor, self.high * factor)
        return Estimate(value=ends[0], low=ends[1], high=ends[2], rounds=self.rounds)

    @property
    def below_one(self) -> bool:
        """Whether it is a ratio that is certainly below 1."""
        return self.rounds >= MIN_ROUNDS and self.high < 1

    @property
    def above_one(self) -> bool:
        """Whether it is a ratio that is certainly above 1."""
        return self.rounds >= MIN_ROUNDS and self.low > 1

    @property
    def width(self) -> float:
        """How far its ends are from it, as a share of it."""
        return max(self.high / self.value, self.value / self.low) - 1 if self.low > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources that a process used while it was measured. GPU fields are None without a GPU,
    or where NVML does not report them.

    Wall time, CPU time (of this process and of its children, such as the workers of a local tf.data
    service) and the GPU's metrics leave out what happened while measuring was paused; memory and
    reading from storage are of this process and the whole time. CPU utilization is of all cores
    that the process may use.
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
    """The typed value that a stage has written into a JSON file.

    Raises:
      MissingInput: the file is not there, or of another form than this program's.
      DamagedFile: it is empty, cut off or no JSON.
    """
    with expect_current_schema(path, stage):
        return parse(kind, json.loads(path.read_bytes()))


def parse(kind: type[Value], document: Any) -> Value:
    """The typed value of what JSON holds, within `expect_current_schema`.

    Raises:
      TypeError: it has another form; says where.
    """
    try:
        return _adapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise TypeError(f"{where}: {first['msg'].lower()}") from error


def to_json(value: Any) -> Any:
    """A typed value as JSON holds it, for `parse`."""
    return _adapter(type(value)).dump_python(value, mode="json")


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
