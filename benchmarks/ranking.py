"""How often are equal configurations called different, and different ones found?

    python -m benchmarks.ranking --simulate
    python -m benchmarks.ranking --json FILE

The first simulates rounds, with a random factor that all contestants of a round share and one for
each turn, and ranks them: in races of a fixed number of rounds, and in races that end when all
places are decided, as the stage's do. The second races one configuration under several names, every
other time beside a program that takes a core half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.command_line import command_line, open_work, write_results
from benchmarks.racing import half_a_core, race
from throughline.measurement.rounds import Race
from throughline.race.configurations import LEAST_ROUNDS, find_unclear
from throughline.reporting.ranking import BASELINE, Ranking
from throughline.results.base import Estimate
from throughline.results.race import OWN, Cost, Raced, RaceResult, Round, Turn

SHARED_NOISE, OWN_NOISE = 0.2, 0.05  # standard deviations of logarithms, per round and per turn
RACES, FEWER_RACES, SECONDS = 2_000, 500, 30.0
COUNTS, GAINS = (2, 4, 8), (1.0, 1.1, 1.3)
ROUNDS, MOST_ROUNDS = (5, 8, 12), 20
NAMES = (BASELINE, *(f"other_{number}" for number in range(1, max(COUNTS))))
NOTHING = Estimate(value=1.0, low=1.0, high=1.0, rounds=0)
RACED = Raced(
    verdict="",
    cause="",
    fix="",
    stall_pct=0.0,
    stall_pct_low=0.0,
    stall_pct_high=0.0,
    training=NOTHING,
    input=None,
    model_alone=NOTHING,
    model="",
    cost=Cost(),
    first_batch_s=None,
)


def draw_rounds(draw: np.random.Generator, speeds: Sequence[float], rounds: int) -> list[Round]:
    """Simulate rounds of contestants with these speeds."""
    shared = draw.lognormal(0, SHARED_NOISE, (rounds, 1))
    rates = shared * draw.lognormal(0, OWN_NOISE, (rounds, len(speeds))) * speeds
    return [
        Round(
            heat=OWN,
            turns={
                name: Turn(examples=rate, seconds=1.0)
                for name, rate in zip(NAMES, each, strict=False)
            },
            others_pct=0.0,
            busiest="",
        )
        for each in rates.tolist()
    ]


def until_decided(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return the rounds that the race stage would run before it stops."""
    raced = list(rounds[:LEAST_ROUNDS])
    for each in rounds[LEAST_ROUNDS:]:
        so_far = Race(rounds=raced)
        leaders = {so_far.fastest(so_far.names), BASELINE}
        pairs = [(one, other) for one in leaders for other in so_far.names]
        if not (still := set[str]().union(*find_unclear(so_far, pairs))):
            break
        still.add(so_far.reference)
        turns = {name: turn for name, turn in each.turns.items() if name in still}
        raced.append(replace(each, turns=turns))
    return raced


def rank(rounds: Sequence[Round]) -> Ranking:
    return Ranking(
        RaceResult(
            machine={},
            processes=1,
            seconds=0.0,
            disturbed_by="",
            rounds=tuple(rounds),
            configurations=dict.fromkeys(rounds[0].turns, RACED),
            lost={},
        )
    )


def is_split(ranking: Ranking) -> bool:
    """Return whether any configuration is called faster than another one."""
    return bool(ranking.winners) or len(ranking.tied) < len(ranking.names)


def simulate() -> list[dict[str, Any]]:
    """Return how often equal configurations are called different, and a faster one is found."""
    cells = [(count, rounds) for count in COUNTS for rounds in (*ROUNDS, None)]
    results = []
    print("configurations  rounds  called different       1.1× found      1.3× found")
    with ProcessPoolExecutor() as processes:
        for (count, rounds), shares in zip(cells, processes.map(simulate_cell, cells), strict=True):
            label = rounds or f"{LEAST_ROUNDS} to {MOST_ROUNDS}"
            print(f"{count:>14}{label:>8}", *(f"{each:>16.1%}" for each in shares), flush=True)
            results.append({"count": count, "rounds": label, "shares": shares})
    return results


def simulate_cell(cell: tuple[int, int | None]) -> list[float]:
    """Return these shares for one number of configurations and of rounds; None: until decided."""
    (count, rounds), draw, shares = cell, np.random.default_rng(0), []
    for gain in GAINS:
        hits, races = 0, RACES if rounds and gain == 1 else FEWER_RACES
        for _ in range(races):
            drawn = draw_rounds(draw, [1.0, gain, *[1.0] * (count - 2)], rounds or MOST_ROUNDS)
            ranking = rank(drawn if rounds else until_decided(drawn))
            hits += is_split(ranking) if gain == 1 else NAMES[1] in ranking.winners
        shares.append(hits / races)
    return shares


def race_equals(work: Path, races: int) -> list[dict[str, Any]]:
    """Race a configuration under three names, again and again."""
    workload = data.small(work)
    config = {"read": "shards", "vectorize": True, "prefetch": 2}
    document = {
        **workload.document,
        "model": {"name": "mlp"},
        "measure": {"seconds": SECONDS},
        "pipelines": dict.fromkeys(NAMES[:3], config),
    }
    results = []
    for number in range(races):
        with half_a_core(taken=number % 2 == 1):
            result = race(document, workload.layout.root)
        ranking = Ranking(result)
        results.append(
            {
                "disturbed": number % 2 == 1,
                "different": is_split(ranking),
                "rounds": ranking.gains[NAMES[1]].rounds,
                "gains": {name: vars(gain) for name, gain in ranking.gains.items()},
                "disturbed_by": result.disturbed_by,
            }
        )
        print(results[-1], flush=True)
    for disturbed in (False, True):
        those = [each["different"] for each in results if each["disturbed"] == disturbed]
        print(
            f"{'beside another program' if disturbed else 'alone'}: called different in"
            f" {sum(those)} of {len(those)} races"
        )
    return results


def main() -> None:
    parser = command_line("ranking", __doc__)
    parser.add_argument("--simulate", action="store_true", help="draw rounds, and race nothing")
    parser.add_argument("--races", type=int, default=40, help="real races (default: 40)")
    options = parser.parse_args()
    with open_work(None) as work:
        results = simulate() if options.simulate else race_equals(work, options.races)
    write_results(options.json, results)


if __name__ == "__main__":
    main()
