"""The table of a comparison, with the same columns on the page, in Prefect and on terminals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from throughline.results.comparison import Comparison, Row

ABSENT = "–"
TIED_MARK = " *"
TIED_NOTE = "*: the fastest, or as fast within the noise"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A formatted value; `detail`, such as its interval, is shown if there is room."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column; a terminal shows only `essential` ones."""

    heading: str
    unit: str = ""
    numeric: bool = True
    essential: bool = True
    cell: Callable[[Row], Cell]

    @property
    def title(self) -> str:
        return f"{self.heading} [{self.unit}]" if self.unit else self.heading


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; rows of the `tied` configurations are marked."""

    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]
    tied: tuple[str, ...]


def to_text(table: Table) -> str:
    """Format the essential columns, without details; headings have one word per line."""
    essential = [column for column in table.columns if column.essential]
    headings = [[*column.heading.split(), column.unit] for column in essential]
    height = max(map(len, headings))
    cells = [[column.cell(row).text for column in essential] for row in table.rows]
    for texts, row in zip(cells, table.rows, strict=True):
        texts[0] += TIED_MARK if row.pipeline in table.tied and len(table.rows) > 1 else ""
    columns = [
        [*[""] * (height - len(heading)), *heading, *texts]
        for heading, texts in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    aligned = [
        [f"{text:{'>' if column.numeric else '<'}{max(map(len, texts))}}" for text in texts]
        for column, texts in zip(essential, columns, strict=True)
    ]
    return "\n".join("  ".join(texts).rstrip() for texts in zip(*aligned, strict=True))


def to_records(table: Table) -> list[dict[str, str]]:
    return [{column.title: str(column.cell(row)) for column in table.columns} for row in table.rows]


def comparison_table(comparison: Comparison) -> Table:
    rate = "examples/s"
    on_test = any(row.test_metric is not None for row in comparison.configurations)
    speedup = _interval(
        f"× {comparison.baseline}", "", "speedup_vs_naive", digits=2, without=comparison.baseline
    )
    text = any(row.sequence_batches is not None for row in comparison.configurations)
    columns = (
        TableColumn(
            heading="configuration", numeric=False, cell=lambda row: Cell(text=row.pipeline)
        ),
        TableColumn(heading="verdict", numeric=False, cell=lambda row: Cell(text=row.verdict)),
        _interval("training", rate, "steady_examples_per_s"),
        *((speedup,) if len(comparison.configurations) > 1 else ()),
        TableColumn(heading="its epochs", unit=rate, cell=_epochs),
        _figure("input alone", rate, "input_examples_per_s"),
        _figure("model alone", rate, "model_examples_per_s"),
        *(_TEXT_COLUMNS if text else ()),
        _interval("stall", "%", "stall_pct"),
        _figure("wait", "ms", "wait_ms_mean", digits=2),
        TableColumn(
            heading=comparison.metric, unit="test" if on_test else "validation", cell=_quality
        ),
        _figure("break-even", "epoch", "break_even_epoch", essential=False),
        _figure("memory", "MB", "rss_mb_max", essential=False),
        _figure("CPU busy", "%", "cpu_utilization_pct", essential=False),
        *((_GPU_COLUMN,) if comparison.machine.get("gpus") else ()),
    )
    return Table(columns=columns, rows=comparison.configurations, tied=comparison.tied)


def _figure(
    heading: str, unit: str, path: str, *, digits: int = 0, essential: bool = True
) -> TableColumn:
    """Make a column of the figure at a dotted `path`; `ABSENT` if a part of this path is None."""

    def cell(row: Row) -> Cell:
        value: Any = row
        for name in path.split("."):
            value = value and getattr(value, name)
        return Cell(text=ABSENT if value is None else f"{value:,.{digits}f}")

    return TableColumn(heading=heading, unit=unit, essential=essential, cell=cell)


_GPU_COLUMN = _figure("GPU busy", "%", "gpu_utilization_pct_mean")
_TEXT_COLUMNS = (
    _figure("input alone", "tokens/s", "tokens_per_s"),
    _figure("padding", "%", "sequence_batches.padding_pct", digits=1),
    _figure("distinct shapes", "", "sequence_batches.distinct_shapes"),
)


def _interval(
    heading: str, unit: str, name: str, *, digits: int = 0, without: str = ""
) -> TableColumn:
    """Make a column of the figure `name` with its interval, which row `without` lacks."""

    def cell(row: Row) -> Cell:
        ends = (name, f"{name}_low", f"{name}_high")
        text, low, high = (f"{getattr(row, end):,.{digits}f}" for end in ends)
        return Cell(text=text, detail="" if row.pipeline == without else f"{low} to {high}")

    return TableColumn(heading=heading, unit=unit, cell=cell)


def _epochs(row: Row) -> Cell:
    if row.train_examples_per_s is None:
        return Cell(text=ABSENT)
    return Cell(text=f"{row.train_examples_per_s:,.0f}", detail=row.epochs_doubt)


def _quality(row: Row) -> Cell:
    if row.test_metric is None:
        return Cell(text=f"{row.val_metric:.4f}")
    return Cell(text=f"{row.test_metric:.4f}", detail=f"validation {row.val_metric:.4f}")
