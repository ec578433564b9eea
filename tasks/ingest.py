"""The ingest stage: look at every example of the source once, refuse what is unusable with a
reason, write the manifest, and say what was read and how (throughline/data/ingest.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from throughline.config.cli import stage_cli
from throughline.data import sources
from throughline.data.ingest import ingest
from throughline.data.manifest import SPLITS, Manifest
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo, echo_problem, echo_result

COLUMNS_SHOWN = 12


def _name_some(names: Sequence[str]) -> str:
    """The first names, and how many there are where a line would not hold all.

    >>> _name_some(["height", "width"]), _name_some([str(number) for number in range(784)])
    ('height, width', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 772 more')
    """
    more = len(names) - COLUMNS_SHOWN
    return ", ".join(names[:COLUMNS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def count_splits(manifest: Manifest) -> str:
    """How many examples each split has; of a series, time steps."""
    if not manifest.schema.is_series:
        counts = manifest.stats["examples"].items()
        return ", ".join(f"{count:,} {split}" for split, count in counts)
    steps = {split: sum(manifest.for_split(split)["label"].tolist()) for split in SPLITS}
    return ", ".join(f"{count:,} {split}" for split, count in steps.items()) + " time steps"


def main() -> None:
    """Look at every example of the source, refuse the unusable ones with a reason, write
    data/manifest/.
    """
    with stage_cli(main) as params:
        manifest = ingest(params.data, Layout().manifest)
        stats = manifest.stats
        kind = (
            f"{len(manifest.classes)} classes"
            if manifest.classes
            else f"columns {_name_some(manifest.schema.input.columns.names)}"
        )
        echo_result(f"{count_splits(manifest)}; {kind}, {stats['bytes'] / 2**20:,.1f} MiB")
        if stats["rejected"]:
            listed = from_here(Layout().manifest / "rejected.csv")
            echo_problem(f"{stats['rejected']:,} rejected, listed in {listed}")
        for reason, count in {**stats["reject_reasons"], **stats["notes"]}.items():
            echo_problem(f"{count:,} × {reason}")
        for what in stats["dialect"]:
            echo_problem(what)
        for reading in stats["columns"]:
            echo(f"  column {sources.ColumnReading(**reading)}")
        for name, what in stats["features"].items():
            echo(f"  feature {name}: {what}")
        if skipped := stats["skipped"]:
            kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in skipped.items())
            echo_problem(f"{sum(skipped.values()):,} files of other kinds are left out: {kinds}")
        trained = stats["class_balance"].get("train", {})
        if untrained := [name for name in manifest.classes if name not in trained]:
            echo_problem(f"no example in the training split: class {_name_some(untrained)}")
        for name in stats["empty_classes"]:
            echo_problem(f"class folder {name} holds no example and is left out")


if __name__ == "__main__":
    main()
