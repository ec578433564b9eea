"""Is the stall that a race reports correct?

    python -m benchmarks.stall [--beside]

Inputs and models sleep, so the true stall can be computed by simulating a queue; what they take
beyond their sleep is measured once. With `--beside`, another program takes a core half of the time.
"""

import heapq
import random
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.command_line import add_choice, command_line, run_cases
from benchmarks.racing import half_a_core, long_rate, race
from throughline.race.contestant import MODEL_ALONE, TRAINING
from whowaits.timing.verdict import UNDECIDED, decide

BATCH, STEP_MS = 8, 10.0
SIMULATED_STEPS, LEARNED_STEPS = 40_000, 1_000
CLEAR_PCT = 2.0  # points; a truth this near to a threshold may get either verdict


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """Input and model that sleep [ms per batch], varied uniformly by ± `spread` of it."""

    input_ms: float
    model_ms: float
    prefetch: int | str = "none"
    calls: int = 1
    spread: float = 0.0
    workers: int = 0

    @property
    def name(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in vars(self).items() if value)

    @property
    def changes(self) -> dict[str, Any]:
        """The sections of params.yaml that make this training; each case draws other times."""
        drawn = {"spread": self.spread, "seed": zlib.crc32(self.name.encode()) % 1000}
        sleep = {"benchmarks.sleeping:Sleep": {"ms": self.input_ms, **drawn}}
        step = {"step_ms": self.model_ms, **drawn}
        config: dict[str, Any] = {"read": "snapshot", "shuffle": {"kind": "global"}}
        if self.workers:
            config = {"read": "shards", "vectorize": True, "shuffle": {"kind": "none"}}
            config["service"] = {"workers": self.workers, "sharding": "dynamic"}
        if self.calls > 1:
            config["map"] = {"parallel": self.calls}
        return {
            "batch_size": BATCH,
            "augment": [sleep],
            "model": {"name": "emulated", "options": step},
            "pipelines": {"p": {**config, "prefetch": self.prefetch}},
        }

    @property
    def stall_pct(self) -> float:
        """The stall in a steady queue with a server per call or worker, and results in order."""
        servers = max(self.calls, self.workers)
        ahead = {"none": 0, "auto": 8}.get(str(self.prefetch), self.prefetch)
        ahead = int(ahead) + (servers if servers > 1 else 0)
        draw = random.Random(0)
        taken, free, now, model_s, started = [0.0] * (ahead + 1), [0.0] * servers, 0.0, 0.0, 0.0
        for number in range(SIMULATED_STEPS):
            if number == LEARNED_STEPS:
                started, model_s = now, 0.0
            # Starts once a server is free and there is room, or, without prefetch, once asked for.
            room = taken[number % len(taken)] if ahead else now
            begun = max(heapq.heappop(free), room)
            ready = begun + self.input_ms * (1 + self.spread * draw.uniform(-1, 1))
            heapq.heappush(free, ready)
            now = max(now, ready)
            taken[number % len(taken)] = now
            step = self.model_ms * (1 + self.spread * draw.uniform(-1, 1))
            now, model_s = now + step, model_s + step
        return 100 * (1 - model_s / (now - started))


def sleep(input_ms: float, *models_ms: float, by: Sequence[int | str] = (2,), **more: Any) -> Any:
    return [
        Sleeping(input_ms=input_ms, model_ms=model_ms, prefetch=prefetch, **more)
        for model_ms in models_ms
        for prefetch in by
    ]


# From 1 to 200 ms: prefetch, parallel calls, times that vary, and a service.
SLEEPING: list[Sleeping] = [
    *sleep(30, 1, 15, 24, 27, by=("none", 2, 64, "auto")),
    *sleep(10, 9, by=("none", 2, 64, "auto")),
    *sleep(20, 40, by=("none", 2)),
    *sleep(200, 100),
    *sleep(60, 10, 40, by=("none", 2), calls=4),
    *sleep(60, 20, by=("none", 2), calls=2),
    *sleep(30, 15, 22, by=("none", 2, 8), spread=0.5),
    *sleep(40, 5, 12, 50, workers=2),
]


def find_truths(root: Path) -> dict[str, float]:
    """Return the true stall of each case; input and model take a little more than their sleep."""

    def beyond_ms(job: str, order: str, prefetch: int | str) -> float:
        case = Sleeping(input_ms=STEP_MS, model_ms=STEP_MS, prefetch=prefetch)
        rate = long_rate(job, data.read_params(root, **case.changes), root, order=order)
        return 1e3 * BATCH / rate - STEP_MS

    model_ms = beyond_ms(MODEL_ALONE, "train", "none")
    input_ms = {prefetch: beyond_ms(TRAINING, "pull", prefetch) for prefetch in ("none", 2)}
    print(f"beyond sleep, a step takes {model_ms:.2f} ms, and a batch, by prefetch, {input_ms} ms")
    truths = {}
    for case in SLEEPING:
        more_ms = case.input_ms + input_ms["none" if case.prefetch == "none" else 2]
        longer = replace(case, input_ms=more_ms, model_ms=case.model_ms + model_ms)
        truths[case.name] = longer.stall_pct
    return truths


def main() -> None:
    parser = command_line("stall", __doc__)
    add_choice(parser)
    parser.add_argument(
        "--beside", action="store_true", help="beside a program that takes a core half of the time"
    )
    options = parser.parse_args()
    cases, root = {case.name: case for case in SLEEPING}, data.small(options.work)
    truths = find_truths(root)

    def run(name: str) -> dict[str, Any]:
        with half_a_core(taken=options.beside):
            raced = race(data.read_params(root, **cases[name].changes), root).configurations["p"]
        near = (truths[name] - CLEAR_PCT, truths[name], truths[name] + CLEAR_PCT)
        right = {UNDECIDED, *(decide(each, on_accelerator=True) for each in near)}
        return {
            "true_pct": truths[name],
            "stall_pct": raced.stall_pct,
            "interval": (raced.stall_pct_low, raced.stall_pct_high),
            "verdict": raced.verdict,
            "wrong": raced.verdict not in right,
        }

    path = options.work / f"stall{'-beside' * options.beside}.jsonl"
    results = run_cases(path, [name for name in cases if options.only in name], run)
    errors = [abs(result["stall_pct"] - result["true_pct"]) for result in results]
    print(
        f"{len(results)} cases: error median {statistics.median(errors):.1f}, worst"
        f" {max(errors):.1f} points; {sum(each['wrong'] for each in results)} wrong;"
        f" {sum(each['verdict'] == UNDECIDED for each in results)} undecided"
    )


if __name__ == "__main__":
    main()
