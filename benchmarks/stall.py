"""Is the stall that a race reports the true one?

    python -m benchmarks.stall --json FILE [--beside]
    python -m benchmarks.stall --real --json FILE [--beside]

The first uses inputs and models that sleep, so that no core is used and the stall follows from
their construction (a simulated queue); what they take beyond their sleep is timed once. The second
uses real inputs and models on real cores, and compares with long runs before and after each race.
With `--beside` another program takes a core half of the time.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from benchmarks.racing import half_a_core, long_rate, race
from throughline.race.contestant import MODEL_ALONE, TRAINING
from throughline.results.race import Raced
from whowaits.timing.verdict import UNDECIDED, decide

BATCH, STEP_MS = 8, 10.0
SIMULATED_STEPS, LEARNED_STEPS = 40_000, 1_000
CLEAR_PCT = 2.0  # points; a truth this near to a threshold may get either verdict


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """Input and model that sleep [ms per batch], each uniformly ± its spread."""

    input_ms: float
    model_ms: float
    prefetch: int | str = "none"
    calls: int = 1
    input_spread: float = 0.0
    model_spread: float = 0.0
    cached: bool = False
    workers: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, as in params.yaml."""
        calls = {"map": {"parallel": self.calls}} if self.calls > 1 else {}
        if self.workers:
            service = {"workers": self.workers, "sharding": "dynamic"}
            return {
                "read": "shards",
                "vectorize": True,
                "shuffle": {"kind": "none"},
                "service": service,
                "prefetch": self.prefetch,
                **calls,
            }
        if self.cached:
            return {
                "read": "shards",
                "cache": {"where": "memory"},
                "shuffle": {"kind": "none"},
                "prefetch": self.prefetch,
                **calls,
            }
        return {
            "read": "snapshot",
            "shuffle": {"kind": "global"},
            "prefetch": self.prefetch,
            **calls,
        }

    @property
    def name(self) -> str:
        parts = [f"{self.input_ms:g} ms in, {self.model_ms:g} ms model, prefetch {self.prefetch}"]
        parts += [f"{self.calls} calls"] if self.calls > 1 else []
        parts += [f"input ±{100 * self.input_spread:.0f} %"] if self.input_spread else []
        parts += [f"model ±{100 * self.model_spread:.0f} %"] if self.model_spread else []
        parts += ["cached"] if self.cached else []
        parts += [f"{self.workers} service workers"] if self.workers else []
        return ", ".join(parts)

    @property
    def stall_pct(self) -> float:
        """Stall in the steady state of a queue with `calls` servers and results in order."""
        if self.cached:
            return 0.0
        servers = max(self.calls, self.workers)
        waiting = {"none": 0, "auto": 8}.get(str(self.prefetch))
        ahead = int(self.prefetch) if waiting is None else waiting
        ahead += servers if servers > 1 else 0
        draw = random.Random(0)
        taken, done, now, model_s = [0.0] * (ahead + 1), [0.0] * servers, 0.0, 0.0
        started = None
        for number in range(SIMULATED_STEPS):
            if number == LEARNED_STEPS:
                started, model_s = now, 0.0
            free = heapq.heappop(done) if servers > 1 else done.pop()
            # A batch starts once a server is free and there is room; without prefetch, once it is
            # asked for.
            started_at = max(free, taken[number % len(taken)] if ahead else now)
            ready = started_at + self.input_ms * (1 + self.input_spread * draw.uniform(-1, 1))
            heapq.heappush(done, ready)
            now = max(now, ready)
            taken[number % len(taken)] = now
            step = self.model_ms * (1 + self.model_spread * draw.uniform(-1, 1))
            now, model_s = now + step, model_s + step
        return 100 * (1 - model_s / (now - (started or 0.0)))


def sleeping_cases() -> list[Sleeping]:
    """Return sixty cases or more, from 1 to 200 ms: prefetch, parallel calls, cache, service."""
    constant = [
        Sleeping(input_ms=input_ms, model_ms=model_ms, prefetch=prefetch)
        for input_ms, model_ms in (
            (30, 1),
            (30, 15),
            (30, 24),
            (30, 27),
            (20, 40),
            (10, 9),
            (5, 20),
        )
        for prefetch in ("none", 2, 8, 64, "auto")
    ]
    slow = [
        Sleeping(input_ms=input_ms, model_ms=model_ms, prefetch=prefetch)
        for input_ms, model_ms in ((120, 60), (200, 100), (100, 200))
        for prefetch in (2, 8)
    ]
    parallel = [
        Sleeping(input_ms=60, model_ms=model_ms, prefetch=prefetch, calls=calls)
        for model_ms, calls in ((10, 4), (40, 4), (20, 2), (5, 8))
        for prefetch in ("none", 2, 8)
    ]
    variable = [
        Sleeping(
            input_ms=30,
            model_ms=model_ms,
            prefetch=prefetch,
            input_spread=spread,
            model_spread=jitter,
        )
        for model_ms, spread, jitter in ((15, 0.5, 0.0), (15, 0.0, 0.5), (22, 0.5, 0.5))
        for prefetch in ("none", 2, 8)
    ]
    cached = [
        Sleeping(input_ms=5, model_ms=20, prefetch=prefetch, cached=True) for prefetch in (2, 64)
    ]
    served = [
        Sleeping(input_ms=40, model_ms=model_ms, prefetch=2, workers=2) for model_ms in (5, 12, 50)
    ]
    return [*constant, *slow, *parallel, *variable, *cached, *served]


def measure_sleeping(
    workload: data.Workload, cases: Sequence[Sleeping], beside: bool
) -> Iterator[dict[str, Any]]:
    """Race each case against its model alone; yield the reported and the true stall."""
    root, document = workload.layout.root, workload.document
    beyond_model_ms, *beyond_input_ms = (
        1e3 * BATCH / long_rate(job, as_document(each, document), root, order=order) - STEP_MS
        for job, order, each in (
            (MODEL_ALONE, "train", Sleeping(input_ms=STEP_MS, model_ms=STEP_MS)),
            (TRAINING, "pull", Sleeping(input_ms=STEP_MS, model_ms=STEP_MS)),
            (TRAINING, "pull", Sleeping(input_ms=STEP_MS, model_ms=STEP_MS, prefetch=2)),
        )
    )
    batch_ms = " and ".join(f"{each:.2f}" for each in beyond_input_ms)
    print(
        f"beyond its sleep a step takes {beyond_model_ms:.2f} ms, a batch {batch_ms} (prefetched)"
    )
    for case in cases:
        with half_a_core(taken=beside):
            raced = race(as_document(case, document), root).configurations["p"]
        truth = replace(
            case,
            model_ms=case.model_ms + beyond_model_ms,
            input_ms=case.input_ms + beyond_input_ms[case.prefetch != "none"],
        ).stall_pct
        yield {
            **asdict(case),
            "name": case.name,
            "true": f"{truth:.1f}",
            **figures(raced),
            "error": abs(raced.stall_pct - truth),
            "miss": "WRONG" if is_wrong(raced.verdict, truth) else "",
        }


def as_document(case: Sleeping, document: Mapping[str, Any]) -> dict[str, Any]:
    sleep = {"benchmarks.sleeping:Sleep": {"ms": case.input_ms, "spread": case.input_spread}}
    options = {"step_ms": case.model_ms, "spread": case.model_spread}
    return {
        **document,
        "augment": [] if case.cached else [sleep],
        "model": {"name": "emulated", "options": options},
        "pipelines": {"p": case.config},
    }


def figures(raced: Raced) -> dict[str, Any]:
    return {
        "stall_pct": raced.stall_pct,
        "interval_pct": (raced.stall_pct_low, raced.stall_pct_high),
        "verdict": raced.verdict,
        "cause": raced.cause,
        "rounds": raced.training.rounds,
    }


def is_wrong(verdict: str, true_pct: float) -> bool:
    """Return whether a verdict fits no stall near the truth."""
    near = (true_pct - CLEAR_PCT, true_pct, true_pct + CLEAR_PCT)
    return verdict not in {UNDECIDED, *(decide(each, on_accelerator=True) for each in near)}


REAL = {
    "naive": {"read": "shards"},
    "prefetch_64": {"read": "shards", "prefetch": 64},
    "map_parallel": {"read": "shards", "map": {"parallel": "auto"}, "prefetch": "auto"},
    "vectorized": {"read": "shards", "vectorize": True, "prefetch": 8},
    "snapshot": {
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
    },
    "optimized": {
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
        "postprocess_on": "device",
    },
}


def measure_real(workload: data.Workload, beside: bool, only: str) -> Iterator[dict[str, Any]]:
    """Race real configurations, each between long runs of its training and of its model alone."""
    root = workload.layout.root
    for name, config in REAL.items():
        if only not in name:
            continue
        document = {
            **workload.document,
            "augment": ["flip"],
            "model": {"name": "small_cnn"},
            "pipelines": {"p": config},
        }
        with half_a_core(taken=beside):
            before = reference_pct(document, root)
            raced = race(document, root).configurations["p"]
            low, high = sorted((before, reference_pct(document, root)))
        holds = raced.stall_pct_low <= high and raced.stall_pct_high >= low
        yield {
            "name": f"{workload.name}: {name}",
            "true": f"{low:.1f} to {high:.1f}",
            **figures(raced),
            "error": max(0.0, low - raced.stall_pct, raced.stall_pct - high),
            "miss": "" if holds else "OUTSIDE",
        }


def reference_pct(document: Mapping[str, Any], root: Path) -> float:
    training, alone = (long_rate(job, document, root) for job in (TRAINING, MODEL_ALONE))
    return 100 * max(0.0, 1 - training / alone)


def main() -> None:
    parser = data_command_line("stall", __doc__)
    parser.add_argument(
        "--real", action="store_true", help="real inputs and models on real cores instead"
    )
    parser.add_argument(
        "--beside", action="store_true", help="beside a program that takes a core half of the time"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains this")
    options = parser.parse_args()
    results = []
    with open_work(options.work) as work:
        if options.real:
            workloads = [data.fashion_mnist(work)]
            if options.photos:
                workloads.append(data.photos(options.photos, work))
            else:
                print("photos: left out, since --photos DIR is not given")
            runs = [measure_real(each, options.beside, options.only) for each in workloads]
        else:
            cases = [case for case in sleeping_cases() if options.only in case.name]
            runs = [measure_sleeping(data.small(work, BATCH), cases, options.beside)]
        print(f"{'case':<64}{'true':>14}{'stall':>7}{'interval':>16}  verdict")
        for result in (each for run in runs for each in run):
            results.append(result)
            span = "{:.1f} to {:.1f}".format(*result["interval_pct"])
            print(
                f"{result['name']:<64}{result['true']:>14}{result['stall_pct']:>7.1f}{span:>16} "
                f" {result['verdict']} {result['miss']}",
                flush=True,
            )
    errors = [result["error"] for result in results]
    undecided = sum(result["verdict"] == UNDECIDED for result in results)
    missed = sum(bool(result["miss"]) for result in results)
    print(
        f"{len(results)} cases: error median {statistics.median(errors):.1f}, worst"
        f" {max(errors):.1f} points; {missed} {'outside' if options.real else 'wrong'};"
        f" {undecided} undecided ({undecided / len(results):.0%})"
    )
    write_results(options.json, results)


if __name__ == "__main__":
    main()
