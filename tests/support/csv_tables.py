"""Small CSV tables for tests, written and scanned."""

from throughline.data.sources import SCANNERS
from throughline.settings import DataSettings


def write(tmp_path, header, rows, *, delimiter=","):
    path = tmp_path / "table.csv"
    lines = [header, *(delimiter.join(map(str, row)) for row in rows)]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def scan(path, source="table", **data):
    return SCANNERS[source](DataSettings(source=source, path=str(path), **data))
