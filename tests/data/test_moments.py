"""Dates as people write them, in the order of time."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from throughline.data.sources.moments import (
    TimeProblem,
    find_gaps,
    find_time_problem,
    read_moments,
)

FORMATS = [
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M:%SZ",
    "%d.%m.%Y %H:%M",
    "%d.%m.%y %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %I:%M %p",
    "%m-%d-%Y %H:%M",
    "%d %b %Y %H:%M",
]


def find_problem(cells):
    return find_time_problem(read_moments(cells))


@pytest.mark.parametrize("pattern", FORMATS)
def test_a_year_of_hours_increases_in_every_notation_and_sorted_as_text_it_does_not(pattern):
    first = datetime(2025, 12, 1)
    hours = [(first + timedelta(hours=7 * step)).strftime(pattern) for step in range(1_250)]
    assert find_problem(hours) is None
    if not pattern.startswith("%Y"):
        assert find_problem(sorted(hours)) is not None
    assert find_problem([*hours[:700], hours[3], *hours[700:]]) == TimeProblem(row=700)


def test_a_table_may_drop_the_time_of_midnight():
    assert find_problem(["2026-01-01", "2026-01-01 00:30", "2026-01-02"]) is None
    assert find_problem(["01.01.2026", "01.01.2026 00:30", "02.01.2026"]) is None


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (["01/12/2026", "02/12/2026"], None),
        (["01/12/2026", "02/01/2026"], TimeProblem(row=1, two_ways=True)),
        (["13/12/2026", "02/01/2026"], TimeProblem(row=1)),
        (["01.12.2026", "02.01.2026"], TimeProblem(row=1)),
        (["12.31.2026", "12.31.2027"], TimeProblem(row=0, unreadable=True)),
        (["01.02.2026", "2026-01-15", "16.01.2026"], TimeProblem(row=1)),
        (["05.01.2026 00:00", "2026-01-06", "07.01.26"], None),
        (["26-01-30", "25-01-31"], TimeProblem(row=1, two_ways=True)),
        (["26-01-30", "26-01-31"], None),
        (["24-12-31", "25-01-01"], TimeProblem(row=1, two_ways=True)),
        (["31-12-24", "01-01-25"], TimeProblem(row=1, two_ways=True)),
        (["01/13/2026 1:00 PM", "02/01/2026 1:00 PM"], None),
        (["13/01/2026 1:00 PM", "02/01/2026 1:00 PM"], TimeProblem(row=1)),
        (["2026-01-01", ""], TimeProblem(row=1, unreadable=True)),
        (["2026-01-01", "yesterday"], TimeProblem(row=1, unreadable=True)),
    ],
)
def test_what_reads_two_ways_has_to_increase_in_both(cells, problem):
    assert find_problem(cells) == problem


def test_a_missing_row_is_a_long_step_and_a_month_is_none():
    first = datetime(2026, 1, 1)
    hours = [first + timedelta(hours=hour) for hour in range(48) if hour not in (7, 20, 21)]
    (moments,) = read_moments([hour.isoformat() for hour in hours])
    assert find_gaps(moments).tolist() == [7, 19]
    (months,) = read_moments([f"2026-{month:02d}-01" for month in range(1, 13)])
    assert not find_gaps(months).size and not find_gaps(months[:1]).size
