"""Does the diagnosis name planted faults, and does its fix gain what it predicts?

    python -m benchmarks.diagnosis --photos DIR --json FILE

Each case is a configuration with a known fault. It is profiled as the profile stage does it; then
the first finding's change is made and both are trained in alternation, step by step in one process,
so that the machine's drift hits both alike. A fault counts as named if the first finding's rule is
one of those that mend it. Every case has a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results

ROUNDS, TURN_S = 9, 0.25
MAPPED = {"read": "snapshot", "shuffle": {"kind": "global"}}
STREAMED = {"read": "shards", "interleave": {"parallel": "cores"}}
HEALTHY = "none"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted fault: the configuration, the rules that mend it, and the model's cost in options
    of `mlp` or `small_cnn`.
    """

    name: str
    config: dict[str, Any]
    mended_by: tuple[str, ...]
    model: dict[str, Any]


SMALL, LARGE = {"name": "mlp", "options": {"width": 64}}, {"name": "small_cnn"}
FASHION_MNIST = (
    Case(
        name="calls for single examples",
        config={"read": "shards", "prefetch": 2},
        mended_by=("costly_calls",),
        model=LARGE,
    ),
    Case(
        name="a parallel map of cheap functions",
        config={"read": "shards", "map": {"parallel": "cores"}, "prefetch": 2},
        mended_by=("costly_calls",),
        model=LARGE,
    ),
    Case(
        name="no prefetch",
        config={"read": "shards", "vectorize": True},
        mended_by=("no_prefetch",),
        model=LARGE,
    ),
    Case(
        name="single examples behind a cache",
        config={"read": "shards", "cache": {"where": "memory"}, "prefetch": 2},
        mended_by=("costly_calls",),
        model=LARGE,
    ),
    Case(
        name="a snapshot without prefetch",
        config=MAPPED,
        mended_by=("no_prefetch", "sequential_map"),
        model=SMALL,
    ),
    Case(
        name="healthy",
        config={**MAPPED, "map": {"parallel": "cores"}, "prefetch": 2},
        mended_by=(HEALTHY,),
        model=LARGE,
    ),
)
PHOTOS = (
    Case(
        name="everything anew, one after another",
        config={"read": "shards"},
        mended_by=("repeated_work", "no_cache"),
        model=LARGE,
    ),
    Case(
        name="every epoch decodes again",
        config={**STREAMED, "map": {"parallel": "cores"}, "prefetch": 2},
        mended_by=("repeated_work", "no_cache"),
        model=LARGE,
    ),
    Case(
        name="files, decoded again",
        config={"read": "files", "prefetch": 2},
        mended_by=("repeated_work", "no_cache"),
        model=SMALL,
    ),
    Case(
        name="a snapshot without prefetch",
        config=MAPPED,
        mended_by=("no_prefetch", "sequential_map", "host_widening"),
        model=LARGE,
    ),
    Case(
        name="widened on the host, one call at a time",
        config={**MAPPED, "prefetch": 2},
        mended_by=("host_widening", "sequential_map"),
        model=LARGE,
    ),
    Case(
        name="healthy",
        config={**MAPPED, "map": {"parallel": "cores"}, "prefetch": 2, "postprocess_on": "device"},
        mended_by=(HEALTHY,),
        model=LARGE,
    ),
)


def examine(workload: data.Workload, case: Case) -> dict[str, Any]:
    """Profile a case, fix what it names first, and train both in alternation."""
    from tasks.profiling import profile
    from throughline.assembly.inputs import open_input_pipeline, open_inputs
    from throughline.assembly.model import build_models_for
    from throughline.config.cli import StageContext
    from throughline.config.params import check
    from throughline.measurement.hardware import UsageMonitor
    from throughline.measurement.throughput import measure_input
    from throughline.measurement.train_steps import TrainingLoop
    from throughline.results.build import BuildResult
    from throughline.shared.allocator import raise_malloc_thresholds

    document = {
        **workload.document,
        "model": case.model,
        "augment": ["flip"],
        "measure": {"input_max_seconds": 2},
        "pipelines": {"faulty": case.config},
    }
    raise_malloc_thresholds()
    params = check(document)
    opened = open_inputs(params, workload.layout)
    pipeline = open_input_pipeline(params, "faulty", opened, split="train", purpose="train")
    with UsageMonitor() as monitor:
        alone = measure_input(pipeline, passes=2, max_seconds=1)
    built = BuildResult(
        plan=str(pipeline.plan),
        throughput=alone,
        examples_digests={},
        usage=monitor.measured,
        machine={},
        validation_examples=0,
    )
    context = StageContext(params=params, name="faulty", options=argparse.Namespace())
    with tempfile.TemporaryDirectory() as folder:
        found = profile(context, pipeline, Path(folder) / "profile", built=built)
    diagnosis = found.diagnosis
    bound = diagnosis.verdict != "compute-bound"
    first = next(
        (finding for finding in diagnosis.findings if bound and (finding.predicted_gain or 0) > 1),
        None,
    )
    result = {
        "verdict": diagnosis.verdict,
        "named": first.rule if first else HEALTHY,
        "stall_pct": round(diagnosis.stall_pct, 1),
    }
    if first is None:
        return result
    repaired = check(
        {
            **document,
            "pipelines": {
                "repaired": (
                    case.config
                    | {key.split(".", 2)[2]: value for key, value in first.change.items()}
                )
            },
        }
    )
    after = open_input_pipeline(repaired, "repaired", opened, split="train", purpose="train")
    loops = [
        TrainingLoop(build_models_for(given, opened), fed, given.train)
        for given, fed in ((params, pipeline), (repaired, after))
    ]
    for loop in loops:
        loop.start()
    steps = [loop.step for loop in loops]
    gains = [
        slow / quick
        for slow, quick in zip(*data.alternate(steps, rounds=ROUNDS, seconds=TURN_S), strict=True)
    ]
    predicted, measured = first.predicted_gain or 1.0, statistics.median(gains)
    return result | {
        "fix": first.fix,
        "confidence": first.confidence,
        "predicted_gain": round(predicted, 3),
        "measured_gain": round(measured, 3),
        "error_pct": round(100 * abs(predicted / measured - 1), 1),
    }


def main() -> None:
    """Examine all cases, print the table and the two figures that count, write all as JSON."""
    options = data_command_line("diagnosis", __doc__).parse_args()
    with open_work(options.work) as work:
        cases = [(data.fashion_mnist(work), case) for case in FASHION_MNIST]
        if options.photos:
            workload = data.photos(options.photos, work)
            cases += [(workload, case) for case in PHOTOS]
        else:
            print("photos: left out, since --photos DIR is not given")
        results = []
        print(
            f"{'data':<15}{'planted fault':<42}{'named first':<20}"
            f"{'right':>6}{'predicted':>11}{'measured':>10}{'error':>8}"
        )
        for workload, case in cases:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(examine, (workload, case))
            right = found["named"] in case.mended_by
            results.append({"data": workload.name, "fault": case.name, "right": right, **found})
            figures = (
                f"{found['predicted_gain']:>10.2f}×{found['measured_gain']:>9.2f}×{found['error_pct']:>7.0f}%"
                if "fix" in found
                else ""
            )
            print(
                f"{workload.name:<15}{case.name:<42}{found['named']:<20}"
                f"{'yes' if right else 'no':>6}{figures}",
                flush=True,
            )
    named, errors = (
        [found["right"] for found in results],
        [found["error_pct"] for found in results if "error_pct" in found],
    )
    print(
        f"named first: {sum(named)} of {len(named)}; median error of the predicted gain:"
        f" {statistics.median(errors):.0f} %"
    )
    write_results(options.json, results)


if __name__ == "__main__":
    main()
