"""The ingest stage: inspect every example of the source once, reject unusable ones with a reason,
write the manifest, and report how the source was read.

The work itself is in throughline/data/ingest.py.
"""

import argparse

from tasks.earlier import check_identity
from throughline.config.cli import options_stage_cli
from throughline.data.glance import tabulate, tabulate_columns, to_text
from throughline.data.ingest import ingest
from throughline.data.manifest import SPLITS, Manifest
from throughline.plan.shapes import choose_window
from throughline.settings import WindowSettings
from throughline.shared.engine import use_engine
from throughline.shared.file_lock import hold_outputs
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo, echo_fact, echo_problem, echo_result
from throughline.shared.wording import name_some

UNUSED = ("ignored", "empty")  # kinds of columns


def count_splits(manifest: Manifest) -> str:
    """Format the number of examples in each split; for a series, of time steps."""
    if not manifest.schema.is_series:
        counts = manifest.stats["examples"].items()
        return ", ".join(f"{count:,} {split}" for split, count in counts)
    steps = _count_steps(manifest).items()
    return ", ".join(f"{count:,} {split}" for split, count in steps) + " time steps"


def _count_steps(manifest: Manifest) -> dict[str, int]:
    return {split: sum(manifest.for_split(split)["label"].tolist()) for split in SPLITS}


def check_windows(manifest: Manifest, settings: WindowSettings) -> None:
    """Refuse a series without a window in one of its splits, as the build stage would."""
    if manifest.schema.is_series:
        steps = {split: count for split, count in _count_steps(manifest).items() if count}
        choose_window(settings, steps, manifest.schema.columns.names, cuts=manifest.cuts)


def report(manifest: Manifest) -> None:
    """Print the usable and the rejected examples, the reasons, and how the source was read."""
    stats = manifest.stats
    kind, names = "numbers to predict", manifest.schema.columns.names
    if manifest.classes:
        kind = f"{len(manifest.classes):,} classes: {name_some(manifest.classes)}"
    elif names:
        kind = f"columns {name_some(names)}"
    echo_result(f"{count_splits(manifest)}; {kind}, {stats['bytes'] / 2**20:,.1f} MiB")
    if stats["rejected"]:
        listed = from_here(Layout().manifest / "rejected.csv")
        echo_problem(f"{stats['rejected']:,} rejected, listed in {listed}")
    for table in (tabulate(manifest), tabulate_columns(manifest)):
        for line in [] if table is None else to_text(table):
            echo(f"  {line}")
    for problem in stats["problems"]:
        echo_problem(problem)
    unused = [each["name"] for each in stats["columns"] if each["kind"] in UNUSED]
    facts = [*(f"{n:,} × {note}" for note, n in stats["notes"].items()), *stats["dialect"]]
    for fact in [*facts, *([f"not used: {name_some(unused)}"] if unused else [])]:
        echo_fact(fact)
    for name, what in stats["features"].items():
        echo(f"  feature {name}: {what}")


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every file, even if its size, times and inode are those of an earlier ingest,"
        " and name files whose content has changed nevertheless",
    )


def main() -> None:
    """Inspect every example of the source, reject unusable ones with a reason, and write
    data/manifest/. Files that have not changed since an earlier ingest are not read again.
    """
    with options_stage_cli(main, declare_options) as (params, options):
        check_identity()
        layout = Layout()
        with (
            hold_outputs(layout.manifest.parent, "preparing data"),
            use_engine(**params.engine.model_dump()),
        ):
            manifest = ingest(
                params.data, layout.manifest, inspections=layout.inspections, verify=options.verify
            )
        report(manifest)
        check_windows(manifest, params.window)


if __name__ == "__main__":
    main()
