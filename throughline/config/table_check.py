"""Reads the table of a run before the run starts, so that problems are reported at once."""

from pathlib import Path

from throughline.config.params_file import PARAMS_FILE
from throughline.plan.shapes import choose_window
from throughline.settings import DataSettings, WindowSettings
from throughline.settings.source_kinds import TABLES
from throughline.shared.layout import Layout

READ_BYTES = 8 << 20  # larger tables are not read; this many bytes take about a second


def check_table(
    root: Path, data: DataSettings, *, changed: bool, window: WindowSettings | None = None
) -> None:
    """Read a table of up to `READ_BYTES` as ingest does; of a table of texts only the header.

    Skips a table that ingest has read since the table and params.yaml were last changed, unless
    the run's parameters are `changed`. A series must also fit its `window`.

    Raises:
      UnreadableSource: Lists everything that is wrong with the table.
      InvalidParams: No window fits into a split of the series, or it lacks a column to predict.
    """
    table, manifest = root / data.path, Layout(root).manifest / "manifest.json"
    if table.suffix.lower() not in TABLES or not table.is_file():
        return
    times = [file.stat().st_mtime for file in (root / PARAMS_FILE, table)]
    known = not changed and manifest.is_file() and manifest.stat().st_mtime > max(times)
    if known or table.stat().st_size > READ_BYTES:
        return
    from throughline.data import sources  # pandas
    from throughline.data.splits import split_steps  # pandas

    found = sources.scan(data.model_copy(update={"path": str(table)}))
    if isinstance(found, sources.Texts):
        next(iter(found.documents), None)  # reads the header
    elif isinstance(found, sources.Series) and window:
        splits = split_steps(len(found.values), data.split.model_dump())
        steps = {split: end - begin for split, (begin, end) in splits.items() if end > begin}
        choose_window(window, steps, found.schema.input.columns.names, cuts=found.cuts)
