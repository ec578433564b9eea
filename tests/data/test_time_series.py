"""Dates as people write them, in the order of time."""

from contextlib import chdir
from datetime import datetime, timedelta
from itertools import product

import numpy as np
import pandas as pd
import pytest

from tests.support.csv_tables import scan as scan_table
from tests.support.csv_tables import write
from throughline.data.tables.moments import TimeProblem, find_time_problem, read_moments
from throughline.shared.errors import UnreadableSource

FORMATS = ["%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d %b %Y %H:%M"]


def scan(path, **data):
    return scan_table(path, "time_series", **data)


def find_problem(cells):
    return find_time_problem(read_moments(cells))


def refuse(said, path, **data):
    with pytest.raises(UnreadableSource, match=said) as refused:
        scan(path, **data)
    return str(refused.value)


@pytest.mark.integration
@pytest.mark.parametrize("pattern", FORMATS)
def test_a_year_of_hours_increases_in_every_notation_and_sorted_as_text_it_does_not(pattern):
    first = datetime(2025, 12, 1)
    hours = [(first + timedelta(hours=29 * step)).strftime(pattern) for step in range(300)]
    assert find_problem(hours) is None
    if not pattern.startswith("%Y"):
        assert find_problem(sorted(hours)) is not None
    assert find_problem([*hours[:170], hours[3], *hours[170:]]) == TimeProblem(row=170)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (["01.01.2026", "01.01.2026 00:30", "02.01.2026"], None),  # midnight without its time
        (["01/12/2026", "02/01/2026"], TimeProblem(row=1, two_ways=True)),
        (["01.12.2026", "02.01.2026"], TimeProblem(row=1)),
        (["01.02.2026", "2026-01-15", "16.01.2026"], TimeProblem(row=1)),
        (["05.01.2026 00:00", "2026-01-06", "07.01.26"], None),
        (["26-01-30", "25-01-31"], TimeProblem(row=1, two_ways=True)),
        (["2026-01-01", "yesterday"], TimeProblem(row=1, unreadable=True)),
    ],
)
def test_dates_have_to_increase_in_each_way_that_they_can_be_read(cells, problem):
    assert find_problem(cells) == problem


def test_a_series_has_the_numeric_columns_in_the_order_of_time(tmp_path):
    rows = [["2026-01-01", "x", 1, 0.5], ["2026-01-02", "y", 2, 0.25]]
    series = scan(write(tmp_path, "day,place,heat,rain", rows), time_column="day")
    assert series.schema.input.columns.names == ("heat", "rain")
    assert series.values.tolist() == [[1, 0.5], [2, 0.25]]
    np.save(tmp_path / "series.npy", np.arange(4))
    assert scan(tmp_path / "series.npy").values.tolist() == [[0], [1], [2], [3]]


JANUARY = [f"2026-01-{day:02}" for day in range(1, 32) if day not in (9, 20, 21)]


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        (JANUARY[:8], ""),
        (JANUARY, "day has 2 steps longer than 1.5 times the median, first before row 9 (2026-"),
        ([int(day[-2:]) for day in JANUARY], "first before row 9 (8, 10)"),
        ([20191100 + day for day in range(1, 31)] + [20191201, 20191202], ""),
        ([100 * year + month for year in (2009, 2010) for month in range(1, 13)], ""),
        ([20200198, 20200199, 20200200, 20200301], "(20200200, 20200301)"),  # numbers
        ([98, 99, 100, 201], "(100, 201)"),
    ],
)
def test_times_that_a_series_lacks_are_warned_of(tmp_path, times, gap):
    path = write(tmp_path, "day,heat", [[time, row / 8] for row, time in enumerate(times)])
    warnings = scan(path, time_column="day").warnings
    assert len(warnings) == bool(gap) and gap in " · ".join(warnings)


def clock(month, day, *, step=60):
    """Clock times of a night from 20:00 on, in which the hour from 2:00 on occurs twice."""
    before = [timedelta(minutes=step * n) for n in range(7 * 60 // step)]
    after = [timedelta(hours=6) + timedelta(minutes=step * n) for n in range(40)]
    return [f"{datetime(2023, month, day, 20) + one:%Y-%m-%d %H:%M}" for one in before + after]


def listed(names, rows):
    """A table with columns of these names, and the number 1 in each row."""
    return "\n".join([f"{names},x", *(",".join([*map(str, row), "1"]) for row in rows)])


DAYS = [f"2024-05-{day:02}" for day in range(1, 31)]
HOURS = [(day, hour) for day in DAYS for hour in range(24)]
OTHER_DAYS = [(day, shop) for shop, days in (("x", DAYS[9:]), ("y", DAYS[:9])) for day in days]
LATE = "t does not increase in row .*; .*"
REFUSED = {
    "beyond float32": ([1.0, 1e300], r"row 2, column column_0 is 1e\+300"),
    "large whole numbers": ([0, 1_700_000_001], "float32 keeps the first seven digits"),
    "merging": ([98765432.1, 98765432.4], "column_0 holds numbers .*, or save float32 if"),
    "gap": ("t,x\n1,1\n2,\n3,\n", r"row 2, column x is missing \(1 more"),
    "rows of units": ("t,x\nd,kW\nTS,Avg\n1,1\n2,1\n3,1\n", "remove the first 2 rows"),
    "sum": ("t,x\n1,1\n2,3\n3,4\nSum,8\n", "row 4 holds totals or means; remove it"),
    "no numbers": ("t,x\n1,a\n2,b\n", "no numeric column; set data.numeric"),
    "no date": ("t,x\n2026-01-01,1\nsoon,2\n", "t in row 2 is 'soon', neither a number nor"),
    "two ways": ("t,x\n01/12/2026,1\n02/01/2026,2\n", r"several ways.* row 2 \(02/01/2026\)"),
    "midnight": ("t,x\n01/13/2026 23:00,1\n01/13/2026 24:00,2\n", "row 2 is '01/13/2026 24:00'"),
    "brackets": ("t,x\n1,1\n2,(12.50)\n3,1\n", r"row 2, .* write -12\.50; windows need .* step$"),
    "mark": ("t,x\n1,1\n2,?\n3,1\n", "row 2, .*: '[?]'; .* set data.missing_values if it .*; then"),
    "backwards": ("t,x\n1,1\n3,1\n2,1\n", "t does not increase in row 3; sort the table and drop"),
    "doubled": ("t,x\n1,1\n2,1\n2,1\n", "t does not increase in row 3"),
    "nanoseconds": ("t,x\n1700000000000000001,1\n1700000000000000000,2\n", "not increase in row 2"),
    "a date without its time": (
        listed("t,hour of day", [(day, f"{hour:02}:00") for day, hour in HOURS]),
        LATE + r"hour of day holds the time of day: set data\.time_column: \[t, hour of day\]",
    ),
    "the hour as a number": (listed("t,hr", HOURS), f"{LATE}hr tells the hour: join date and hour"),
    "summer time ends": (listed("t", zip(clock(10, 28, step=15))), f"{LATE}an hour occurs twice"),
    "the same in June": (listed("t", zip(clock(6, 3))), f"{LATE}sort the table"),
    "series below each other": (
        listed("t,shop", [(day, shop) for shop in "xyz" for day in DAYS]),
        LATE + r"several series, one for .* of shop; .*pivot\(index='t', columns=\['shop'\]",
    ),
    "series of other days": (listed("t,shop", OTHER_DAYS), f"{LATE}one for each value of shop"),
    "series of two keys": (
        listed("t,shop,item", product(DAYS, "xy", "uvw")),
        f"{LATE}one for each value of shop and item",
    ),
    "a doubled row": (
        listed("t,sky", [(day, "ab"[n * n % 7 % 2]) for n, day in enumerate(DAYS[:9] + DAYS[8:])]),
        f"{LATE}sort the table and drop duplicate rows",
    ),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_series_with_gaps_or_out_of_order_is_refused_by_row(tmp_path, content, reason):
    path = tmp_path / ("series.csv" if isinstance(content, str) else "series.npy")
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    refuse(reason, path, time_column="t")


@pytest.mark.parametrize("days", [range(9, 1, -1), [f"{day}/01/2026" for day in range(28, 9, -1)]])
def test_a_series_whose_newest_row_comes_first_is_refused_named_or_not(tmp_path, days):
    path = write(tmp_path, "day,place,load", [[day, "x", row / 8] for row, day in enumerate(days)])
    refuse("day falls from row to row, from (9|28/01/2026) to", path, time_column="day")
    if isinstance(days, list):
        refuse(r"set data\.time_column: day", path)
        assert len(scan(path, ignore=["day"]).values) == len(days)


def test_a_series_learns_from_no_index_unless_told(tmp_path):
    rows = [[1_700_000_000 + 3600 * row, row, row % 9 / 8] for row in range(40)]
    path = write(tmp_path, "time,nr,load", rows)
    said = refuse(r"column time .*float32 keeps", path)
    assert "column nr (0, …) numbers the rows" in said
    assert "data.time_column names the column of times" in said
    assert "time_column" not in refuse("column nr", path, time_column="time")
    found = scan(path, time_column="time", ignore=["nr"])
    assert found.schema.input.columns.names == ("load",)
    assert scan(path, numeric=["nr", "load"]).schema.input.columns.names == ("nr", "load")


@pytest.mark.parametrize(
    ("missing", "filled"),
    [
        ("interpolate", [1.0, 2.0, 3.0, 4.0, 7.0]),
        ({"load": "previous"}, [1.0, 1.0, 1.0, 4.0, 7.0]),
    ],
)
def test_empty_cells_between_others_are_filled_as_asked_and_counted(tmp_path, missing, filled):
    path = write(tmp_path, "load,wind", [[1, 5], ["", 5], ["", 6], [4, 7], [7, 8]])
    series = scan(path, missing=missing)
    assert series.values[:, 0].tolist() == filled
    way = missing if isinstance(missing, str) else "previous"
    assert series.warnings == [f"empty cells of load are filled ({way}): 2, at most 2 consecutive"]
    path = write(tmp_path, "load,wind", [["", 5], [2, 5], [3, 6]])
    refuse("row 1, column load is missing; windows need every", path, missing=missing)


@pytest.mark.parametrize(("empty", "cuts"), [([0, 9], ()), ([4, 5], (4,)), ([0, 5], (4,))])
def test_rows_with_an_empty_cell_are_cut_out_wherever_they_are(tmp_path, empty, cuts):
    rows = [["" if row in empty else row, row / 8] for row in range(10)]
    series = scan(write(tmp_path, "load,wind", rows), missing="cut", numeric=["load", "wind"])
    assert series.values[:, 0].tolist() == [row for row in range(10) if row not in empty]
    assert series.cuts == cuts


@pytest.mark.parametrize("mark", [":", "."])
def test_a_date_and_a_time_of_day_in_two_columns_are_one_moment(tmp_path, mark):
    times = [(f"{1 + n // 24:02}/03/2004", f"{n % 24:02}{mark}00{mark}00") for n in range(60)]
    rows = [[*time, row / 8] for row, time in enumerate(times)]
    path = write(tmp_path, "Date,Time,load", rows)
    assert scan(path, time_column=["Date", "Time"]).schema.input.columns.names == ("load",)
    write(tmp_path, "Date,Time,load", [*rows, rows[5]])
    refuse("Date Time does not increase in row 61", path, time_column=["Date", "Time"])


@pytest.mark.parametrize(
    ("times", "melted"),
    [
        ([f"1/{day}/20" for day in range(1, 31)], True),
        ([str(year) for year in range(1990, 2020)], True),
        ([f"{month} 2020" for month in ("Jan", "February", "March", "Apr")], True),
        ([f"{hour}:00" for hour in range(24)], True),
        ([f"sensor {number}" for number in range(30)], False),
    ],
)
def test_a_series_in_each_row_is_refused_with_the_line_that_turns_it(tmp_path, times, melted):
    places = range(len(times))
    rows = [[f"p{row}", *[(row * 7 + n * 3) % 11 / 2 for n in places]] for row in range(9)]
    path = write(tmp_path, ",".join(["place", *times]), rows)
    if not melted:
        assert len(scan(path).values) == 9
        return
    said = refuse("each row is a series, not a time step", path)
    (line,) = (one for one in said.splitlines() if one.startswith("pandas"))
    with chdir(tmp_path):
        eval(line, {"pandas": pd})
    table = pd.read_csv(tmp_path / "by_time.csv")
    assert table["time"].tolist() == [int(t) if t.isdigit() else t for t in times]
    assert table["p3"].tolist() == rows[3][1:]
    with pytest.raises(UnreadableSource, match=r"(?s)no column label.*each row is a series"):
        scan_table(path)
    assert len(scan(path, numeric=times).values) == 9


def test_times_that_no_key_names_are_unchecked_or_refused_where_they_go_back(tmp_path):
    rows = [(f"2024-03-{1 + row // 24:02}", f"{row % 24:02}:00", row / 8) for row in range(60)]
    said = " · ".join(scan(write(tmp_path, "Date,Time,load", rows)).warnings)
    assert "data.time_column: [Date, Time], or data.ignore: [Date, Time]" in said
    path = write(tmp_path, "Date,Time,load", [*rows[:30], *rows[20:]])
    refuse("Date goes back in row 31, from 2024-03-02 to 2024-03-01", path)


ENGINES = [(engine, cycle) for engine in range(1, 9) for cycle in range(1, 20 + engine * 7)]
MONTHS = [100 * year + month for year in range(1999, 2003) for month in range(1, 13)]
HOURLY = pd.date_range("2024-01-01", periods=9000, freq="h")[24 * 31 - 5 :]
PARTS = ["month", "day", "hour", "day_of_year", "day_of_week"]
SEVERAL = "cycle starts again in row 27: there are several series, one for each value of engine"


@pytest.mark.parametrize(
    ("names", "rows", "said"),
    [
        ("engine,cycle", ENGINES, SEVERAL),
        ("month", [(month,) for month in MONTHS[::-1]], "month falls from row to row, from 200212"),
        ("month", [(month,) for month in [*MONTHS, *MONTHS]], "month goes back in row 49, from 20"),
        ("month", [(month,) for month in MONTHS], ""),
        (",".join(PARTS), [[getattr(at, part) for part in PARTS] for at in HOURLY], ""),
        ("day,year", [(1 + n % 365, 2000 + n // 365) for n in range(2000)], ""),
        ("streak", [(n - start,) for start in (0, 9, 30, 36, 55) for n in range(start, 60)], ""),
    ],
)
def test_a_clock_in_numbers_is_checked_and_parts_of_dates_are_features(tmp_path, names, rows, said):
    table = [[*row, n * 7 % 11 / 8] for n, row in enumerate(rows)]
    path = write(tmp_path, f"{names},load", table)
    if said:
        refuse(said, path)
        assert len(scan(path, numeric=[*names.split(","), "load"]).values) == len(rows)
    assert len(scan(path, ignore=names.split(",") if said else []).values) == len(rows)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("series {}", "30 columns are numbered, from d_1 to d_30: each row is a series"),
        ("shop", ""),
        ("2024-01-{}", ""),
    ],
)
def test_numbered_columns_of_a_name_in_each_row_are_times(tmp_path, first, said):
    rows = [[first.format(n), *[n * day % 7 / 2 for day in range(30)]] for n in range(1, 26)]
    path = write(tmp_path, ",".join(["id", *[f"d_{n}" for n in range(1, 31)]]), rows)
    if said:
        refuse(rf"(?s){said}.*data\.ignore: \[time\]", path)
        with pytest.raises(UnreadableSource, match=r"(?s)no column label(?!.*a series)"):
            scan_table(path)  # features
    assert len(scan(path, ignore=["id"]).values) == 25
