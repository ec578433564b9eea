"""The budgets of a search, and what exceeds them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.project import SMALL
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check
from throughline.shared.errors import InvalidBudget
from throughline.shared.limits import available_memory
from throughline.tuning import budgets
from throughline.tuning.budgets import Need, find_excess, find_limits, read_budgets

pytestmark = pytest.mark.integration


def test_sizes_times_and_allowances_are_read_and_written_as_people_write_them():
    texts = ("8GiB", "1.5 MiB", "2GB", "3kb", "7B")
    assert [*map(budgets.parse_size, texts)] == [8 * 2**30, 1.5 * 2**20, 2e9, 3e3, 7]
    assert [*map(budgets.parse_time, ("90s", "10min", "1.5h"))] == [90, 600, 5400]
    written = [budgets.format_seconds(each) for each in (0.84, 41.2, 720, 12600, math.inf)]
    assert written == ["0.8 s", "41 s", "12 min", "3.5 h", "any time"]
    assert [budgets.format_bytes(each * 2**20) for each in (38, 1126)] == ["38 MiB", "1.1 GiB"]
    allowed = [read_budgets(allow=each).allow for each in (["approximate,unordered"], None)]
    assert allowed == [("approximate", "unordered"), ()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ram": "8"}, "--ram: a size needs a number and a unit, such as 500MB or 8GiB; found '8'"),
        ({"disk": "-1GiB"}, "--disk: a size needs a number and a unit"),
        ({"prepare": "10GiB"}, "--prepare: a time needs a number and a unit"),
        ({"time": "59s"}, "--time: a search needs at least 1min"),
        ({"time": "unlimited"}, "--time: a search needs at least 1min"),
        ({"epochs": 0}, "--epochs: expected auto or a whole number from 1; found 0"),
        ({"allow": ["anything"]}, "--allow: input should be 'approximate' or 'unordered'"),
    ],
)
def test_what_is_no_budget_is_named_by_its_option(options, said):
    with pytest.raises(InvalidBudget) as refused:
        read_budgets(**{"epochs": 3, **options})
    assert str(refused.value).startswith(said)


def test_limits_are_no_more_than_is_left_and_what_needs_more_is_said_with_the_allowance():
    limits = find_limits(read_budgets(ram="1MiB", disk="900TiB", prepare="1s"), Path())
    assert limits.ram_bytes == 2**20 and limits.disk_bytes < 900 * 2**40
    left = find_limits(read_budgets(), Path())
    assert left.ram_bytes <= 1.1 * available_memory() and left.prepare_s == math.inf
    assert left.kept_bytes == 0.8 * left.ram_bytes
    small = Need(ram_bytes=2**19, disk_bytes=0, prepare_s=0)
    large = Need(ram_bytes=2**30, disk_bytes=0, prepare_s=60)
    leaner, cached = (replace(small, kept_bytes=part * limits.kept_bytes) for part in (0.9, 1.1))
    needs = {"small": small, "large": large, "leaner": leaner, "cached": cached}
    found = find_excess(needs, limits)
    assert found.pop("large") == (
        "needs 1.0 GiB of memory (allowed: 1 MiB); needs 60 s of preparation (allowed: 1.0 s)"
    )
    assert found.keys() == {"cached"} and "of memory to keep splits in" in found["cached"]
    with pytest.raises(InvalidBudget, match=r"budgets: `large` needs 1\.0 GiB of .*preparation"):
        find_excess({"large": large}, limits)


def test_more_of_a_snapshot_than_the_disk_has_room_for_is_refused(layout):
    data = open_inputs(check(SMALL), layout)
    splits, column = data.shards.splits, data.input_column
    whole = sum(map(data.snapshot.bytes, splits))
    values = sum(data.snapshot.splits[one].bytes(column) for one in splits)
    part = f"{whole - 0.6 * values + 1:.0f}B"
    naive = {"naive": {"read": "shards"}}

    def refuse(disk, fraction=1.0, pipelines=naive):
        stored = {"snapshot": {"fraction": fraction}, "pipelines": pipelines}
        budgets.refuse_large_snapshot(
            check({**SMALL, **stored}), layout.root, read_budgets(disk=disk)
        )

    for fits in (("available",), (f"{whole}B",), (part, 0.4)):
        refuse(*fits)
    with pytest.raises(InvalidBudget, match=r"fraction: 0\.4}` in params\.yaml .* raise --disk"):
        refuse(part)
    with pytest.raises(InvalidBudget, match=r"in params\.yaml and pipelines\.optimized stores"):
        refuse(part, pipelines=SMALL["pipelines"])
    with pytest.raises(InvalidBudget, match=r"needs 27 kiB of disk \(allowed: .*\); raise --disk"):
        refuse("1B")


def test_the_disk_that_the_snapshot_takes_is_there_for_it(tmp_path):
    taken = tmp_path / "data" / "snapshot" / "train"
    taken.parent.mkdir(parents=True)
    with taken.open("wb") as file:
        file.truncate(1 << 43)  # a hole takes no disk
    assert find_limits(read_budgets(), tmp_path).disk_bytes > 1 << 43
    assert find_limits(read_budgets(disk="1GiB"), tmp_path).disk_bytes == 1 << 30
