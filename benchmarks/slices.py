"""Does each of two processes measure the model on its slice as a single one does with half the
batch?

    python -m benchmarks.slices --work DIR [--repeats 5]

Two processes, each on a core of its own, profile a configuration together; then a single one, on
one core, with half the batch. With an emulated accelerator, whose step takes its time whatever else
runs, and with a small network on the cores.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.storm import NAME, SMALL, Trainings, open_trainings, write_params
from throughline.plan.training_workers import make_tf_config
from throughline.results.profiling import ProfileResult
from throughline.training.processes import reserve_addresses

BATCH = 32
MODELS: dict[str, dict[str, Any]] = {
    "emulated": {"name": "emulated", "options": {"step_ms": 20.0}},
    "mlp": {"name": "mlp", "options": {"width": 2048}},
}


def profile(
    trainings: Trainings, model: dict[str, Any], *, processes: int, batch: int
) -> ProfileResult:
    """Build, train and profile with so many processes, each on a core of its own."""
    params = copy.deepcopy(SMALL)
    params["batch_size"], params["model"] = batch, model
    params["train"] |= {"processes": processes, "batch_multiple": processes}
    params["measure"] |= {"rounds": 8, "stall_max_seconds": 20}
    write_params(trainings.folder, params)
    cores = sorted(os.sched_getaffinity(0))
    for stage in ("build", "train", "profiling"):
        with reserve_addresses(processes) as addresses:
            running = [
                subprocess.Popen(
                    [
                        *("taskset", "--cpu-list", str(cores[index % len(cores)])),
                        *(sys.executable, "-m", f"tasks.{stage}", "--pipeline", NAME),
                    ],
                    cwd=trainings.folder,
                    env={**trainings.environment, "TF_CONFIG": make_tf_config(addresses, index)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for index in range(processes)
            ]
            codes = [one.wait() for one in running]
        if any(codes):
            raise RuntimeError(f"{stage} failed")
    return ProfileResult.read(trainings.folder / "runs" / NAME)


def main() -> None:
    """Measure in alternation, and print the rates of the model alone with their ratios."""
    parser = command_line("slices", __doc__, results=False)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with open_trainings(options.work.absolute(), served=False) as trainings:
        for name, model in MODELS.items():
            ratios = []
            for _ in range(options.repeats):
                both = profile(trainings, model, processes=2, batch=BATCH)
                alone = profile(trainings, model, processes=1, batch=BATCH // 2)
                rates = [one.model_examples_per_s for one in both.processes]
                single = alone.model_examples_per_s
                ratios += [rate / single for rate in rates]
                print(json.dumps({"model": name, "each": rates, "alone": single}), flush=True)
            low, high = min(ratios), max(ratios)
            print(f"{name}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
