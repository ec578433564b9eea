"""Does `optimized` train at least as fast as what people use otherwise: everything parallel, or
everything left to AUTOTUNE?

    python -m benchmarks.training --photos DIR --json FILE

A small model, so that the input counts as it does on a fast accelerator. `optimized` and one other
are trained in alternation in one process, so that the machine's drift hits both alike; every pair
has a process of its own. What counts is the median of the rounds' ratios. Of each turn the second
half counts: what AUTOTUNE's buffers took in while the other trained is used up by then.
"""

from __future__ import annotations

import multiprocessing
import statistics
from typing import Any

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results

ROUNDS, TURN_S = 5, 1.5
OTHERS = ("heuristic", "autotune")
MODEL = {"name": "mlp", "options": {"width": 64}}


def compare_with(workload: data.Workload, other: str) -> dict[str, Any]:
    """Train `optimized` and `other` in alternation: examples per second of both, and the ratio with
    its extremes.
    """
    from throughline.assembly.inputs import open_input_pipeline, open_inputs
    from throughline.assembly.model import build_models_for
    from throughline.config.params import check
    from throughline.measurement.train_steps import TrainingLoop
    from throughline.shared.allocator import raise_malloc_thresholds

    raise_malloc_thresholds()
    params = check({**workload.document, "model": MODEL})
    opened = open_inputs(params, workload.layout)
    loops = [
        TrainingLoop(
            build_models_for(params, opened),
            open_input_pipeline(params, name, opened, split="train", purpose="train"),
            params.train,
        )
        for name in (other, "optimized")
    ]
    for loop in loops:
        loop.start()
    slow, quick = data.alternate([loop.step for loop in loops], rounds=ROUNDS, seconds=TURN_S)
    ratios = sorted(one / other for one, other in zip(slow, quick, strict=True))
    return {
        "other_examples_per_s": round(params.batch_size / statistics.median(slow) * 1e3),
        "optimized_examples_per_s": round(params.batch_size / statistics.median(quick) * 1e3),
        "ratio": round(statistics.median(ratios), 2),
        "from_to": [round(ratios[0], 2), round(ratios[-1], 2)],
    }


def main() -> None:
    """Measure all pairs, print the table and write it as JSON."""
    options = data_command_line("training", __doc__).parse_args()
    with open_work(options.work) as work:
        workloads = [data.fashion_mnist(work), data.windows(work)]
        if options.photos:
            workloads = [
                data.photos(options.photos, work),
                data.crops(options.photos, work),
                data.imagenet(options.photos, work),
                *workloads,
            ]
        else:
            print("photos, crops, imagenet: left out, since --photos DIR is not given")
        results: dict[str, Any] = {}
        print(
            f"{'data':<15}{'optimized against':<20}{'examples/s':>12}{'optimized':>12}{'ratio':>8}"
        )
        for workload in workloads:
            for other in OTHERS:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    found = results.setdefault(workload.name, {})[other] = pool.apply(
                        compare_with, (workload, other)
                    )
                rates = (
                    f"{found['other_examples_per_s']:>12,}{found['optimized_examples_per_s']:>12,}"
                )
                print(
                    f"{workload.name:<15}{other:<20}{rates}{found['ratio']:>7.2f}×"
                    f" ({found['from_to'][0]:.2f} to {found['from_to'][1]:.2f})",
                    flush=True,
                )
    write_results(options.json, results)


if __name__ == "__main__":
    main()
