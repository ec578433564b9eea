"""One multivariate time series: CSV, Parquet, or .npy (time steps, columns), in the order of time.

Unless `data.missing` says how to fill or cut gaps, a missing value is an error that names its row:
windows would jump over rejected rows.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute

from throughline.data.encodings.array_files import read_array
from throughline.data.encodings.arrays import array_feature
from throughline.data.found import Series
from throughline.data.tables import column_kinds, tabular
from throughline.data.tables.moments import check_times, check_unnamed_times
from throughline.data.tables.number_text import explain_notation
from throughline.data.tables.odd_values import find_sentinels, find_total, find_units, is_rescaled
from throughline.data.tables.table_columns import MARK_MISSING, check_marks
from throughline.data.tables.tabular import TextTable
from throughline.plan.schema import Schema, TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

pc: Any = pyarrow.compute  # untyped: the import makes its functions


def scan(settings: DataSettings, *, trained: TableColumns | None = None) -> Series:
    """Read the series at `data.path`; `trained` is as in `read_table`."""
    path = Path(settings.path)
    if path.is_dir():
        raise UnreadableSource(f"{path} is a folder", "set data.path to the file of one series")
    if path.suffix.lower() == ".npy":
        values, names = _read_array(path)
        values = _to_float32(values, names, path)
        return Series(values=values, schema=_make_schema(TableColumns(names=names)))
    table = tabular.read_table(path, settings, trained=trained)
    names, jumps, late, unchecked = _check(table)
    columns = TableColumns(names=names, decimal=table.decimal, thousands=table.thousands)
    filled = [_fill_gaps(table, name) for name in names]
    cutting = [name for name in names if settings.missing_in(name) == "cut"]
    kept, cuts, said = _find_cuts(table, cutting, jumps if cutting else jumps[:0])
    warnings = [*unchecked, *(warning for _, warning in filled if warning)]
    warnings += said if cutting else late
    roles: dict[str, column_kinds.Kind] = dict.fromkeys(settings.time_columns, "time")
    roles |= dict.fromkeys(names, "number")
    readings = [
        column_kinds.describe_column(table, name, roles.get(name, "ignored"))
        for name in table.columns
    ]
    left_out = [
        one.name
        for one in readings
        if one.kind == "ignored" and one.distinct and one.name not in settings.ignore
    ]
    if left_out and not settings.numeric:
        said = f"not numeric and left out: {', '.join(left_out)} (list in data.ignore if intended)"
        warnings = [said, *warnings]
    values = _to_float32(np.column_stack([one for one, _ in filled]), names, path, table, kept)
    return Series(
        values=values if kept.all() else values[kept],
        schema=_make_schema(columns),
        cuts=cuts,
        readings=readings,
        dialect=table.describe_dialect(),
        warnings=[
            *table.describe_unread(),
            *table.describe_points(names),
            *warnings,
            *find_sentinels(table, ((name, table.numbers(name)) for name in names)),
        ],
    )


def _make_schema(columns: TableColumns) -> Schema:
    return Schema(features=(array_feature("series", (len(columns.names),), "float32", columns),))


def _to_float32(
    values: np.ndarray,
    names: tuple[str, ...],
    path: Path,
    table: TextTable | None = None,
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """Return values (time steps, columns) as float32; all must be finite, or those of rows kept."""
    with np.errstate(over="ignore"):  # too large values become infinite, and are refused below
        stored = values.astype(np.float32, copy=False)
    unusable = ~np.isfinite(stored)
    bad = np.argwhere(unusable if kept is None else unusable & kept[:, None])
    if not len(bad):
        return stored
    row, column = bad[0].tolist()
    name, cell, what = names[column], "", f"{names[column]} is {values[row, column]}"
    if table:
        cell = table.columns[name][row].as_py()
        what = column_kinds.explain_no_number(table, name, row)
    more = f" ({len(bad) - 1:,} more like it)" if len(bad) > 1 else ""
    remedy = (
        "set data.missing: interpolate or previous to fill empty cells between others, or cut to"
        " keep windows from crossing such rows"
    )
    if cell and np.isnan(values[row, column]):
        remedy = f"{MARK_MISSING}; then {remedy}"
    raise UnreadableSource(
        f"{path}: row {row + 1}, column {what}{more}; windows need every time step",
        "" if explain_notation(cell) else remedy,
    )


def _read_array(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    if not path.is_file():
        raise DataNotFound(
            f"{path} does not exist; `data.path` must be a CSV, Parquet or .npy file"
        )
    values = read_array(path, "the series")
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.dtype.kind not in "iuf":  # noqa: PLR2004 - time steps and columns
        raise UnreadableSource(
            f"{path} has dtype {values.dtype} and shape {values.shape}; expected numbers (time"
            " steps, columns)"
        )
    if (
        values.dtype.kind in "iu"
        and (values.astype(np.float32).astype(values.dtype) != values).any()
    ):
        raise UnreadableSource(
            f"{path} holds whole numbers from {column_kinds.EXACT_INTEGER:,} on, of which float32"
            " keeps the first seven digits; leave such columns out, or save floats if rounding"
            " is acceptable"
        )
    names = tuple(f"column_{number}" for number in range(values.shape[1]))
    for name, column in zip(names, values.T, strict=True):
        if values.dtype == np.float64 and (merging := column_kinds.find_merging(column)):
            raise UnreadableSource(
                f"{path}: {name} {merging}, or save float32 if rounding is acceptable"
            )
    return values, names


def _check(table: TextTable) -> tuple[tuple[str, ...], np.ndarray, list[str], list[str]]:
    """Return the numeric columns, the rows after gaps in time, and warnings about times."""
    settings = table.settings
    if not (settings.time_columns or settings.numeric):
        column_kinds.refuse_wide(table)
    named_ones = {*settings.time_columns, *settings.numeric}
    if table.columns.keys() >= named_ones and (units := find_units(table, _list_numeric(table))):
        raise UnreadableSource(
            f"{table.path}: row {units[0] + 1} holds units or a second header"
            f" ({', '.join(cells[0].as_py() for cells in table.columns.values())})",
            "remove it" if len(units) == 1 else f"remove the first {len(units)} rows",
        )
    named = {
        "data.time_column": settings.time_columns,
        "data.numeric": settings.numeric,
        "data.ignore": settings.ignore,
    }
    _, _, (jumps, late), names, _, unchecked = tabular.check_all(
        table.path,
        partial(tabular.check_columns, table, named),
        partial(check_marks, table.path, settings, table.columns),
        partial(check_times, table),
        partial(_choose_columns, table),
        partial(_refuse_total, table),
        partial(_check_unnamed_times, table),
    )
    return tuple(names), jumps, late, unchecked


def _find_cuts(
    table: TextTable, names: Sequence[str], jumps: np.ndarray
) -> tuple[np.ndarray, tuple[int, ...], list[str]]:
    """Cut the series where a column is empty, and at `jumps` in time.

    Returns whether each row is kept, (rows,), the kept steps that follow a cut, and a warning.
    """
    kept = np.ones(len(table), bool)
    for name in names:
        kept &= np.asarray(pc.not_equal(table.columns[name], ""), bool)
    steps = np.cumsum(kept) - kept
    places = np.unique(steps[np.concatenate([np.flatnonzero(~kept), jumps])])
    cuts = places[(places > 0) & (places < kept.sum())].tolist()
    rows, times = int((~kept).sum()), len(jumps)
    found = [f"{rows:,} row{'s' * (rows > 1)} with an empty cell"] * bool(rows)
    found += [f"{times:,} gap{'s' * (times > 1)} in time"] * bool(times)
    said = [f"the series is cut at {' and '.join(found)}: no window crosses them"] * bool(found)
    return kept, tuple(cuts), said


def _check_unnamed_times(table: TextTable) -> list[str]:
    settings = table.settings
    if settings.time_columns:
        return []
    left_out = {*settings.numeric, *settings.ignore}
    return check_unnamed_times(table, [name for name in table.columns if name not in left_out])


def _refuse_total(table: TextTable) -> None:
    if find_total(table, map(table.numbers, _list_numeric(table))):
        raise UnreadableSource(f"{table.path}: row {len(table)} holds totals or means", "remove it")


def _fill_gaps(table: TextTable, name: str) -> tuple[np.ndarray, str]:
    """Return a column (rows,) with empty cells filled as `data.missing` says, and a warning.

    Cells before the first number or after the last one stay NaN.
    """
    values, way = table.numbers(name), table.settings.missing_in(name)
    empty = np.asarray(pc.equal(table.columns[name], ""), bool)
    known = np.flatnonzero(np.isfinite(values))
    if not empty.any() or way not in ("interpolate", "previous") or not len(known):
        return values, ""
    rows = np.flatnonzero(empty)
    rows = rows[(rows > known[0]) & (rows < known[-1])]
    filled, after = values.copy(), np.searchsorted(known, rows)
    previous = values[known[after - 1]]
    filled[rows] = previous if way == "previous" else np.interp(rows, known, values[known])
    longest = int(np.max(known[after] - known[after - 1], initial=1)) - 1
    return filled, (
        f"empty cells of {name} are filled ({way}): {len(rows):,}, at most {longest:,} consecutive"
    )


def _list_numeric(table: TextTable) -> list[str]:
    settings = table.settings
    return settings.numeric or [
        name
        for name in table.columns
        if name not in [*settings.time_columns, *settings.ignore]
        and column_kinds.guess_kind(table, name) == "number"
    ]


def _choose_columns(table: TextTable) -> list[str]:
    columns = _list_numeric(table)
    if table.settings.numeric:
        return columns
    if not columns:
        raise UnreadableSource(f"{table.path}: no numeric column", "set data.numeric")
    doubts = {
        name: doubt
        for name in columns
        if (doubt := column_kinds.find_problem(table, name, "number"))
    }
    for time in table.settings.time_columns:
        doubts |= {
            name: f"column {name} is {time} in another unit; data.numeric: [{name}, …] keeps it"
            for name in columns
            if is_rescaled(table.numbers(name), table.parse(time))
        }
    times = [] if table.settings.time_columns else ["data.time_column names the column of times"]
    column_kinds.refuse_columns(table, doubts, *times)
    return columns
