"""Is the change that fixes a planted fault named first, and what does it gain?

    python -m benchmarks.diagnosis --photos DIR --json FILE

Each case is a configuration with a known fault. Those of a dataset are built, trained and profiled
by the stages, and race with what the rules propose. A fault counts as named if the change with the
largest gain is one that fixes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from benchmarks.tuning import run
from throughline.results.race import RaceResult
from throughline.shared.layout import Layout

MAPPED = {"read": "snapshot", "shuffle": {"kind": "global"}}
HEALTHY = "none"
SECONDS = 180.0  # length of a race


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted fault: the configuration, and the rules that fix it."""

    config: dict[str, Any]
    mended_by: tuple[str, ...]


MODEL = {"name": "mlp", "options": {"width": 64}}
DECODED_AGAIN = ("repeated_work", "no_cache")
FASHION_MNIST = {
    "single_calls": Case(
        config={"read": "shards", "prefetch": 2},
        mended_by=("costly_calls", "repeated_work"),
    ),
    "parallel_cheap_map": Case(
        config={"read": "shards", "map": {"parallel": "cores"}, "prefetch": 2},
        mended_by=("costly_calls", "repeated_work"),
    ),
    "no_prefetch": Case(
        config={"read": "shards", "vectorize": True},
        mended_by=("no_prefetch", "repeated_work"),
    ),
    "single_calls_after_cache": Case(
        config={"read": "shards", "cache": {"where": "memory"}, "prefetch": 2},
        mended_by=("costly_calls", "repeated_work"),
    ),
    "snapshot_without_prefetch": Case(
        config=MAPPED,
        mended_by=("no_prefetch", "sequential_map"),
    ),
    "healthy": Case(
        config={**MAPPED, "map": {"parallel": "cores"}, "prefetch": 2},
        mended_by=(HEALTHY,),
    ),
}
PHOTOS = {
    "everything_again": Case(config={"read": "shards"}, mended_by=DECODED_AGAIN),
    "decodes_again": Case(
        config={
            "read": "shards",
            "interleave": {"parallel": "cores"},
            "map": {"parallel": "cores"},
            "prefetch": 2,
        },
        mended_by=DECODED_AGAIN,
    ),
    "files_again": Case(config={"read": "files", "prefetch": 2}, mended_by=DECODED_AGAIN),
    "snapshot_without_prefetch": Case(
        config=MAPPED,
        mended_by=("no_prefetch", "sequential_map", "host_widening"),
    ),
    "widened_on_host": Case(
        config={**MAPPED, "prefetch": 2},
        mended_by=("host_widening", "sequential_map"),
    ),
    "healthy": Case(
        config={**MAPPED, "map": {"parallel": "cores"}, "prefetch": 2, "postprocess_on": "device"},
        mended_by=(HEALTHY,),
    ),
}


def examine(workload: data.Workload, cases: Mapping[str, Case]) -> Iterator[dict[str, Any]]:
    """Race all cases with what the rules propose; yield the first finding of each."""
    root = workload.layout.root
    document = {
        **workload.document,
        "augment": ["flip"],
        "model": MODEL,
        "train": {"epochs": 2},
        "measure": {"seconds": SECONDS},
        "pipelines": {name: case.config for name, case in cases.items()},
    }
    with (root / "params.yaml").open("w") as file:
        YAML(typ="safe").dump(document, file)
    for name in cases:
        for stage in ("build", "train", "profiling"):
            run(root, f"tasks.{stage}", f"--pipeline={name}")
    run(root, "tasks.race")
    for name, raced in RaceResult.read(Layout(root).race).configurations.items():
        first = raced.findings[0] if raced.gain else None
        named = first.rule if first else HEALTHY
        yield {
            "data": workload.name,
            "fault": name,
            "named": named,
            "right": named in cases[name].mended_by,
            "verdict": raced.verdict,
            "fix": raced.fix,
            "gain": vars(first.gain) if first and first.gain else None,
        }


def main() -> None:
    options = data_command_line("diagnosis", __doc__).parse_args()
    with open_work(options.work) as work:
        examined = [(data.fashion_mnist(work.absolute()), FASHION_MNIST)]
        if options.photos:
            examined.append((data.photos(options.photos, work.absolute()), PHOTOS))
        else:
            print("photos: left out, since --photos DIR is not given")
        results = []
        print(f"{'data':<15}{'planted fault':<27}{'named first':<20}{'right':<7}gain")
        for found in (found for each in examined for found in examine(*each)):
            results.append(found)
            gain = found["gain"]
            span = "{value:.2f}× ({low:.2f} to {high:.2f})".format(**gain) if gain else ""
            right = "yes" if found["right"] else "no"
            print(
                f"{found['data']:<15}{found['fault']:<27}{found['named']:<20}{right:<7}{span}",
                flush=True,
            )
    print(f"named first: {sum(found['right'] for found in results)} of {len(results)}")
    write_results(options.json, results)


if __name__ == "__main__":
    main()
