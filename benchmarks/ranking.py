"""Does another program that eats a core during half of a comparison change the ranking?

    python -m benchmarks.ranking --json FILE

    python -m benchmarks.ranking --simulate

Profiles every configuration of params.yaml's demo on Fashion-MNIST twice: on a quiet machine, and
while another program computes during the second half of the configurations. Prints speed-ups and
ties by pairs, and those by raw rates next to them. With `--simulate` nothing is profiled: prints
how often equal configurations are called different, and the difference that is found in half of the
cases, by their number and rounds, for noise of 5 %.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from benchmarks.stall import eaten_core


@dataclass(frozen=True, kw_only=True)
class Run:
    """What decides the rank of a configuration, and its raw rate [examples/s]."""

    pipeline: str
    relative_rates: tuple[float, ...]
    rate_doubt: float
    reference_examples_per_s: float
    raw_examples_per_s: float
    stall_pct: float
    verdict: str


def profiled(
    workload: data.Workload, name: str, config: dict[str, Any], document: dict[str, Any]
) -> Run:
    """The figures of one configuration that ranking needs, from a process of its own."""
    from throughline.assembly.inputs import open_input_pipeline, open_inputs
    from throughline.assembly.model import build_models_for
    from throughline.config.params import check
    from throughline.diagnosis.summary import summarize_rounds
    from throughline.measurement.train_steps import TrainingLoop, time_training
    from throughline.shared.allocator import raise_malloc_thresholds

    raise_malloc_thresholds()
    params = check({**document, "data": workload.document["data"], "pipelines": {name: config}})
    data = open_inputs(params, workload.layout)
    pipeline = open_input_pipeline(params, name, data, split="train", purpose="train")
    models = build_models_for(params, data)
    loop = TrainingLoop(models, pipeline, params.train)
    state = time_training(loop, models, pipeline, train=params.train, measure=params.measure)
    return Run(
        pipeline=name,
        relative_rates=tuple(state.relative_rates),
        rate_doubt=summarize_rounds(state).rate_doubt,
        reference_examples_per_s=params.batch_size / state.reference_step_ms * 1e3,
        raw_examples_per_s=params.batch_size / state.train_step_ms * 1e3,
        stall_pct=state.stall_pct,
        verdict=state.side,
    )


def compared(workload: data.Workload, document: dict[str, Any], *, disturbed: bool) -> list[Run]:
    """All configurations, one after the other; `disturbed`: a core is eaten during the second half
    of them.
    """
    rows, configs = [], list(document["pipelines"].items())
    for number, (name, config) in enumerate(configs):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            arguments = (workload, name, config, document)
            if disturbed and number >= len(configs) / 2:
                with eaten_core():
                    rows.append(pool.apply(profiled, arguments))
            else:
                rows.append(pool.apply(profiled, arguments))
    return rows


def simulate(comparisons: int = 300, noise: float = 0.05) -> None:
    """Print the share of comparisons of equal configurations in which any is called different, and
    the factor between the fastest and the rest that is half of the interval of their ratio.
    """
    import numpy as np

    from throughline.reporting.ranking import find_tied, find_winners, ratio_interval

    print("configurations  rounds  called different  found from")
    for count in (2, 5, 7, 12):
        for rounds in (3, 4, 6, 9):
            draw, wrong, factors = np.random.default_rng(count * rounds), 0, []
            for _ in range(comparisons):
                rows = [
                    Run(
                        pipeline="naive" if not number else str(number),
                        relative_rates=tuple(draw.lognormal(0, noise, rounds)),
                        rate_doubt=0.0,
                        reference_examples_per_s=1.0,
                        raw_examples_per_s=1.0,
                        stall_pct=0.0,
                        verdict="",
                    )
                    for number in range(count)
                ]
                wrong += bool(find_winners(rows)) or len(find_tied(rows)) < count
                low, high = ratio_interval(rows[1], rows[0], among=rows)
                factors.append((high / low) ** 0.5)
            print(f"{count:>14}{rounds:>8}{wrong / comparisons:>17.1%}{np.median(factors):>11.2f}×")


def main() -> None:
    """Compare twice, print both rankings, write everything as JSON."""
    from throughline.reporting.ranking import (
        find_baseline,
        find_tied,
        ratio_interval,
        relative_rate,
    )

    parser = data_command_line("ranking", __doc__)
    parser.add_argument("--simulate", action="store_true", help="equal configurations, no profiles")
    options: argparse.Namespace = parser.parse_args()
    if options.simulate:
        return simulate()
    document = YAML(typ="safe").load((data.ROOT / "params.yaml").read_text())
    with open_work(options.work) as work:
        workload = data.fashion_mnist(work)
        results = {
            label: compared(workload, document, disturbed=label == "disturbed")
            for label in ("quiet", "disturbed")
        }
    for label, rows in results.items():
        base, names = find_baseline(rows), find_tied(rows)
        print(f"\n{label}: tied for the first place: {', '.join(names)}")
        print(
            f"{'configuration':<16}{'by pairs':>10}{'interval':>16}{'by raw rates':>14}{'stall':>8}"
        )
        for row in sorted(rows, key=relative_rate, reverse=True):
            span = "{:.2f} to {:.2f}".format(*ratio_interval(row, base, among=rows))
            raw = row.raw_examples_per_s / base.raw_examples_per_s
            ratio = relative_rate(row) / relative_rate(base)
            print(f"{row.pipeline:<16}{ratio:>9.2f}×{span:>16}{raw:>13.2f}×{row.stall_pct:>7.0f}%")
    write_results(options.json, results)
    return None


if __name__ == "__main__":
    main()
