"""The candidates of a search as a table: on a terminal, in Markdown, and as records."""

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from throughline.reporting.table import ABSENT
from throughline.results.tuning import TunedCandidate, TuningResult

COLUMNS = (
    "candidate",
    "measured [examples/s]",
    "training [s]",
    "from, to [s]",
    "RAM [MiB]",
    "disk [MiB]",
    "prepare [s]",
    "dropped",
)
NUMERIC = COLUMNS[1:-1]
WORDS_WIDTH = 16  # the least width of columns of words
LOG_WIDTH = 150  # if it is not printed on a terminal
NOT_RACED = "not raced: other forms of its family were, or the time was up"


def to_records(result: TuningResult) -> list[dict[str, str]]:
    return [dict(zip(COLUMNS, _cells(each), strict=True)) for each in result.candidates]


def to_markdown(result: TuningResult) -> str:
    """Format the sentence and the table, without forms that were not raced."""
    rule = ["---:" if title in NUMERIC else "---" for title in COLUMNS]
    shown = [_cells(each) for each in result.candidates if each.dropped != NOT_RACED]
    lines = [COLUMNS, rule, *shown]
    table = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n".join([result.sentence, "", *table])


def to_terminal(result: TuningResult) -> Table:
    """Make the table for a terminal; forms that were not raced are only counted."""
    shown = [each for each in result.candidates if each.dropped != NOT_RACED]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in COLUMNS:
        name, _, unit = title.partition(" [")
        table.add_column(
            name + (f"\n{unit.rstrip(']')}" if unit else ""),
            justify="right" if title in NUMERIC else "left",
            overflow="fold",
            min_width=WORDS_WIDTH if title not in NUMERIC else None,
        )
    for each in shown:
        table.add_row(*map(Text, _cells(each)), style="" if each.dropped else "bold")
    if hidden := len(result.candidates) - len(shown):
        forms = "1 form that was" if hidden == 1 else f"{hidden} forms that were"
        table.caption = f"and {forms} not raced"
    return table


def print_table(result: TuningResult) -> None:
    Console(width=None if sys.stdout.isatty() else LOG_WIDTH).print(to_terminal(result))


def _cells(each: TunedCandidate) -> tuple[str, ...]:
    interval = ABSENT
    if each.seconds_low is not None and each.seconds_high is not None:
        interval = f"{each.seconds_low:,.1f}, {each.seconds_high:,.1f}"
    return (
        each.name,
        _number(each.examples_per_s),
        _number(each.seconds, digits=1),
        interval,
        _number(each.ram_mib),
        _number(each.disk_mib),
        _number(each.prepare_s),
        each.dropped,
    )


def _number(value: float | None, *, digits: int = 0) -> str:
    return ABSENT if value is None else f"{value:,.{digits}f}"
