"""A snapshot that is larger than the budget of disk is refused before it is written."""

from __future__ import annotations

import pytest

from tests.support.project import SMALL
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check
from throughline.shared.errors import InvalidBudget
from throughline.tuning.budgets import read_budgets
from throughline.tuning.preparation import refuse_large_snapshot


def test_more_of_a_snapshot_than_the_disk_has_room_for_is_refused(layout):
    data = open_inputs(check(SMALL), layout)
    whole = sum(map(data.snapshot.bytes, data.shards.splits))
    values = sum(
        data.snapshot.splits[split].bytes(data.input_column) for split in data.shards.splits
    )

    def refuse(disk, fraction=1.0):
        stored = {"snapshot": {"fraction": fraction}, "pipelines": {"naive": {"read": "shards"}}}
        params = check({**SMALL, **stored})
        refuse_large_snapshot(params, layout.root, read_budgets(disk=disk))

    refuse("available")
    refuse(f"{whole}B")
    part = f"{whole - 0.6 * values + 1:.0f}B"
    with pytest.raises(InvalidBudget, match=r"fraction: 0\.4}` in params\.yaml .* raise --disk"):
        refuse(part)
    refuse(part, 0.4)
    whole_too = r"0\.4}` in params\.yaml and pipelines\.optimized stores"
    with pytest.raises(InvalidBudget, match=whole_too):
        refuse_large_snapshot(check(SMALL), layout.root, read_budgets(disk=part))
    with pytest.raises(InvalidBudget, match=r"would take 27 kiB of disk, .* allowed; raise --disk"):
        refuse("1B")
