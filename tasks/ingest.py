"""The ingest stage: look at every example of the source once, refuse what is unusable with a
reason, write the manifest, and say what was read and how (throughline/data/ingest.py).
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from throughline.config.cli import options_stage_cli
from throughline.data import sources
from throughline.data.ingest import ingest
from throughline.data.manifest import SPLITS, Manifest
from throughline.settings.source_kinds import SOURCES
from throughline.shared.engine import use_engine
from throughline.shared.layout import Layout, from_here
from throughline.shared.output_lock import hold_outputs
from throughline.shared.progress import echo, echo_fact, echo_problem, echo_result

COLUMNS_SHOWN = 12
RARE_SHOWN = 3  # classes
UNUSED = ("ignored", "empty")  # kinds of columns


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


def describe_columns(readings: Sequence[sources.ColumnReading], *, classes: int) -> str:
    """How the columns of a table were read, each in a few words; those that are not used come last.
    Without `classes` the label is a number.
    """
    more = {"label": f" ({classes:,} classes)" if classes else " (a number)"}
    named = [
        f"{each.name} {each.kind}"
        + (f" ({each.distinct:,} values)" if each.kind == "category" else more.get(each.kind, ""))
        for each in readings
        if each.kind not in UNUSED
    ]
    unused = [each.name for each in readings if each.kind in UNUSED]
    return " · ".join([*named, *([f"not used: {', '.join(unused)}"] if unused else [])])


def find_rare_classes(balance: Mapping[str, Mapping[str, int]], *, of_table: bool) -> str | None:
    """What to say where classes have fewer than two examples, by the examples of each class in each
    split; None where none has. Labels `of_table` may be numbers to predict.
    """
    total = sum((Counter(counts) for counts in balance.values()), Counter())
    rare = [name for name, count in total.items() if count == 1]
    if not rare:
        return None
    said = (
        f"{len(rare):,} of {len(total):,} classes have a single example, which is trained on or"
        f" judged, not both: {', '.join(rare[:RARE_SHOWN])}{' …' if rare[RARE_SHOWN:] else ''}"
    )
    if of_table and 2 * len(rare) > len(total) and all(map(_is_number, total)):
        said += ". They are numbers: data.label_kind: number predicts them"
    return said


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def report(manifest: Manifest, *, of_table: bool) -> None:
    """Say what is usable, what is not and why, and how the source was read; labels `of_table` may
    be numbers to predict.
    """
    stats = manifest.stats
    kind = (
        f"{len(manifest.classes)} classes"
        if manifest.classes
        else f"columns {_name_some(manifest.schema.columns.names)}"
        if manifest.schema.columns.names
        else "numbers to predict"
    )
    echo_result(f"{count_splits(manifest)}; {kind}, {stats['bytes'] / 2**20:,.1f} MiB")
    if stats["rejected"]:
        listed = from_here(Layout().manifest / "rejected.csv")
        echo_problem(f"{stats['rejected']:,} rejected, listed in {listed}")
    for problem in find_problems(stats, manifest.classes, of_table=of_table):
        echo_problem(problem)
    readings = [sources.ColumnReading(**reading) for reading in stats["columns"]]
    described = [describe_columns(readings, classes=len(manifest.classes))] if readings else []
    facts = [*(f"{n:,} × {note}" for note, n in stats["notes"].items()), *stats["dialect"]]
    for fact in [*facts, *described]:
        echo_fact(fact)
    for reading in readings:
        echo(f"  column {reading}")
    for name, what in stats["features"].items():
        echo(f"  feature {name}: {what}")


def find_problems(stats: Mapping[str, Any], classes: Sequence[str], *, of_table: bool) -> list[str]:
    """What of a source is left out or can hardly be learned, each in a line."""
    problems = [f"{count:,} × {reason}" for reason, count in stats["reject_reasons"].items()]
    problems += stats["warnings"]
    if skipped := stats["skipped"]:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in skipped.items())
        problems += [f"{sum(skipped.values()):,} files of other kinds are left out: {kinds}"]
    trained = stats["class_balance"].get("train", {})
    if untrained := [name for name in classes if name not in trained]:
        problems += [f"no example in the training split: class {_name_some(untrained)}"]
    if rare := find_rare_classes(stats["class_balance"], of_table=of_table):
        problems += [rare]
    return problems + [
        f"class folder {name} holds no example and is left out" for name in stats["empty_classes"]
    ]


def declare_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this stage."""
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every file, also those whose size, times and inode are those of an earlier"
        " ingest, and name what has changed without them",
    )


def main() -> None:
    """Look at every example of the source, refuse the unusable ones with a reason, write
    data/manifest/. Files that have not changed since an earlier ingest are not read again.
    """
    with options_stage_cli(main, declare_options) as (params, options):
        layout = Layout()
        with (
            hold_outputs(layout.manifest.parent, "preparing data"),
            use_engine(**params.engine.model_dump()),
        ):
            manifest = ingest(
                params.data, layout.manifest, inspections=layout.inspections, verify=options.verify
            )
        report(manifest, of_table=SOURCES[params.data.source].in_table)


if __name__ == "__main__":
    main()
