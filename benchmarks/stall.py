"""Is the stall that a profile reports the true one?

    python -m benchmarks.stall --json FILE
    python -m benchmarks.stall --real --photos DIR --json FILE

The first: inputs and models that sleep, so that their stall follows from their construction (a
queue of that capacity, by simulation) and no core is used; what Keras adds to a sleeping step is
timed before there is an input. The second: real inputs and real models on real cores, each against
long reference runs before and after it, with and without another program that eats a core.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results

EXAMPLES, BATCH = 20_000, 8
STEP_ALONE_S = 1.5  # of a sleeping model, to learn what a step takes beyond its sleep
WARM_UP_STEPS = 5
SIMULATED_STEPS, LEARNED_STEPS = 40_000, 1_000
REFERENCE_S, SETTLE_S = 6.0, 2.0
THRESHOLDS_PCT, CLEAR_PCT = (5.0, 20.0), 5.0


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """Input and model that sleep [ms per batch], each uniformly ± its spread, with this
    configuration between them.
    """

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
        """As params.yaml would have it."""
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
        """What is special about it."""
        parts = [f"{self.input_ms:g} ms in, {self.model_ms:g} ms model, prefetch {self.prefetch}"]
        parts += [f"{self.calls} calls"] if self.calls > 1 else []
        parts += [f"input ±{100 * self.input_spread:.0f} %"] if self.input_spread else []
        parts += [f"model ±{100 * self.model_spread:.0f} %"] if self.model_spread else []
        parts += ["cached"] if self.cached else []
        parts += [f"{self.workers} service workers"] if self.workers else []
        return ", ".join(parts)

    @property
    def stall_pct(self) -> float:
        """1 − model ÷ step in the steady state, of a queue with `calls` servers whose results come
        in order.
        """
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
            # A batch starts when a server is free and there is room for it; without prefetch when
            # it is asked for.
            started_at = max(free, taken[number % len(taken)] if ahead else now)
            ready = started_at + self.input_ms * (1 + self.input_spread * draw.uniform(-1, 1))
            heapq.heappush(done, ready)
            now = max(now, ready)
            taken[number % len(taken)] = now
            step = self.model_ms * (1 + self.model_spread * draw.uniform(-1, 1))
            now, model_s = now + step, model_s + step
        return 100 * (1 - model_s / (now - (started or 0.0)))


def sleeping_cases() -> list[Sleeping]:
    """At least sixty: constant and variable, from 1 to 200 ms, across prefetch, parallel calls,
    cache and service.
    """
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


def sleeping_workload(work: Path) -> data.Workload:
    """Small gray images; the input's time is all sleep."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "sleeping.npz"
    if not file.exists():
        images = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 4, 4), np.uint8)
        np.savez(file, x=images, y=np.arange(EXAMPLES) % 4)
    document = {
        "data": {"source": "arrays", "path": str(file), "duplicates": "keep"},
        "preprocess": ["decode"],
        "postprocess": ["rescale"],
        "batch_size": BATCH,
        "pipelines": {"naive": {"read": "shards"}},
    }
    return data.prepare("sleeping", document, work)


def measure_sleeping(workload: data.Workload, cases: list[Sleeping]) -> Iterator[dict[str, Any]]:
    """Profile each case as the profile stage does; yields what was measured and what is true."""
    for case in cases:
        model = {
            "name": "emulated",
            "options": {"step_ms": case.model_ms, "spread": case.model_spread},
        }
        sleep = {"benchmarks.sleeping:Sleep": {"ms": case.input_ms, "spread": case.input_spread}}
        late = {"augment": []} if case.cached else {"augment": [sleep]}
        state, (step_ms, *_) = measured(
            {**workload.document, **late, "model": model, "pipelines": {"p": case.config}}, workload
        )
        truth = replace(case, model_ms=step_ms).stall_pct
        yield {
            **asdict(case),
            "name": case.name,
            "step_ms": round(step_ms, 2),
            "true_pct": round(truth, 1),
            "stall_pct": round(state.stall_pct, 1),
            "interval_pct": [round(end, 1) for end in state.stall_interval_pct],
            "side": state.side,
            "seconds": round(state.seconds, 1),
            "error": round(abs(state.stall_pct - truth), 1),
            "wrong_side": wrong_side(state.stall_pct, truth),
        }


def measured(document: dict[str, Any], workload: data.Workload) -> tuple[Any, tuple[float, ...]]:
    """The steady state of a document's only configuration, and what it is compared with.

    That is the time of an emulated model's step alone [ms], or the stalls of two long runs of a
    real model, before and after [%].
    """
    from throughline.assembly.inputs import open_input_pipeline, open_input_service, open_inputs
    from throughline.assembly.model import build_models_for
    from throughline.config.params import check
    from throughline.measurement.train_steps import (
        TrainingLoop,
        make_model_only_step,
        time_training,
        wait_until_idle,
    )

    params = check(document)
    data = open_inputs(params, workload.layout)
    with open_input_service(params.pipelines["p"]) as address:
        pipeline = open_input_pipeline(
            params, "p", data, split="train", purpose="train", address=address
        )
        models = build_models_for(params, data)
        loop = TrainingLoop(models, pipeline, params.train)
        model = make_model_only_step(models, pipeline, params.train, loop.ahead)

        def reference() -> float:
            """The stall of a long run: the model while the input rests, then training once what lay
            prepared is used up.
            """
            wait_until_idle()
            alone = run_for(model, REFERENCE_S / 2)
            run_for(loop.step, SETTLE_S)
            return 100 * (1 - alone / run_for(loop.step, REFERENCE_S))

        if params.model.name == "emulated":
            # Of as many variable steps the mean would be off by several percent.
            steady = {**params.model.options, "spread": 0.0}
            fixed = replace(params, model=params.model.model_copy(update={"options": steady}))
            model = make_model_only_step(
                build_models_for(fixed, data), pipeline, params.train, loop.ahead
            )
            run_for(model, STEP_ALONE_S)  # it becomes quicker during its first second
            alone = run_for(model, STEP_ALONE_S)
            return time_training(
                loop, models, pipeline, train=params.train, measure=params.measure
            ), (alone,)
        loop.start()
        before = reference()
        state = time_training(loop, models, pipeline, train=params.train, measure=params.measure)
        return state, (before, reference())


def run_for(step: Any, seconds: float) -> float:
    """Mean time of a step [ms] over so long, after the first, which trace the graph."""
    for _ in range(WARM_UP_STEPS):
        step()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        step()
        steps += 1
    return (time.perf_counter() - started) * 1e3 / steps


def wrong_side(measured_pct: float, true_pct: float) -> bool:
    """Whether the two are on different sides of a threshold that the truth is clearly away from."""
    return any(
        (measured_pct < each) != (true_pct < each)
        for each in THRESHOLDS_PCT
        if abs(true_pct - each) > CLEAR_PCT
    )


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


def measure_real(workload: data.Workload, name: str, eater: bool) -> dict[str, Any]:
    """One real configuration against its reference runs; with `eater` another program eats a core
    meanwhile.
    """
    from throughline.shared.allocator import raise_malloc_thresholds

    raise_malloc_thresholds()
    document = {
        **workload.document,
        "augment": ["flip"],
        "model": {"name": "small_cnn"},
        "pipelines": {"p": REAL[name]},
    }
    with eaten_core() if eater else _nothing():
        state, references = measured(document, workload)
    low, high = state.stall_interval_pct
    return {
        "data": workload.name,
        "name": name,
        "eater": eater,
        "reference_pct": [round(each, 1) for each in references],
        "stall_pct": round(state.stall_pct, 1),
        "interval_pct": [round(low, 1), round(high, 1)],
        "side": state.side,
        "holds": low <= max(references) and high >= min(references),
    }


@contextmanager
def eaten_core() -> Iterator[None]:
    """Another process that computes without end."""
    process = multiprocessing.get_context("spawn").Process(target=_compute, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _compute() -> None:
    while True:
        sum(range(10_000))


def main() -> None:
    """Measure all cases, print a line each and the figures that count, write everything as JSON."""
    parser: argparse.ArgumentParser = data_command_line("stall", __doc__)
    parser.add_argument(
        "--real", action="store_true", help="real inputs and models on real cores instead"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains this")
    options = parser.parse_args()
    with open_work(options.work) as work:
        results = list(_real(options, work) if options.real else _sleeping(options, work))
    write_results(options.json, results)


def _sleeping(options: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    cases = [case for case in sleeping_cases() if options.only in case.name]
    print(f"{'case':<64}{'true':>7}{'stall':>7}{'interval':>16}  {'side':<10}{'s':>6}")
    results = []
    for result in measure_sleeping(sleeping_workload(work), cases):
        results.append(result)
        span = "{:.1f} to {:.1f}".format(*result["interval_pct"])
        flag = "  WRONG SIDE" if result["wrong_side"] else ""
        print(
            f"{result['name']:<64}{result['true_pct']:>7}{result['stall_pct']:>7}{span:>16} "
            f" {result['side']:<10}{result['seconds']:>6}{flag}",
            flush=True,
        )
        yield result
    errors = [result["error"] for result in results]
    undecided = sum(result["side"] == "undecided" for result in results)
    print(
        f"{len(results)} cases: error median {statistics.median(errors):.1f}, worst"
        f" {max(errors):.1f} points; undecided {undecided}"
    )
    print(f"on the wrong side of a threshold: {sum(result['wrong_side'] for result in results)}")


def _real(options: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    workloads = [data.fashion_mnist(work)]
    if options.photos:
        workloads.append(data.photos(options.photos, work))
    else:
        print("photos: left out, since --photos DIR is not given")
    print(
        f"{'data':<15}{'configuration':<16}{'core eaten':<12}"
        f"{'reference before, after':>26}{'stall':>8}{'interval':>16}"
    )
    results = []
    for workload in workloads:
        for name in REAL:
            for eater in (False, True):
                if options.only not in name:
                    continue
                spawn = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(1, mp_context=spawn) as process:
                    result = process.submit(measure_real, workload, name, eater).result()
                results.append(result)
                reference, span = (
                    " to ".join(f"{end:.1f}" for end in result[key])
                    for key in ("reference_pct", "interval_pct")
                )
                miss = "" if result["holds"] else "  OUTSIDE"
                print(
                    f"{workload.name:<15}{name:<16}{'yes' if eater else 'no':<12}{reference:>26}"
                    f"{result['stall_pct']:>8}{span:>16}{miss}",
                    flush=True,
                )
                yield result
    print(
        f"reference within the interval: {sum(result['holds'] for result in results)} of"
        f" {len(results)}"
    )


if __name__ == "__main__":
    main()
