"""What is chosen, when the incumbent stays, and the sentence about it."""

from dataclasses import replace

import pytest

from tests.support.races import race
from throughline.results.race import Cost
from throughline.settings import PipelineConfig
from throughline.tuning.budgets import Need
from throughline.tuning.choice import (
    choose,
    compose_sentence,
    find_break_even,
    is_compute_bound,
    pick_survivors,
)
from throughline.tuning.space import CEILING

MIB = 2**20
FREE = Need(ram_bytes=300 * MIB, disk_bytes=0.0, prepare_s=0.0)
STORED = replace(FREE, disk_bytes=1126 * MIB, prepare_s=38.0)
CACHED = replace(FREE, ram_bytes=900 * MIB)
CONFIGS = {
    "naive": PipelineConfig(),
    "optimized": PipelineConfig(prefetch=2),
    "stored": PipelineConfig(read="snapshot", prefetch=2),
    "cached": PipelineConfig(cache={"where": "memory"}, prefetch=2),
}
NEEDS = {"naive": FREE, "optimized": FREE, "stored": STORED, "cached": CACHED, CEILING: FREE}


def steady(**rates):
    around = {name: [rate, 1.01 * rate, 0.99 * rate, rate, rate] for name, rate in rates.items()}
    return around | {CEILING: [100_000.0] * 5}


def chosen(one, own=("naive", "optimized"), needs=NEEDS, **more):
    rivals = [name for name in one.names if name != CEILING]
    return choose(one, rivals, own, needs=needs, configs=CONFIGS, **more)


def test_what_certainly_beats_the_incumbent_is_chosen():
    rates = steady(naive=1000.0, optimized=5000.0, stored=10_000.0)
    one = race(rates, costs={"stored": Cost(prepare_s=0.38)}, epochs=30)
    choice = chosen(one)
    assert (choice.outcome, choice.name, choice.incumbent) == ("found", "stored", "optimized")
    assert choice.to_incumbent.below_one
    assert compose_sentence(choice, one, NEEDS["stored"]) == (
        "tuned: 3.4 s for 30 epochs, 8.9× naive (8.9 to 8.9), 1.8× `optimized`;"
        " 1.1 GiB of disk, 38 s of preparation"
    )


def test_the_incumbent_stays_where_the_lead_is_within_the_noise():
    rates = steady(naive=1000.0, optimized=5000.0)
    one = race({**rates, "stored": [9000.0, 3000.0, 5200.0, 4000.0, 6000.0]}, epochs=30)
    assert (chosen(one).outcome, chosen(one).name) == ("kept", "optimized")
    assert compose_sentence(chosen(one), one, FREE) == "tuned: nothing beats `optimized`"


def test_the_more_race_the_more_certain_a_lead_has_to_be():
    rates = {"naive": [1000.0] * 5, "cached": [1100.0, 1040.0, 1120.0, 1050.0, 1090.0]}
    slow = {str(number): [500.0] * 5 for number in range(20)}
    few, many = race(rates, epochs=30), race({**rates, **slow}, epochs=30)
    assert [chosen(each, own=("naive",)).outcome for each in (few, many)] == ["found", "kept"]
    said = compose_sentence(chosen(few, own=("naive",)), few, FREE)
    assert said == "tuned: 28 s for 30 epochs, 1.08× naive (1.02 to 1.14)"


def test_one_that_certainly_wins_is_chosen_before_one_that_may_be_faster():
    rates = steady(naive=1000.0, optimized=5000.0, stored=9000.0)
    one = race({**rates, "cached": [30_000.0, 500.0, 600.0, 400.0, 28_000.0]}, epochs=30)
    assert chosen(one).name == "stored"


def test_of_equals_the_one_with_less_memory_then_less_disk_is_chosen():
    rates = steady(naive=1000.0, optimized=2000.0, stored=9000.0)
    one = race({**rates, "cached": [9200.0, 8900.0, 9300.0, 8900.0, 9100.0]}, epochs=30)
    assert chosen(one).name == "stored", "a gibibyte of disk, but less memory"
    faster = race(steady(naive=1000.0, optimized=2000.0, stored=9000.0, cached=10_000.0))
    assert chosen(faster).name == "cached", "memory does not count against a certain lead"


def test_where_input_is_a_negligible_part_of_a_step_nothing_can_be_gained():
    bound = race(steady(naive=97_000.0, optimized=98_000.0))
    assert is_compute_bound(bound, "optimized") and chosen(bound).outcome == "compute-bound"
    assert "input takes less than 5 % of a step" in compose_sentence(chosen(bound), bound, FREE)
    assert not is_compute_bound(race(steady(naive=90_000.0)), "naive")


def test_a_disturbed_race_is_undecided_and_says_why():
    one = race(steady(naive=1000.0, optimized=5000.0, stored=9000.0), others=50.0)
    bound = race(steady(naive=97_000.0, optimized=98_000.0), others=50.0)
    assert [chosen(each).outcome for each in (one, bound)] == ["undecided"] * 2
    assert compose_sentence(chosen(one), one, FREE).startswith(
        "tuned: undecided: make used 50 % of the cores in 5 of 5 rounds; so far `stored`"
    )


def test_ones_own_take_no_places_of_the_searched_ones():
    own = {f"own {number}": [1000.0, 1001.0, 999.0, 1002.0, 998.0] for number in range(4)}
    families = {
        "a": [999.0, 1002.0, 998.0, 1001.0, 999.0],
        "b": [998.0, 1001.0, 998.0, 1003.0, 998.0],
        "c": [997.0, 1000.0, 998.0, 1003.0, 997.0],
        "slow": [500.0] * 5,
    }
    one = race({**own, **families}, epochs=30)
    assert pick_survivors(one, list(one.names), list(families), most=2) == [*own, "a", "b"]


@pytest.mark.parametrize(
    ("rate", "rounds", "outcome"),
    [(1010.0, 5, "kept"), (1030.0, 5, "found"), (900.0, 4, "kept"), (2000.0, 4, "undecided")],
)
def test_a_lead_takes_two_percent_and_five_rounds(rate, rounds, outcome):
    one = race({"naive": [1000.0] * rounds, "cached": [rate] * rounds}, epochs=30)
    choice = chosen(one, own=("naive",))
    assert choice.outcome == outcome
    assert outcome != "undecided" or compose_sentence(choice, one, FREE) == (
        "tuned: undecided: the time was up before `cached` had raced for 5 rounds; so far `naive`"
        " is the fastest. Run the same command to continue, or give a longer --time"
    )


@pytest.mark.parametrize(
    ("rates", "said"),
    [([4000.0] * 4, True), ([1500.0] * 4, False), ([2010.0] * 4, False), ([4000.0] * 5, False)],
    ids=["leads the choice", "leads the incumbent alone", "leads by less", "is the choice"],
)
def test_who_leads_the_choice_in_too_few_rounds_is_named_with_it(rates, said):
    one = race({"naive": [1000.0] * 5, "stored": [2000.0] * 5, "cached": rates}, epochs=30)
    choice = chosen(one, own=("naive",))
    assert (choice.outcome, choice.name) == ("found", "stored" if len(rates) < 5 else "cached")
    late = "; the time was up before `cached` had raced for 5 rounds; a longer --time may show"
    assert (late in compose_sentence(choice, one, FREE)) == said


def test_what_the_time_did_not_suffice_for_leaves_the_search_undecided():
    def ended(**rates):
        unraced = ["arrays", "cache_disk", "cache_memory"]
        return chosen(race(steady(**rates)), own=("naive",), unraced=unraced)

    choice = ended(naive=1000.0)
    assert choice.outcome == "undecided"
    assert choice.reason.startswith("the time was up before `arrays` and 2 more had raced")
    assert ended(naive=1000.0, stored=9000.0).outcome == "found"
    assert ended(naive=98_000.0).outcome == "compute-bound", "more is no use"


@pytest.mark.parametrize(("prepare_s", "epoch"), [(0.0, 1), (1.0, 2), (4.6, 6)])
def test_it_pays_from_the_epoch_after_which_less_has_been_spent(prepare_s, epoch):
    rates, costs = {"naive": [1e3] * 5, "stored": [1e4] * 5}, {"stored": Cost(prepare_s=prepare_s)}
    one = race(rates, costs=costs, epochs=10)
    assert find_break_even(one, "stored", "naive") == epoch
    assert find_break_even(one, "naive", "naive") is None


def test_the_fastest_that_keeps_the_budgets_is_found_where_none_of_ones_own_does():
    one = race(steady(stored=5000.0, cached=5000.0), costs={}, epochs=10)
    choice = chosen(one, own=())
    assert (choice.outcome, choice.name) == ("found", "stored"), "a tie, and less memory"
    said = compose_sentence(choice, one, FREE)
    assert said.endswith("none of your own configurations can be trained within the budgets")


def test_what_is_gained_is_said_against_one_that_the_choice_has_met():
    apart = {"cached": [900.0] * 5 + [None] * 5, "optimized": [None] * 5 + [1000.0] * 5}
    one = race({**apart, "stored": [None] * 5 + [4000.0] * 5}, epochs=10)
    choice = chosen(one, own=())
    assert (choice.name, choice.baseline) == ("stored", "optimized"), "cached was slower, but left"
    unmet = race({"naive": [100.0] * 5 + [None] * 5, **apart, "stored": [None] * 5 + [4000.0] * 5})
    said = compose_sentence(chosen(unmet), unmet, FREE)
    assert said == "tuned: 2.5 s for 10 epochs, 4.0× `optimized`"


def test_a_machine_that_has_slowed_down_makes_no_later_one_slow():
    """The second half of the rounds is at half the pace: the fastest raced only there."""
    pace = [1.0] * 5 + [0.5] * 5
    gone = [[1000.0] * 5 + [None] * 5, [None] * 5 + [750.0] * 5]
    one = race({CEILING: [1e5 * each for each in pace], "cached": gone[0], "stored": gone[1]})
    choice = chosen(one, own=())
    assert (choice.name, one.seconds("stored").value) == ("stored", pytest.approx(1e4 / 1125))
    assert one.seconds("cached").value == pytest.approx(1e4 / 750)
    slowed, late = [1200.0] * 5 + [600.0] * 5, [None] * 5 + [700.0] * 5
    one = race({CEILING: [1e5] * 10, "cached": gone[0], "optimized": slowed, "stored": late})
    choice = chosen(one, own=())
    assert (choice.name, choice.baseline) == ("stored", "optimized"), "by the rounds of pairs"
    assert choice.to_baseline.below_one


@pytest.mark.parametrize("mib", [340, 400])
def test_needs_within_a_grain_are_the_same_wherever_they_lie(mib):
    one = race(steady(naive=1000.0, stored=5000.0, cached=5000.0), costs={}, epochs=10)
    cached = replace(FREE, ram_bytes=mib * MIB)
    stored = replace(FREE, ram_bytes=(mib - 1) * MIB, disk_bytes=99.0)
    needs = {**NEEDS, "cached": cached, "stored": stored}
    assert chosen(one, needs=needs).name == "cached", "it needs no disk, and no more memory"
