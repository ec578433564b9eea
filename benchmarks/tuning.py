"""How good is the choice of a search? Its regret against the best of all plans, and against presets
that people choose without a search.

    python -m benchmarks.tuning [--only photos] [--epochs 30] [--ram SIZE] [--disk SIZE]

`python -m tasks.tune` searches each case. Then all plans within the budgets race for three rounds;
the fastest three, the search's choice and the presets race for fifteen more. Regret is how many
times as long the chosen training takes as the fastest, less one, by the lower end of its interval;
a choice that breaks a budget has lost. Budgets of memory apply to contestants, without the kernel's
cache of data files.
"""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.command_line import add_choice, add_photos, command_line, run_cases
from throughline.config.params import load_params
from throughline.config.params_file import PARAMS_FILE
from throughline.results.tuning import TuningResult
from throughline.tuning.budgets import Budgets, find_limits, read_budgets
from throughline.tuning.journal import Journal
from throughline.tuning.pool import SearchPool
from throughline.tuning.question import Question
from throughline.tuning.search import Search
from throughline.tuning.space import CEILING

ROUNDS, FINAL_ROUNDS, BEST = 3, 15, 3
PRESETS = ("optimized", "heuristic", "autotune")
CASES = ("photos", "imagenet", "fashion_mnist")


def judge(folder: Path, budgets: Budgets) -> dict[str, Any]:
    os.chdir(folder)  # paths of params.yaml are relative to it
    given = budgets.model_dump(exclude_defaults=True)
    options = [f"--{key}={value}" for key, value in given.items()]
    data.run_module(folder, "tasks.tune", "--out=found", *options)
    found = TuningResult.read(folder / "found")
    search = open_search(folder, budgets)
    race_all(search, found.chosen)
    rivals = [name for name in search.rivals if name != CEILING]
    best = sorted(rivals, key=lambda name: search.race.seconds(name).value)[:BEST]
    broke = search.journal.content.dropped.get(found.chosen, "")
    chosen = best[0] if broke else found.chosen
    presets = [name for name in PRESETS if name in rivals]
    finalists = list(dict.fromkeys([chosen, *best, *presets]))
    with search.open_pool() as pool:
        race_phase(search, pool, "final", finalists, rounds=FINAL_ROUNDS)
    rounds = [each for each in search.race.rounds if each.phase == "final"]
    race = replace(search.race, rounds=rounds)
    regret = race.ratio(chosen, fastest := race.fastest(finalists))
    return {
        **{name: getattr(found, name) for name in ("outcome", "chosen", "searched_s")},
        "fastest": fastest,
        "regret_pct": math.inf if broke else 100 * max(0.0, regret.low - 1),
        "median_pct": math.inf if broke else 100 * (regret.value - 1),
        "plans": len(rivals),
        "broke": broke,
        "presets": {name: race.ratio(name, chosen).value for name in presets},
        "disturbed_by": race.disturbed_by(),
    }


def open_search(folder: Path, budgets: Budgets) -> Search:
    journal = Journal(folder / "benchmark" / f"{budgets.ram}-{budgets.disk}-{budgets.epochs}")
    journal.folder.mkdir(parents=True, exist_ok=True)
    params, limits = load_params(folder / PARAMS_FILE), find_limits(budgets, folder)
    return Search(Question(params=params, root=folder, budgets=budgets, limits=limits), journal)


def race_all(search: Search, anchor: str) -> None:
    names = [each.name for each in search.survey.space.candidates if each.name not in search.excess]
    others = [name for name in names if name != anchor]
    with search.open_pool() as pool:
        for group in pool.groups(others, together_with=[anchor]):
            race_phase(search, pool, "all", [anchor, *group], rounds=ROUNDS)
            for name in group:
                pool.end(name)


def race_phase(
    search: Search, pool: SearchPool, phase: str, names: Sequence[str], *, rounds: int
) -> None:
    pool.open(names)
    for _ in range(search.journal.rounds_of(phase, names), rounds):
        search.journal.add(pool.race(names, phase))


def main() -> None:
    parser = command_line("tuning", __doc__)
    add_photos(parser)
    add_choice(parser)
    parser.add_argument("--epochs", type=int, default=30, help="epochs of a training (default: 30)")
    for name in ("ram", "disk", "time"):
        parser.add_argument(f"--{name}", help=f"as --{name} of tasks.tune")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("epochs", "ram", "disk", "time")}
    own = [{"data": {"fetch": "none", "path": str(options.photos)}}] if options.photos else []

    def run(name: str) -> dict[str, Any]:
        overlays = [] if name == "fashion_mnist" else [data.demo(name), *own]
        folder = data.prepare(options.work / f"demo-{name}", *overlays)
        return judge(folder, read_budgets(**given))

    names = [name for name in CASES if options.only in name]
    said = "-".join(f"{key}={value}" for key, value in given.items() if value)
    results = run_cases(options.work / f"tuning-{said}.jsonl", names, run)
    regrets = [result["regret_pct"] for result in results]
    print(f"regret {statistics.median(regrets):.0f} % in the median, {max(regrets):.0f} % at worst")


if __name__ == "__main__":
    main()
