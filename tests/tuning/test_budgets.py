"""Budgets: sizes and times as people write them, and what does not fit into them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.project import SMALL
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check
from throughline.shared.errors import InvalidBudget
from throughline.shared.limits import available_memory
from throughline.tuning.budgets import find_limits, parse_size, parse_time, read_budgets
from throughline.tuning.needs import Need, find_excess, format_bytes, format_seconds
from throughline.tuning.preparation import refuse_large_snapshot

pytestmark = pytest.mark.integration


def test_sizes_times_and_allowances_are_read_and_written_as_people_write_them():
    texts = ("8GiB", "1.5 MiB", "2GB", "3kb", "7B")
    assert [*map(parse_size, texts)] == [8 * 2**30, 1.5 * 2**20, 2e9, 3e3, 7]
    assert [*map(parse_time, ("90s", "10min", "1.5h"))] == [90, 600, 5400]
    written = [format_seconds(each) for each in (0.84, 41.2, 720, 12600, math.inf)]
    assert written == ["0.8 s", "41 s", "12 min", "3.5 h", "any time"]
    assert [format_bytes(each * 2**20) for each in (38, 1126)] == ["38 MiB", "1.1 GiB"]
    assert read_budgets(allow=["approximate,unordered"]).allow == ("approximate", "unordered")
    assert read_budgets(allow=["unordered"]).allow == ("unordered",)
    assert read_budgets(allow=None).allow == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ram": "8"}, "--ram: a size needs a number and a unit, such as 500MB or 8GiB; found '8'"),
        ({"disk": "-1GiB"}, "--disk: a size needs a number and a unit"),
        ({"prepare": "10GiB"}, "--prepare: a time needs a number and a unit"),
        ({"time": "59s"}, "--time: a search takes at least 1min"),
        ({"epochs": 0}, "--epochs: expected auto or a whole number from 1; found 0"),
        ({"allow": ["anything"]}, "--allow: input should be 'approximate' or 'unordered'"),
    ],
)
def test_what_is_no_budget_is_named_by_its_option(options, said):
    with pytest.raises(InvalidBudget) as refused:
        read_budgets(**{"epochs": 3, **options})
    assert str(refused.value).startswith(said)


def test_budgets_are_no_more_than_the_machine_has_left():
    limits = find_limits(read_budgets(ram="1MiB", disk="900TiB", epochs=1), Path())
    assert limits.ram_bytes == 2**20
    assert limits.disk_bytes < 900 * 2**40
    assert limits.prepare_s == math.inf
    assert find_limits(read_budgets(epochs=1), Path()).ram_bytes <= 1.1 * available_memory()


def test_what_does_not_fit_or_a_training_would_refuse_to_keep_is_said_with_need_and_allowance():
    limits = find_limits(read_budgets(ram="1MiB", prepare="1s", epochs=1), Path())
    whole = find_limits(read_budgets(epochs=1), Path())
    assert whole.kept_bytes == 0.8 * whole.ram_bytes
    small = Need(ram_bytes=2**19, disk_bytes=0, prepare_s=0)
    large = Need(ram_bytes=2**30, disk_bytes=0, prepare_s=60)
    leaner, cached = (replace(small, kept_bytes=part * limits.kept_bytes) for part in (0.9, 1.1))
    needs = {"small": small, "large": large, "leaner": leaner, "cached": cached}
    found = find_excess(needs, limits)
    assert found.pop("large") == (
        "needs 1.0 GiB of memory, 1 MiB are allowed; needs 60 s of preparation, 1.0 s are allowed"
    )
    assert found.keys() == {"cached"} and "of memory to keep splits in" in found["cached"]
    with pytest.raises(InvalidBudget, match=r"least that one needs is 1\.0 GiB of memory"):
        find_excess({"large": large}, limits)


def test_more_of_a_snapshot_than_the_disk_has_room_for_is_refused(layout):
    data = open_inputs(check(SMALL), layout)
    splits, column = data.shards.splits, data.input_column
    whole = sum(map(data.snapshot.bytes, splits))
    part = (
        f"{whole - 0.6 * sum(data.snapshot.splits[one].bytes(column) for one in splits) + 1:.0f}B"
    )
    naive = {"naive": {"read": "shards"}}

    def refuse(disk, fraction=1.0, pipelines=naive):
        stored = {"snapshot": {"fraction": fraction}, "pipelines": pipelines}
        refuse_large_snapshot(check({**SMALL, **stored}), layout.root, read_budgets(disk=disk))

    refuse("available")
    refuse(f"{whole}B")
    refuse(part, 0.4)
    with pytest.raises(InvalidBudget, match=r"fraction: 0\.4}` in params\.yaml .* raise --disk"):
        refuse(part)
    both = r"0\.4}` in params\.yaml and pipelines\.optimized stores"
    with pytest.raises(InvalidBudget, match=both):
        refuse(part, pipelines=SMALL["pipelines"])
    with pytest.raises(InvalidBudget, match=r"would take 27 kiB of disk, .* allowed; raise --disk"):
        refuse("1B")
