"""How long an example takes of a partly stored snapshot, compared with a line from none to all.

    python -m benchmarks.snapshot_parts --photos DIR --json FILE

Configurations differ only in `snapshot: {fraction: F}`. Each has its own process, and all take
turns (`input_pipelines.py`); the ratio to the line is taken within a round, so that drift of the
machine affects all terms alike. `indexed` decodes every example, like a part of 0, but by another
plan.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from benchmarks.input_pipelines import start_workers, take_turns

FRACTIONS = (0.0, 0.1, 0.3, 0.6, 0.9, 1.0)
ROUNDS = 15
ALLOWED = 1.2  # times the line


def in_parts(workload: data.Workload) -> data.Workload:
    """Return the same data, read in parts and by the index of the shards."""
    usual = {"shuffle": {"kind": "global"}, "map": {"parallel": "cores"}, "prefetch": 2}
    parts = {
        name_of(fraction): {**usual, "read": "snapshot", "snapshot": {"fraction": fraction}}
        for fraction in FRACTIONS
    }
    indexed = {**usual, "read": "indexed_shards", "vectorize": True}
    return replace(
        workload, document={**workload.document, "pipelines": {**parts, "indexed": indexed}}
    )


def name_of(fraction: float) -> str:
    return f"part_{100 * fraction:.0f}"


def measure(workload: data.Workload, rounds: int) -> dict[str, list[float]]:
    """Return microseconds per example of each configuration, per round."""
    with ExitStack() as stack:
        pipes = start_workers(workload, list(workload.params.pipelines), stack)
        for pipe in pipes.values():
            pipe.recv()
        turns = [take_turns(pipes) for _ in range(rounds)]
    return {name: [1e6 / one[name] for one in turns] for name in pipes}


def summarize(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return median times [µs per example] and, for parts, quartiles of their ratio to the line."""
    rows = {name: {"example_us": statistics.median(times)} for name, times in taken.items()}
    for fraction in FRACTIONS[1:-1]:
        ratios = [
            part / (none + fraction * (whole - none))
            for part, none, whole in zip(
                taken[name_of(fraction)], taken[name_of(0)], taken[name_of(1)], strict=True
            )
        ]
        low, median, high = statistics.quantiles(ratios, n=4)
        rows[name_of(fraction)] |= {"to_line": median, "low": low, "high": high}
    return rows


def show(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{'configuration':<16}{'µs/example':>12}{'to line':>10}{'quartiles':>16}")
    for name, row in rows.items():
        line = (
            f"{row['to_line']:>10.2f}{row['low']:>9.2f} to {row['high']:.2f}"
            + ("" if row["to_line"] <= ALLOWED else f"  more than {ALLOWED}")
            if "to_line" in row
            else ""
        )
        print(f"{name:<16}{row['example_us']:>12.2f}{line}")


def main() -> None:
    parser = data_command_line("snapshot_parts", __doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns per configuration")
    options = parser.parse_args()
    written: dict[str, Any] = {}
    with open_work(options.work) as work:
        makers: list[Callable[[], data.Workload]] = [lambda: data.fashion_mnist(work)]
        if options.photos is None:
            print("photos: left out, since --photos DIR is not given")
        else:
            makers += [
                lambda: data.photos(options.photos, work),
                lambda: data.crops(options.photos, work),
            ]
        for make in makers:
            workload = in_parts(make())
            written[workload.name] = summarize(measure(workload, options.rounds))
            size = workload.params.batch_size
            show(f"{workload.name}, batches of {size}", written[workload.name])
    write_results(options.json, written)


if __name__ == "__main__":
    main()
