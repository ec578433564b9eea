"""How often are equal configurations called different, and different ones found?

    python -m benchmarks.ranking --simulate
    python -m benchmarks.ranking --json FILE

The first races nothing: rounds are drawn, with a factor per round that all contestants share and
one per turn, and the ranking is asked; of a fixed number of rounds, and of races that end as the
race stage's do, when all places are decided. The second races one configuration under several
names, every other time beside a program that takes a core half of the time.
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

SHARED_NOISE, OWN_NOISE = 0.2, 0.05  # of a round and of a turn, standard deviations of logarithms
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
    """Rounds of contestants that are so fast."""
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
    """As much of them as the race stage would race."""
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
    """The ranking of a race that has nothing but these rounds."""
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
    """Whether any of the configurations is called faster than another one."""
    return bool(ranking.winners) or len(ranking.tied) < len(ranking.names)


def simulate() -> list[dict[str, Any]]:
    """The share of races in which equal configurations are called different, and in which one that
    is faster than the others is called faster than the baseline.
    """
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
    """These shares of races of so many configurations, of so many rounds or until all is decided,
    where the second of them is 1, 1.1 and 1.3 times as fast as the others.
    """
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
    """Race a configuration that has three names, again and again."""
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
    """Simulate or race, and write all as JSON."""
    parser = command_line("ranking", __doc__)
    parser.add_argument("--simulate", action="store_true", help="draw rounds, and race nothing")
    parser.add_argument("--races", type=int, default=40, help="real races (default: 40)")
    options = parser.parse_args()
    with open_work(None) as work:
        results = simulate() if options.simulate else race_equals(work, options.races)
    write_results(options.json, results)


if __name__ == "__main__":
    main()
