"""Small CSV tables for tests, written and scanned."""

from throughline.data.sources import SCANNERS
from throughline.settings import DataSettings


def write(tmp_path, header, rows, *, delimiter=",", end="\n"):
    path = tmp_path / "table.csv"
    lines = [header, *(delimiter.join(map(str, row)) for row in rows)]
    path.write_bytes((end.join(lines) + end).encode())
    return path


def scan(path, source="table", **data):
    return SCANNERS[source](DataSettings(source=source, path=str(path), **data))


def measured(count):
    """Rows of a number, a category and a label that nothing is wrong with."""
    return [[row / 8, "ab"[row % 2], "xy"[row % 2]] for row in range(count)]
