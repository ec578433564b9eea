"""Reads CSV, Parquet and Arrow as columns of text, for tables, series and lists of images."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from throughline.data.encodings.base import Reason
from throughline.data.manifest import SPLITS
from throughline.data.split_names import read_name
from throughline.data.tables import delimited, number_text, table_files, table_paths
from throughline.data.tables.number_text import pc
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.settings.source_kinds import TABLES
from throughline.shared.errors import UnreadableSource, did_you_mean
from throughline.shared.progress import progress
from throughline.shared.wording import write_name

_ROWS_AT_ONCE, _CELLS_AT_ONCE = 65_536, 1 << 21  # Python strings take 50 bytes or more each
_MOST_SPLITS = 4  # different cells of a column that names splits


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """Columns of cells as text, without blanks around them; a missing cell is empty.

    Attributes:
      nested: types of the columns whose cells are not single values.
      floats: columns that a Parquet file stores as floats or decimals.
      delimiter, thousands: separators of the cells of a CSV file, and of thousands in numbers.
      trained: columns of the model for which the table is read. The decimal mark of its training
        counts if numbers alone leave the mark open; without a model, such numbers may be refused.
      unused: notes on entries of `data.missing_values` that no cell has.
    """

    path: Path
    columns: Mapping[str, pa.LargeStringArray]
    rows: int
    settings: DataSettings
    notes: Sequence[str] = ()
    nested: Mapping[str, str] = field(default_factory=dict)
    floats: frozenset[str] = frozenset()
    delimiter: str = ""
    warnings: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    trained: TableColumns | None = None
    thousands: str = ""
    unused: Sequence[str] = ()
    _parsed: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return self.rows

    def cells(self, name: str) -> list[str]:
        return self.columns[name].to_pylist()

    @cached_property
    def decimal(self) -> str:
        """The decimal mark of numbers that are text: that of used columns, if these show it."""
        passed_over = set(self.settings.ignore)
        if self.trained is not None:
            passed_over |= self.columns.keys() - {*self.trained.names, *self.settings.time_columns}
        texts = {name: cells for name, cells in self.columns.items() if name not in self.floats}
        used = {name: cells for name, cells in texts.items() if name not in passed_over}
        return number_text.find_decimal(
            texts if number_text.leave_decimal_open(used) else used,
            self.settings,
            self.path,
            delimiter=self.delimiter,
            likely=self.trained.decimal if self.trained else "",
        )

    def decimal_of(self, name: str) -> str:
        """Return the decimal mark of a column; a point if its numbers are not text."""
        return "." if name in self.floats else self.decimal

    def describe_dialect(self) -> list[str]:
        """Describe the detected notation, for people to check."""
        settings, notes = self.settings, [*self.notes]
        if settings.decimal == "auto" and self.decimal == ",":
            notes.append("numbers have decimal commas (data.decimal sets it)")
        if settings.thousands == "auto" and self.thousands:
            notes.append(f"{self.thousands!r} separates thousands (data.thousands sets it)")
        return notes

    def describe_points(self, names: Iterable[str]) -> list[str]:
        """Describe how a model's table reads numbers such as 1.234, for people to check."""
        if self.trained is None or self.settings.decimal != "auto":
            return []
        texts = {name: self.columns[name] for name in names if name not in self.floats}
        commas = self.trained.decimal == ","
        doubtful = number_text.find_lone_points(texts) if commas or self.delimiter == ";" else ""
        how = "is a fraction, as the training had decimal points"
        if self.decimal == ",":
            how = "is a whole number, as the training had decimal commas"
        elif commas:
            how = "is a fraction, as commas separate the cells"
        return [f"{doubtful} {how}"] if doubtful else []

    def describe_unread(self) -> list[str]:
        """Describe nested columns that are not ignored, and unused `data.missing_values`."""
        nested = [
            f"column {name} is left out: its cells are {kind}"
            for name, kind in self.nested.items()
            if name not in self.settings.ignore
        ]
        return nested + [f"data.missing_values: {mark}" for mark in self.unused]

    def parse(self, name: str) -> np.ndarray:
        """Return the numbers of a column as `read_numbers` does, (rows,) float64, read-only."""
        if name not in self._parsed:
            cells, known = self.columns[name], self.trained is not None
            self._parsed[name] = number_text.read_numbers(cells, self.decimal_of(name), known=known)
            self._parsed[name].flags.writeable = False
        return self._parsed[name]

    def skip(self, rows: int) -> "TextTable":
        """Return the table without its first `rows`."""
        columns = {name: cells.slice(rows) for name, cells in self.columns.items()}
        return replace(self, columns=columns, rows=self.rows - rows)

    def forget(self, name: str) -> None:
        self._parsed.pop(name, None)

    def numbers(self, name: str) -> np.ndarray:
        """Return a column as `parse` does, with infinity for numbers that float32 cannot hold."""
        values = self.parse(name)
        return np.where(np.abs(values) > np.finfo(np.float32).max, np.inf, values)


def read_table(
    path: Path, settings: DataSettings, *, trained: TableColumns | None = None
) -> TextTable:
    """Read the table at `path` as text, in the notation of `settings` or of the table itself."""
    files = table_paths.open_files(path, settings)
    table = _read_files(files, settings) if files else _read_delimited(path, settings)
    return _drop_empty_end(clean_cells(replace(table, trained=trained)))


def check_all(path: Path, *checks: Callable[[], Any]) -> list[Any]:
    """Run all checks of a table, raise all errors as one, and return the results."""
    results, errors = [], list[UnreadableSource]()
    for check in checks:
        try:
            results.append(check())
        except UnreadableSource as error:
            errors += error.several or [error]
    found = list({str(error): error for error in errors}.values())
    if len(found) == 1:
        raise found[0]
    if found:
        texts = [str(one).removeprefix(f"{path}: ").replace("\n", "\n    ") for one in found]
        heading = f"{path}: {len(found)} problems:"
        raise UnreadableSource("\n  - ".join([heading, *texts]), several=found)
    return results


def check_columns(table: TextTable, columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse a table that lacks columns, given by the keys of params.yaml that name them."""
    path, nested = table.path, table.nested

    def check(column: str, key: str) -> None:
        if column in table.columns or (column in nested and column in table.settings.ignore):
            return
        if column in nested:
            raise UnreadableSource(
                f"{path}: the cells of column {column} are {nested[column]}, not single values;"
                " write them to separate columns",
                f"or set {key}",
            )
        if not table_paths.open_files(path, table.settings):
            names = [one for one in table.columns if one != "split"]
            refuse_undivided(str(path), column, names, key)
        if path.is_dir() or {suffix.lower() for suffix in path.suffixes} & TABLES:
            auto = bool(table.delimiter) and table.settings.header == "auto"
            refuse_column(str(path), column, [*table.columns], key, auto=auto)
        raise UnreadableSource(
            f"{path}: no column {column}; its {len(table.columns)} columns are listed only if it is"
            f" named {', '.join(sorted(TABLES))}",
            f"set {key}",
        )

    check_all(path, *(partial(check, name, key) for key in columns for name in columns[key]))


def refuse_undivided(where: str, name: str, names: Sequence[str], key: str) -> None:
    """Refuse delimited text that has a single column, other than the one that `key` names."""
    if len(names) == 1 and name not in names:
        raise UnreadableSource(
            f"{where}: no column {name}, as no delimiter was found: each line is one cell, in"
            f" column {names[0][:40]}",
            "set data.delimiter (such as blanks), convert the file if it has another one, or set"
            f" {key} if one column is right",
        )


def refuse_column(where: str, name: str, names: Sequence[str], key: str, *, auto: bool) -> None:
    """Refuse a table without the column that `key` names; `auto`: text read with header auto."""
    hint, remedy = did_you_mean(name, names), f"set {key}"
    if auto and key.endswith("_column") and hint.startswith("known"):
        remedy += ", or data.header: none if its first line is a row"
    raise UnreadableSource(f"{where}: no column {name}; {hint}", remedy)


def read_split(value: object) -> tuple[str | None, str | None]:
    """Return the split that a cell names, or None, and why the cell cannot be used, or None."""
    if isinstance(value, list | tuple | dict | np.ndarray):
        return None, Reason("split is not a name", f": {value}")
    split = "" if bool(pd.isna(value)) else str(value).strip()
    if split and split not in SPLITS:
        return None, Reason(f"split is not one of {', '.join(SPLITS)}", f": {split}")
    return split or None, None


class OtherSplits:
    """Finds columns beside `split` that name splits: few different cells, such as PublicTest.

    Columns that the settings name are not meant, and none is if the splits are `known`.
    """

    def __init__(self, settings: DataSettings, *, known: bool = False) -> None:
        self._settings, self._known = settings, known
        self._cells = defaultdict[str, Counter[str]](Counter)  # by column
        self._passed = {*settings.ignore, *settings.categorical, *settings.label_columns}
        self._passed |= {settings.text_column, settings.path_column, settings.group}

    def see(self, fields: Mapping[str, Any], count: int = 1) -> None:
        self._known = self._known or bool(fields.get("split"))
        for name in () if self._known else fields.keys() - self._passed:
            cell, cells = "" if fields[name] is None else fields[name], self._cells[name]
            cells[str(cell).strip()] += count
            named = isinstance(cell, str) and (not cell or read_name(cell).split in SPLITS)
            if not named or len(cells) > _MOST_SPLITS:
                self._passed.add(name)

    def refuse(self, path: Path) -> None:
        """Refuse a column of which all rows were seen."""
        for name in () if self._known else self._cells.keys() - self._passed:
            cells = {cell: count for cell, count in self._cells[name].most_common() if cell}
            splits = {cell: read_name(cell).split for cell in cells}
            if "train" in splits.values() and len({*splits.values()}) > 1:
                found = ", ".join(f"{cell} {count:,}" for cell, count in cells.items())
                ignore = ", ".join(map(write_name, [*self._settings.ignore, name]))
                raise UnreadableSource(
                    f"{path}: column {name} names splits ({found}), but only a column named split"
                    " is used",
                    f"rename it, in pandas: table['split'] = table.pop({name!r}).map({splits}); or"
                    f" set data.ignore: [{ignore}]",
                )


def read_splits(table: TextTable) -> list[tuple[str | None, str | None]]:
    """Return for each row what `read_split` does; refuse a table that `OtherSplits` does."""
    others = OtherSplits(table.settings, known="split" in table.columns)
    for name, column in table.columns.items():
        if pc.count_distinct(column[:_ROWS_AT_ONCE]).as_py() <= _MOST_SPLITS:
            for one in pc.value_counts(column).to_pylist():
                others.see({name: one["values"]}, one["counts"])
    others.refuse(table.path)
    cells = table.cells("split") if "split" in table.columns else [""] * len(table)
    return [read_split(cell) for cell in cells]


def clean_cells(table: TextTable) -> TextTable:
    """Strip cells, remove thousands separators from numbers, and clear cells that mean missing."""
    settings, trained = table.settings, table.trained
    columns = {name: pc.utf8_trim_whitespace(cells) for name, cells in table.columns.items()}
    kept = {*settings.categorical, *(settings.label_columns * (settings.label_kind == "class"))}
    plain, thousands = number_text.divide_no_thousands(
        {name: cells for name, cells in columns.items() if name not in kept | table.floats},
        (trained.thousands if trained else "") or settings.thousands,
    )
    return _blank_missing(replace(table, columns=columns | plain, thousands=thousands))


def _blank_missing(table: TextTable) -> TextTable:
    """Empty the cells that mark missing values; numbers are compared by value."""
    said, columns = table.settings.missing_values, {**table.columns}
    by_column = isinstance(said, dict)
    groups = {name: [name] for name in said} if by_column else {"": columns} if said else {}
    unused = []
    for key, names in groups.items():
        marks = pa.array(said[key] if by_column else said, pa.large_string())
        values, used = number_text.read_digits(marks, "."), np.zeros(len(marks), bool)
        for name in columns.keys() & {*names}:
            found = np.asarray(pc.fill_null(pc.index_in(columns[name], marks), -1))
            if np.isfinite(values).any():
                numbers = number_text.read_digits(columns[name], table.decimal_of(name))
                for place in np.flatnonzero(np.isfinite(values)).tolist():
                    found = np.where(numbers == values[place], place, found)
            used[found[found >= 0]] = True
            columns[name] = pc.if_else(pa.array(found >= 0), "", columns[name])
        where = f"no cell of {key}" if by_column else "no cell"
        unused += [f"{mark!r} is in {where}" for mark in np.array(marks)[~used].tolist()]
    return replace(table, columns=columns, unused=unused)


def _drop_empty_end(table: TextTable) -> TextTable:
    """Drop empty rows at the end, unless nested columns, which are not read, may have values."""
    last = table.rows
    while last and not any(cells[last - 1].as_py() for cells in table.columns.values()):
        last -= 1
    if table.nested or last == table.rows:
        return table
    note = f"empty rows at the end are left out: {table.rows - last:,}"
    columns = {name: cells.slice(0, last) for name, cells in table.columns.items()}
    return replace(table, columns=columns, rows=last, notes=[*table.notes, note])


def _read_delimited(path: Path, settings: DataSettings) -> TextTable:
    splits, left_out, warnings = table_paths.find_delimited(path, settings)
    parts = [_read_csv(file, settings) for file in splits]
    columns = {
        name: pa.concat_arrays([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    if any(splits.values()):
        named = zip(splits.values(), parts, strict=True)
        cells = [split or "" for split, part in named for _ in range(len(part))]
        columns["split"] = pa.array(cells, pa.large_string())
    several = [f"{len(parts):,} files are read as one table"] if len(parts) > 1 else []
    return replace(
        parts[0],
        path=path,
        columns=columns,
        rows=sum(map(len, parts)),
        notes=[*several, *dict.fromkeys(note for part in parts for note in part.notes)],
        left_out=left_out,
        warnings=warnings,
    )


def _read_csv(path: Path, settings: DataSettings) -> TextTable:
    with delimited.open_delimited(path, settings) as text:
        count = delimited.FieldCount(text.header, path)

        def fit(record: delimited.Record) -> list[str]:
            if settings.quoting == "auto":
                delimited.refuse_joined_lines(record, path)
            return count.fit(record)

        lines = delimited.count_lines(path)
        rows = map(fit, progress(text.records, total=lines, label="read", unit="rows"))
        at_once = min(_ROWS_AT_ONCE, _CELLS_AT_ONCE // len(text.header) + 1)
        parts = [[pa.array([], pa.large_string())] for _ in text.header]
        while some := [*islice(rows, at_once)]:
            for part, cells in zip(parts, zip(*some, strict=True), strict=True):
                part.append(pa.array(cells, pa.large_string()))
        notes = [note for note in (*text.detected, count.check()) if note]
    columns = dict(zip(text.header, map(pa.concat_arrays, parts), strict=True))
    return TextTable(
        path=path,
        columns=columns,
        rows=len(columns[text.header[0]]),
        settings=settings,
        notes=notes,
        delimiter=text.divides,
    )


def _read_files(files: table_files.TableFiles, settings: DataSettings) -> TextTable:
    path, columns, nested, readable = files.path, {}, {}, []
    for name, kind in zip(files.schema.names, files.schema.types, strict=True):
        try:
            table_files.as_text(pa.chunked_array([], kind))
            readable.append(name)
        except (table_files.NoText, pa.ArrowNotImplementedError):
            nested[name] = str(kind)
    batches = [batch for _, _, batch in files.read(readable, rows=_ROWS_AT_ONCE)]
    table = pa.Table.from_batches(batches, pa.schema([files.schema.field(one) for one in readable]))
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns[name] = table_files.as_text(column)
        except pa.ArrowInvalid as error:
            nested[name] = str(column.type)
            if name not in settings.ignore:
                raise UnreadableSource(
                    f"{path}: column {name} ({column.type}) cannot be read as text: {error};"
                    f" data.ignore: [{name}] leaves it out"
                ) from error
    return TextTable(
        path=path,
        columns=columns,
        rows=table.num_rows if readable else files.count_rows(),
        settings=settings,
        nested=nested,
        floats=table_files.find_floats(table.schema) & columns.keys(),
        warnings=files.warnings,
        left_out=files.left_out,
    )
