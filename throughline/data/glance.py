"""The data at a glance: the number of examples by class and split, and the data that was left out.

Ingest prints it and keeps it in `data/manifest/`; report, Prefect and MLflow show it again.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from throughline.data.manifest import SPLITS, TABLE_INPUT, VALUES, Manifest
from throughline.data.sources.class_folders import name_kinds
from throughline.shared.errors import expect_current_schema
from throughline.shared.files import read_json
from throughline.shared.layout import GLANCE

PICTURED = 8  # classes with sample pictures
_CLASSES_SHOWN, _RARE_SHOWN, _CELL_SHOWN = 20, 3, 40


def tabulate(manifest: Manifest) -> pd.DataFrame:
    """Return a row per class, largest first: examples per split, sizes of texts, the first id.

    For numbers to predict and for a series: a row per column, with lowest, median, highest value.
    """
    examples = manifest.examples
    if manifest.schema.is_series:
        values = np.load(manifest.folder / VALUES, mmap_mode="r", allow_pickle=False)
        return _ranges(manifest.schema.columns.names, values)
    target = manifest.schema.target
    if target and manifest.schema.predicts_number:
        numbers = np.asarray(examples["label"].tolist(), np.float64).reshape(len(examples), -1)
        return _ranges([f"label {n + 1}" for n in range(numbers.shape[1])], numbers)
    names = (
        np.asarray(manifest.classes, object)[examples["label"].to_numpy(int)]
        if manifest.classes
        else np.full(len(examples), "all")
    )
    counts = pd.crosstab(pd.Series(names, name="class"), examples["split"])
    table = counts.reindex(columns=[split for split in SPLITS if split in counts])
    by_class = examples.groupby(names)
    if manifest.schema.input.encoding.modality == "text":
        for name, length in (("least", "min"), ("median", "median"), ("most", "max")):
            table[f"{name} bytes"] = by_class["bytes"].agg(length).astype(int)
    table["first"] = by_class["id"].first()
    order = counts.sum(axis="columns").sort_values(ascending=False, kind="stable").index
    return table.loc[order]


def tabulate_columns(manifest: Manifest) -> pd.DataFrame | None:
    """Return a row per column of a table, or None if the examples are not from a table.

    A row has the column's kind, the range of its numbers (empty cells count as the median; only in
    the rows that `to_rows` shows), how many distinct values and empty cells it has, and a cell.
    """
    readings = manifest.stats["columns"]
    if not readings:
        return None
    table = pd.DataFrame(readings).set_index("name").rename_axis("column")
    of_rows = manifest.schema.table_input is None
    coded = manifest.schema.columns
    file = manifest.folder / (VALUES if of_rows else TABLE_INPUT)
    numeric = coded.names[: coded.numeric]
    ranges = pd.DataFrame("", table.index, ["lowest", "median", "highest"], object)
    if numeric and file.exists():
        values = np.load(file, mmap_mode="r", allow_pickle=False)
        for place, name in enumerate(numeric):
            if name in ranges.index[:_CLASSES_SHOWN]:  # others are not shown
                ranges.loc[name] = _ranges([name], np.array(values[:, place])).iloc[0].tolist()
    table["such as"] = [" ".join(cell.split())[:_CELL_SHOWN] for cell in table["example"]]
    return pd.concat([table[["kind"]], ranges, table[["distinct", "missing", "such as"]]], axis=1)


def _ranges(names: Sequence[str], values: np.ndarray) -> pd.DataFrame:
    flat = values.reshape(len(values), -1)
    return pd.DataFrame(
        {
            "lowest": np.nanmin(flat, axis=0),
            "median": np.nanmedian(flat, axis=0),
            "highest": np.nanmax(flat, axis=0),
        },
        index=pd.Index(names, name="column"),
    )


def to_rows(table: pd.DataFrame) -> list[list[str]]:
    """Return the heading and first rows of a table as text, and a row that counts the others."""
    shown = table.head(_CLASSES_SHOWN)
    rows = [[str(table.index.name), *map(str, table.columns)]]
    rows += [
        [str(name), *map(_word, row)]
        for name, row in zip(shown.index, shown.itertuples(index=False), strict=True)
    ]
    if more := len(table) - len(shown):
        rows.append([f"… and {more:,} more", *[""] * len(table.columns)])
    return rows


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, (int, np.integer)) else f"{value:,.6g}"


def to_text(table: pd.DataFrame) -> list[str]:
    rows = to_rows(table)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numeric = [False, *(name not in ("first", "kind", "such as") for name in table.columns)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]


def write_glance(manifest: Manifest, table: pd.DataFrame) -> None:
    columns = tabulate_columns(manifest)
    parts = [
        _to_markdown(table),
        [f"- {problem}" for problem in manifest.stats["problems"]],
        [] if columns is None else _to_markdown(columns),
    ]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    (manifest.folder / GLANCE).write_text(f"{text}\n", encoding="utf-8")


def _to_markdown(table: pd.DataFrame) -> list[str]:
    heading, *rows = (
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        for row in to_rows(table)
    )
    return [heading, f"|{'---|' * (heading.count(' | ') + 1)}", *rows]


def describe_sheet(rows: Sequence[Sequence[str]]) -> str:
    named = ", ".join(row[0] for row in rows[1 : PICTURED + 1])
    return f"sample pictures of the training split, a row for each class: {named}"


def read_problems(folder: Path) -> list[str]:
    with expect_current_schema(folder / "manifest.json"):
        return read_json(folder / "manifest.json")["stats"]["problems"]


def find_problems(stats: Mapping[str, Any], *, of_table: bool) -> list[str]:
    """Return rejects, left-out data, warnings and classes with at most one example, a line each."""
    problems = [f"{count:,} × {reason}" for reason, count in stats["reject_reasons"].items()]
    problems += [f"{count:,} left out: {reason}" for reason, count in stats["left_out"].items()]
    problems += stats["warnings"]
    if skipped := stats["skipped"]:
        problems += [f"files of other kinds that are left out: {name_kinds(skipped)}"]
    if rare := find_rare_classes(stats["class_balance"], of_table=of_table):
        problems += [rare]
    return problems + [
        f"class folder {name} holds no example and is left out" for name in stats["empty_classes"]
    ]


def find_rare_classes(balance: Mapping[str, Mapping[str, int]], *, of_table: bool) -> str | None:
    """Return a warning if classes have a single example, or None.

    With `of_table`, it also says if the classes may be numbers to predict.
    """
    total = sum((Counter(counts) for counts in balance.values()), Counter())
    rare = [name for name, count in total.items() if count == 1]
    if not rare:
        return None
    said = (
        f"a single example, for either training or evaluation, in {len(rare):,} of {len(total):,}"
        f" classes: {', '.join(rare[:_RARE_SHOWN])}{' …' if rare[_RARE_SHOWN:] else ''}"
    )
    if of_table and 2 * len(rare) > len(total) and all(map(_is_number, total)):
        said += ". They are numbers: data.label_kind: number predicts them"
    return said


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
