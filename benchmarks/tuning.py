"""How good is the choice of a search? Its regret against the best of all plans, and against what
people choose without a search.

    python -m benchmarks.tuning --work DIR --results FILE [--photos DIR] [--pngs DIR] [--mails DIR]
                                [--case WORD]

A case is data with budgets. A search answers it as `python -m tasks.tune` does. Then all plans that
fit the budgets race for three rounds; the fastest three, the search's choice and the others'
choices race for fifteen more, in alternation. Regret is how many times as long the chosen training
takes as the fastest, less one, by the lower end of its interval.

The others are: `optimized` always, `heuristic`, `autotune`, the rules of two published tuners
restated in this space (Plumber: all cores, and a cache after the last op that fits; Cachew: the
fastest of a stream, its source kept, its results kept), and the best of as many random plans as the
search has raced. A choice that breaks a budget has lost.

Finished cases are kept in FILE, one JSON object a line, and not run again. Budgets of memory apply
to contestants, without the kernel's cache of data files, and not to the search as a whole.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from flows.run.changed_params import join_overlays
from flows.run.parameters import Changes
from flows.run.resolution import resolve
from throughline.assembly.inputs import open_inputs
from throughline.config.params import load_params
from throughline.config.params_file import read_yaml
from throughline.measurement.rounds import Race
from throughline.results.tuning import TuningResult
from throughline.shared.layout import Layout
from throughline.tuning.budgets import Budgets, find_limits, read_budgets
from throughline.tuning.journal import Journal
from throughline.tuning.pool import SearchPool
from throughline.tuning.question import Question
from throughline.tuning.search import Search
from throughline.tuning.space import CEILING
from throughline.tuning.survey import SnapshotBytes

ROOT = Path(__file__).parents[1]
OVERLAYS = {"photos": "photos", "crops": "imagenet", "pngs": "photos", "mails": "mails"}
ROUNDS, FINAL_ROUNDS, BEST = 3, 15, 3
RULES = ("optimized", "heuristic", "autotune")
PLUMBER = ("cache_memory cores host", "stream cores host")
CACHEW = ("autotune", "arrays auto host", "cache_memory auto host")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Data and budgets; None stands for what the machine has.

    `ram` is memory beyond that of `naive`, as a share of the decoded training split, and `disk` a
    share of the snapshot's bytes.
    """

    data: str
    epochs: int = 30
    ram: float | None = None
    disk: float | None = None


CASES = {
    "photos, ample": Case(data="photos"),
    "photos, little memory": Case(data="photos", ram=0.75),
    "photos, little disk": Case(data="photos", disk=0.3),
    "photos, one epoch": Case(data="photos", epochs=1),
    "crops, ample": Case(data="crops"),
    "crops, little memory": Case(data="crops", ram=0.75),
    "crops, little disk": Case(data="crops", disk=0.3),
    "Fashion-MNIST, ample": Case(data="fashion_mnist"),
    "Fashion-MNIST, little memory": Case(data="fashion_mnist", ram=0.75),
    "Fashion-MNIST, one epoch": Case(data="fashion_mnist", epochs=1),
    "PNGs": Case(data="pngs"),
    "mails": Case(data="mails"),
}


def main() -> None:
    """Run the cases that are not in the file of results yet, and print a table of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE")
    for name in ("photos", "pngs", "mails"):
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="class folders")
    parser.add_argument("--case", default="", metavar="WORD", help="cases with it in their name")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    results = {result["case"]: result for result in map(json.loads, lines)}
    for name, case in CASES.items():
        if options.case not in name or name in results:
            continue
        own = options.photos if case.data == "crops" else getattr(options, case.data, None)
        if own is None and case.data == "pngs":
            print(f"{name}: left out, without --pngs")
            continue
        results[name] = {"case": name, **judge(case, prepare(case.data, options.work, own))}
        with options.results.open("a") as file:
            file.write(json.dumps(results[name]) + "\n")
        print(row(results[name]), flush=True)
    print("\n".join(map(row, results.values())))
    print(summary(list(results.values())))


def prepare(data: str, work: Path, own: Path | None) -> Path:
    """Return a folder with this data prepared, from `own` class folders if given."""
    folder = work / data
    folder.mkdir(parents=True, exist_ok=True)
    name = OVERLAYS.get(data)
    overlays = [read_yaml(ROOT / "infra" / "demo" / f"{name}.yaml")] if name else []
    overlays += [{"data": {"fetch": "none", "path": str(own.resolve())}}] if own else []
    changes = Changes(overlay=reduce(join_overlays, overlays, {}))
    (folder / "params.yaml").write_text(resolve(ROOT, changes).text)
    for stage in ("fetch", "ingest", "shard", "snapshot"):
        if not (folder / "data" / "snapshot.json").exists():
            run(folder, f"tasks.{stage}")
    return folder


def run(folder: Path, module: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'whowaits' / 'src'}"},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def judge(case: Case, folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    budgets = find_budgets(case, folder)
    given = budgets.model_dump(exclude_defaults=True)
    run(folder, "tasks.tune", "--out=found", *(f"--{key}={value}" for key, value in given.items()))
    found = TuningResult.read(folder / "found")
    raced = [each.name for each in found.candidates if each.examples_per_s is not None]
    search = open_search(folder, budgets, "truth")
    race_all(search, found.chosen)
    rivals = [name for name in search.rivals if name != CEILING]
    best = sorted(rivals, key=lambda name: search.race.seconds(name).value)[:BEST]
    picks = choose_as_others(search, rivals, count=len(raced))
    broke = search.journal.pages.dropped.get(found.chosen, "")
    chosen = best[0] if broke else found.chosen
    finalists = list(dict.fromkeys([chosen, *best, *filter(None, picks.values())]))
    race_phase(search, "final", finalists, rounds=FINAL_ROUNDS)
    race = of_phase(search.race, "final")
    fastest = race.fastest(finalists)
    regret = race.ratio(chosen, fastest)
    return {
        "outcome": found.outcome,
        "chosen": found.chosen,
        "fastest": fastest,
        "regret_pct": math.inf if broke else 100 * max(0.0, regret.low - 1),
        "median_pct": math.inf if broke else 100 * (regret.value - 1),
        "searched_s": found.searched_s,
        "plans": len(rivals),
        "raced": len(raced),
        "broke": broke,
        "others": {
            who: None if name is None else vars(race.ratio(name, chosen)) | {"name": name}
            for who, name in picks.items()
        },
        "disturbed_by": race.disturbed_by(),
    }


def find_budgets(case: Case, folder: Path) -> Budgets:
    search = open_search(folder, Budgets(epochs=case.epochs), "size")
    snapshot = SnapshotBytes.of(open_inputs(search.question.params, Layout(folder)))
    with search.open_pool() as pool:
        pool.open(["naive"])
    least = search.measured_needs["naive"].ram_bytes
    ram, disk = (
        None if share is None else f"{(taken + share * kept) / 2**20:.0f}MiB"
        for share, taken, kept in (
            (case.ram, least, snapshot.train),
            (case.disk, 0.0, snapshot.most),
        )
    )
    return read_budgets(epochs=case.epochs, ram=ram, disk=disk)


def open_search(folder: Path, budgets: Budgets, name: str) -> Search:
    """Return a new search with a journal of this name."""
    journal = Journal(
        folder / "benchmark" / f"{name}-{budgets.ram}-{budgets.disk}-{budgets.epochs}"
    )
    journal.folder.mkdir(parents=True, exist_ok=True)
    question = Question(
        params=load_params(folder / "params.yaml"),
        root=folder,
        budgets=budgets,
        limits=find_limits(budgets, folder),
    )
    return Search(question, journal)


def race_all(search: Search, anchor: str) -> None:
    """Race all plans that fit the budgets for a few rounds, the anchor in each group."""
    names = [each.name for each in search.survey.space.candidates if each.name not in search.excess]
    others = [name for name in names if name != anchor]
    with search.open_pool() as pool:
        for group in pool.groups(others, together_with=[anchor]):
            race_phase(search, "all", [anchor, *group], rounds=ROUNDS, pool=pool)
            for name in group:
                pool.end(name)


def race_phase(
    search: Search, phase: str, names: Sequence[str], *, rounds: int, pool: SearchPool | None = None
) -> None:
    """Race names for so many rounds, minus those that the journal has."""
    done = search.journal.rounds_of(phase, names)
    if pool is None:
        with search.open_pool() as opened:
            race_phase(search, phase, names, rounds=rounds, pool=opened)
    elif done < rounds:
        pool.open(names)
        for number in range(done, rounds):
            search.journal.add(pool.race(names, phase, number=number))


def of_phase(race: Race, phase: str) -> Race:
    return Race(
        rounds=[each for each in race.rounds if each.heat == phase],
        costs=race.costs,
        examples=race.examples,
        epochs=race.epochs,
    )


def choose_as_others(search: Search, rivals: Sequence[str], *, count: int) -> dict[str, str | None]:
    """Return what others would choose, or None if that breaks a budget or cannot be planned."""
    race, known = search.race, set(rivals)
    drawn = random.Random(0).sample(sorted(known), min(count, len(known)))
    kept = [name for name in CACHEW if name in known]
    return {
        **{name: name if name in known else None for name in RULES},
        "Plumber's rule": next((name for name in PLUMBER if name in known), None),
        "Cachew's rule": min(kept, key=lambda name: race.seconds(name).value) if kept else None,
        "at random": min(drawn, key=lambda name: race.seconds(name).value),
    }


def row(result: dict[str, Any]) -> str:
    others = ", ".join(
        f"{who} {ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        if ratio
        else f"{who} breaks a budget"
        for who, ratio in result["others"].items()
    )
    return (
        f"| {result['case']} | {result['outcome']} | {result['chosen']} | {result['fastest']} |"
        f" {result['regret_pct']:.0f} % ({result['median_pct']:.0f}) | {result['raced']} of"
        f" {result['plans']} | {result['searched_s']:.0f} | {others} |"
    )


def summary(results: list[dict[str, Any]]) -> str:
    regrets = [result["regret_pct"] for result in results]
    if not regrets:
        return "no case"
    return (
        f"{len(regrets)} cases: regret {statistics.median(regrets):.0f} % in the median,"
        f" {max(regrets):.0f} % at worst"
    )


if __name__ == "__main__":
    main()
