"""How often are equal configurations called different, and faster ones found?

    python -m benchmarks.ranking --simulate
    python -m benchmarks.ranking [--races 40]

The first simulates rounds, with a random factor that all contestants of a round share and one for
each turn, in races of a fixed number of rounds and in races that end, as the stage's do, when all
places are decided. The second races one configuration under several names, every other time beside
a program that takes a core half of the time.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.command_line import command_line, run_cases
from benchmarks.racing import half_a_core, race
from tests.support.races import raced, rounds
from throughline.measurement.rounds import Race
from throughline.race.configurations import LEAST_ROUNDS, find_unclear
from throughline.reporting.ranking import BASELINE, Ranking
from throughline.results.race import OWN, RaceResult, Round

SHARED_NOISE, OWN_NOISE = 0.2, 0.05  # standard deviations of logarithms, per round and per turn
RACES, FEWER_RACES, SECONDS = 2_000, 500, 30.0
COUNTS, GAINS = (2, 4, 8), (1.0, 1.1, 1.3)
ROUNDS, MOST_ROUNDS = (5, 8, 12), 20
NAMES = (BASELINE, *(f"other_{number}" for number in range(1, max(COUNTS))))


def draw_rounds(draw: np.random.Generator, speeds: Sequence[float], count: int) -> list[Round]:
    shared = draw.lognormal(0, SHARED_NOISE, (count, 1))
    rates = shared * draw.lognormal(0, OWN_NOISE, (count, len(speeds))) * speeds
    return rounds(dict(zip(NAMES, rates.T.tolist(), strict=False)), phase=OWN)


def until_decided(drawn: Sequence[Round]) -> Sequence[Round]:
    run = list(drawn[:LEAST_ROUNDS])
    for each in drawn[LEAST_ROUNDS:]:
        so_far = Race(rounds=run)
        leaders = {so_far.fastest(so_far.names), BASELINE}
        pairs = [(one, other) for one in leaders for other in so_far.names]
        if not (still := set[str]().union(*find_unclear(so_far, pairs))):
            break
        still.add(so_far.reference)
        turns = {name: turn for name, turn in each.turns.items() if name in still}
        run.append(replace(each, turns=turns))
    return run


def rank(run: Sequence[Round]) -> Ranking:
    configurations = dict.fromkeys(run[0].turns, raced())
    known: Any = {"machine": {}, "processes": 1, "seconds": 0.0, "disturbed_by": "", "lost": {}}
    return Ranking(RaceResult(rounds=tuple(run), configurations=configurations, **known))


def is_split(ranking: Ranking) -> bool:
    return bool(ranking.winners) or len(ranking.tied) < len(ranking.names)


def simulate() -> None:
    cells = [(count, fixed) for count in COUNTS for fixed in (*ROUNDS, None)]
    print("configurations  rounds  called different       1.1× found      1.3× found")
    with ProcessPoolExecutor() as processes:
        for (count, fixed), shares in zip(cells, processes.map(simulate_cell, cells), strict=True):
            label = fixed or f"{LEAST_ROUNDS} to {MOST_ROUNDS}"
            print(f"{count:>14}{label:>8}", *(f"{each:>16.1%}" for each in shares), flush=True)


def simulate_cell(cell: tuple[int, int | None]) -> list[float]:
    (count, fixed), draw, shares = cell, np.random.default_rng(0), []
    for gain in GAINS:
        hits, races = 0, RACES if fixed and gain == 1 else FEWER_RACES
        for _ in range(races):
            drawn = draw_rounds(draw, [1.0, gain, *[1.0] * (count - 2)], fixed or MOST_ROUNDS)
            ranking = rank(drawn if fixed else until_decided(drawn))
            hits += is_split(ranking) if gain == 1 else NAMES[1] in ranking.winners
        shares.append(hits / races)
    return shares


def main() -> None:
    parser = command_line("ranking", __doc__)
    parser.add_argument("--simulate", action="store_true", help="simulate rounds instead of racing")
    parser.add_argument("--races", type=int, default=40, help="real races (default: 40)")
    options = parser.parse_args()
    if options.simulate:
        simulate()
        return
    root = data.small(options.work)
    config = {"read": "shards", "vectorize": True, "prefetch": 2}
    given: Any = {"batch_size": 64, "model": {"name": "mlp"}, "measure": {"seconds": SECONDS}}
    params = data.read_params(root, **given, pipelines=dict.fromkeys(NAMES[:3], config))

    def run(name: str) -> dict[str, Any]:
        with half_a_core(taken=name.startswith("beside")):
            ranking = Ranking(race(params, root))
        gains = {one: vars(gain) for one, gain in ranking.gains.items()}
        return {"different": is_split(ranking), "gains": gains}

    names = [f"{('alone', 'beside')[number % 2]} {number}" for number in range(options.races)]
    results = run_cases(options.work / "ranking.jsonl", names, run)
    for where in ("alone", "beside"):
        different = [each["different"] for each in results if each["case"].startswith(where)]
        print(f"{where}: called different in {sum(different)} of {len(different)} races")


if __name__ == "__main__":
    main()
