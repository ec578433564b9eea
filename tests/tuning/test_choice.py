"""Which configurations a search considers within its budgets, which it chooses, and the sentence
about that.
"""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.project import SMALL
from tests.support.races import race
from throughline.config.params import check
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Rescale, Resize
from throughline.plan.plan import InputSpec
from throughline.race.contestant import ContestantLost
from throughline.race.jobs import Entry
from throughline.results.race import Cost
from throughline.settings import PipelineConfig
from throughline.shared.errors import InvalidBudget
from throughline.shared.failures import Failure
from throughline.shared.limits import available_memory
from throughline.tuning import budgets, choice, space
from throughline.tuning.budgets import Need, find_excess, find_limits, read_budgets
from throughline.tuning.choice import NONE_OF_OWN, choose, compose_sentence, find_break_even
from throughline.tuning.journal import Journal
from throughline.tuning.question import prove

MIB = 2**20
FREE = Need(ram_bytes=300 * MIB, disk_bytes=0.0, prepare_s=0.0)
STORED = replace(FREE, disk_bytes=1126 * MIB, prepare_s=38.0)
NEEDS = dict.fromkeys(["naive", "optimized"], FREE)
NEEDS |= {"stored": STORED, "cached": replace(FREE, ram_bytes=900 * MIB)}


def steady(**rates):
    around = {name: [rate, 1.01 * rate, 0.99 * rate, rate, rate] for name, rate in rates.items()}
    return around | {space.CEILING: [100_000.0] * 5}


def early(value):
    return [value] * 5 + [None] * 5


def late(value):
    return [None] * 5 + [value] * 5


def choose_of(one, own=("naive", "optimized"), needs=NEEDS, **more):
    rivals = [name for name in one.names if name != space.CEILING]
    configs = dict.fromkeys(rivals, PipelineConfig())
    return choose(one, rivals, own, needs=needs, configs=configs, **more)


NAIVE, NONE, OTHERS = {"own": ("naive",)}, {"own": ()}, {"others": 50.0}
CLOSE = {"naive": [1000.0] * 5, "cached": [1100.0, 1040.0, 1120.0, 1050.0, 1090.0]}
SLOW = {str(number): [500.0] * 5 for number in range(20)}
CALM, TWICE = {"naive": [1000.0] * 5}, {"naive": [1000.0] * 5, "stored": [2000.0] * 5}
BOUND = steady(naive=97_000.0, optimized=98_000.0)
CHOICES = {
    # Rates, and what else is given: what is chosen, and what is said.
    "a certain lead": (
        steady(naive=1e3, optimized=5e3, stored=1e4), {}, "found stored",
        "3.0 s for 30 epochs, 10.0× naive (10.0 to 10.0), 2.0× `optimized`"),
    "a lead within the noise": (
        steady(naive=1e3, optimized=5e3) | {"stored": [9000.0, 3000.0, 5200.0, 4000.0, 6000.0]}, {},
        "kept optimized", "nothing beats `optimized`"),
    "one of few": (CLOSE, NAIVE, "found cached", "28 s for 30 epochs, 1.08× naive (1.02 to 1.14)"),
    "the same of many": (CLOSE | SLOW, NAIVE, "kept naive", "nothing beats `naive`"),
    "a certain winner before one that may be faster": (
        steady(naive=1e3, optimized=5e3, stored=9e3)
        | {"cached": [30_000.0, 500.0, 600.0, 400.0, 28_000.0]}, {}, "found stored", None),
    "of equals the one with less memory": (
        steady(naive=1e3, optimized=2e3, stored=9e3)
        | {"cached": [9200.0, 8900.0, 9300.0, 8900.0, 9100.0]}, {}, "found stored", None),
    "a certain lead before memory": (
        steady(naive=1e3, optimized=2e3, stored=9e3, cached=1e4), {}, "found cached", None),
    "a negligible input": (
        BOUND, {}, "compute-bound optimized", "nothing to gain: with `optimized` the input takes"
        " less than 5 % of a step; the model takes the rest"),
    "an input of a tenth": (steady(naive=9e4), NAIVE, "kept naive", None),
    "a disturbed race": (
        steady(naive=1e3, optimized=5e3, stored=9e3), OTHERS, "undecided stored",
        "undecided: make used 50 % of the cores in 5 of 5 rounds; so far `stored` is the fastest."
        " Run it again while nothing else runs"),
    "a lead of 1 %": (CALM | {"cached": [1010.0] * 5}, NAIVE, "kept naive", None),
    "a lead of 3 %": (CALM | {"cached": [1030.0] * 5}, NAIVE, "found cached", None),
    "no lead in four rounds": (CALM | {"cached": [900.0] * 4}, NAIVE, "kept naive", None),
    "a lead in four rounds": (
        CALM | {"cached": [2000.0] * 4}, NAIVE, "undecided naive",
        "undecided: the time was up before `cached` had raced for 5 rounds; so far `naive` is the"
        " fastest of the others. Run the same command to continue, or give a longer --time"),
    "a later one that leads the choice": (
        TWICE | {"cached": [4000.0] * 4}, NAIVE, "found stored",
        "15 s for 30 epochs, 2.0× naive (2.0 to 2.0); the time was up before `cached` had raced for"
        " 5 rounds; a longer --time may show that more can be gained"),
    "a later one that leads the incumbent alone": (
        TWICE | {"cached": [1500.0] * 4}, NAIVE, "found stored",
        "15 s for 30 epochs, 2.0× naive (2.0 to 2.0)"),
    "families that there was no time for": (
        steady(naive=1e3), {**NAIVE, "unraced": ["arrays", "disk", "memory"]}, "undecided naive",
        "undecided: the time was up before `arrays` and 2 more had raced for 5 rounds; so far"
        " `naive` is the fastest of the others. Run the same command to continue, or give a longer"
        " --time"),
    "what is found before": (TWICE, {**NAIVE, "unraced": ["arrays"]}, "found stored", None),
    "what is bound to compute": (BOUND, {"unraced": ["arrays"]}, "compute-bound optimized", None),
    "a tie of two while none of one's own fits": (
        steady(stored=5e3, cached=5e3), NONE, "found stored",
        "6.0 s for 30 epochs; none of your own configurations can be trained within the budgets"),
    "the gain over one that it has met": (
        {"cached": early(900.0), "optimized": late(1000.0), "stored": late(4000.0)}, NONE,
        "found stored", f"7.5 s for 30 epochs, 4.0× optimized (4.0 to 4.0); {NONE_OF_OWN}"),
    "the gain over the incumbent alone": (
        {"naive": early(100.0), "optimized": late(1000.0), "stored": late(4000.0)}, {},
        "found stored", "7.5 s for 30 epochs, 4.0× `optimized`"),
    # In the second half of the rounds the machine has half the pace.
    "the fastest raced on a slower machine alone": (
        {space.CEILING: [1e5] * 5 + [5e4] * 5, "cached": early(1000.0), "stored": late(750.0)},
        NONE, "found stored", f"27 s for 30 epochs; {NONE_OF_OWN}"),
}  # fmt: skip


@pytest.mark.parametrize(("rates", "given", "chosen", "said"), CHOICES.values(), ids=CHOICES)
def test_what_certainly_gains_is_chosen_or_it_is_said_why_nothing_is(rates, given, chosen, said):
    one = race(rates, epochs=30, others=given.get("others", 0.0))
    found = choose_of(one, **{key: given[key] for key in given if key != "others"})
    assert f"{found.outcome} {found.name}" == chosen
    assert said is None or compose_sentence(found, one, FREE) == f"tuned: {said}"


def test_needs_within_a_grain_are_the_same_wherever_they_lie():
    cached = replace(FREE, ram_bytes=384 * MIB)  # a multiple of the grain
    stored = replace(FREE, ram_bytes=383 * MIB, disk_bytes=99.0)
    needs = {**NEEDS, "cached": cached, "stored": stored}
    one = race(steady(naive=1000.0, stored=5000.0, cached=5000.0))
    chosen = choose_of(one, needs=needs, **NAIVE)
    assert chosen.name == "cached", "it needs no disk, and no more memory"


def test_ones_own_take_no_places_of_the_searched_ones():
    own = {f"own {number}": [1000.0, 1001.0, 999.0, 998.0] for number in range(4)}
    searched = {
        "a": [999.0, 1002.0, 998.0, 999.0],
        "b": [998.0, 1001.0, 998.0, 998.0],
        "c": [997.0, 1000.0, 998.0, 997.0],
        "slow": [500.0] * 4,
    }
    one = race({**own, **searched}, epochs=30)
    assert choice.pick_survivors(one, list(one.names), list(searched), most=2) == [*own, "a", "b"]


@pytest.mark.parametrize(("prepare_s", "epoch"), [(0.0, 1), (1.0, 2), (4.6, 6)])
def test_it_pays_from_the_epoch_after_which_less_has_been_spent(prepare_s, epoch):
    costs = {"stored": Cost(prepare_s=prepare_s)}
    one = race({"naive": [1e3] * 5, "stored": [1e4] * 5}, costs=costs)
    assert find_break_even(one, "stored", "naive") == epoch
    assert find_break_even(one, "naive", "naive") is None
    said = compose_sentence(choose_of(one, **NAIVE), one, STORED)
    spent = "; 1.1 GiB of disk, 38 s of preparation"
    assert said.endswith(spent if epoch == 1 else f"{spent}, pays off from epoch {epoch}")


SPEC = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=8, width=8)),
    augment=(Flip(),),
    postprocess=(Rescale(),),
    batch_size=32,
)
PLAIN = {"naive": PipelineConfig()}


def lay_out(own=PLAIN, **conditions):
    return space.lay_out_space(own, SPEC, space.Conditions(**conditions))


def families(own=PLAIN, **conditions):
    return space.group_families(lay_out(own, **conditions).candidates)


def test_candidates_are_ones_own_rules_of_thumb_and_what_can_be_kept_where():
    own = {**PLAIN, "heuristic": PipelineConfig(prefetch=3)}
    first = lay_out(own).candidates[:3]
    assert [each.name for each in first] == ["naive", "heuristic", "autotune"]
    assert first[1].config.prefetch == 3, "one's own goes first"
    kept = ["snapshot", "cache_memory", "cache_disk", "arrays", "indexed_shards", "stream"]
    after_decode = ["cache_memory_after_decode", "cache_disk_after_decode"]
    assert [*families()] == [space.OWN, space.RULES, *kept, *after_decode]
    balanced = {"mine": PipelineConfig(sampling="balanced")}
    assert {each.config.sampling for each in lay_out(balanced).candidates} == {"balanced"}
    stored = space.read_stored(balanced, 0.5)
    assert (stored.sampling, stored.snapshot.fraction) == ("balanced", 0.5)


def test_forms_differ_in_their_plans_and_in_nothing_that_decides_examples():
    candidates = lay_out().candidates
    pairs, given = itertools.combinations(candidates, 2), (space.OWN, space.RULES)
    assert all(one.plan != other.plan for other, one in pairs if one.family not in given)
    assert len(families()["snapshot"]) == 6, "three kinds of parallel calls, two places"
    assert {(each.config.deterministic, each.plan.approximate) for each in candidates} == {
        (True, False)
    }
    loose = [each for each in lay_out(unordered=True).candidates if not each.config.deterministic]
    assert loose and {each.config.read for each in loose} <= {"shards", "arrays"}
    stored = {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2}
    own = {"mine": PipelineConfig(**stored, map={"parallel": "cores"}, postprocess_on="device")}
    names = [each.name for each in families(own)["snapshot"]]
    assert "snapshot cores device" not in names and len(names) == 5, "raced as one's own"


@pytest.mark.parametrize(
    ("conditions", "more"),
    [
        ({"approximate": True}, {"stream_half_size"}),
        ({"beyond_memory": True}, {"snapshot_window"}),
        ({"accelerator": True}, {"snapshot_on_device"}),
        ({"fitting": 0.37}, {"snapshot_part"}),
        ({"fitting": 0.0}, set()),
    ],
)
def test_some_families_need_a_condition(conditions, more):
    found = families(**conditions)
    assert found.keys() - families().keys() == more
    for each in found.get("snapshot_part", []):
        assert (each.config.read, each.config.snapshot.fraction) == ("snapshot", 0.37)
        assert each.name.startswith("snapshot_part 37% "), "another is another"


@pytest.mark.parametrize(
    ("own", "conditions", "refused", "reason"),
    [
        ({}, {"shared": True}, "cache_memory", "batches cannot be shared"),
        ({}, {"stored": 0.5, "fitting": 0.5}, "snapshot", "50% of the snapshot's rows are stored"),
        ({"read": "arrays", "interleave": {}}, {}, "own", "only shards can be interleaved"),
        ({"sampling": "balanced"}, {}, "own", "its sampling or batch differs"),
        ({"decode": {"ratio": 2}}, {}, "own", "--allow approximate"),
        ({"deterministic": False}, {}, "own", "--allow unordered"),
    ],
)
def test_what_cannot_be_planned_or_compared_is_refused(own, conditions, refused, reason):
    laid = lay_out({**PLAIN, "own": PipelineConfig(**own)}, **conditions)
    assert reason in dict(laid.refusals)[refused]
    kept = space.group_families(laid.candidates)
    if "shared" in conditions:
        assert kept and all(each.plan.seekable for each in laid.candidates)
    if "stored" in conditions:
        assert "snapshot_part" in kept and "snapshot" not in kept


def calls(form):
    return form.config.vectorize, form.config.map.parallel, form.config.postprocess_on


def test_the_likeliest_form_is_tried_first_then_what_differs_most_and_neighbors_in_one_respect():
    forms = families()["stream"]
    by_name = {form.name: form for form in forms}
    first, second, *_ = picked = [by_name[name] for name in space.pick_forms(forms, 4)]
    assert first == forms[0]
    assert not set(calls(first)) & set(calls(second)), "they differ in everything"
    for each in zip(*map(calls, picked), strict=True):
        assert len({*each}) > 1, "each way to call is tried in two ways at least"
    assert sorted(space.pick_forms(forms, 99)) == sorted(by_name)
    neighbors = space.find_neighbors(first, forms)
    assert len(neighbors) == 4, "vectorized or not, two other kinds of parallel calls, the place"
    assert all(len(set(calls(first)) & set(calls(each))) == 2 for each in neighbors)
    lean = {calls(form) for form in space.find_leanest(forms)}
    assert lean == {(True, "none", "device"), (False, "none", "device")}, "one call at a time"


@pytest.mark.parametrize(
    ("failed", "after"),  # whether it is refuted for good, and whether it is lost
    [
        (None, (False, False)),
        ("UnequalConfigurations", (True, False)),
        ("MissingInput", (False, False)),
        ("OutOfMemory", (False, True)),
    ],
)
def test_only_one_with_other_examples_is_out_for_good(tmp_path, monkeypatch, failed, after):
    asked = []

    def do_once(*_, **__):
        asked.append(failed)
        if failed:
            raise ContestantLost(failed, Failure(kind=failed, message=""))
        return "digest"

    monkeypatch.setattr("throughline.tuning.question.do_once", do_once)
    entry = Entry(params=check(SMALL), root=tmp_path, name="naive", config=PipelineConfig())
    journal = Journal(tmp_path)
    assert [prove(entry, journal) for _ in range(2)] == [not failed] * 2
    assert len(asked) == (2 if failed else 1), "what is proven is not proven again"
    assert journal.content.dropped.keys() == ({"naive"} if failed else set())
    assert (bool(Journal(tmp_path).content.dropped), bool(journal.content.lost)) == after


def test_sizes_times_and_allowances_are_read_and_written_as_people_write_them():
    texts = ("8GiB", "1.5 MiB", "2GB", "3kb", "7B")
    assert [*map(budgets.parse_size, texts)] == [8 * 2**30, 1.5 * 2**20, 2e9, 3e3, 7]
    assert [*map(budgets.parse_time, ("90s", "10min", "1.5h"))] == [90, 600, 5400]
    written = [budgets.format_seconds(each) for each in (0.84, 41.2, 720, 12600, math.inf)]
    assert written == ["0.8 s", "41 s", "12 min", "3.5 h", "any time"]
    assert [budgets.format_bytes(each * 2**20) for each in (38, 1126)] == ["38 MiB", "1.1 GiB"]
    allowed = [read_budgets(allow=each).allow for each in (["approximate,unordered"], None)]
    assert allowed == [("approximate", "unordered"), ()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ram": "8"}, "--ram: a size needs a number and a unit, such as 500MB or 8GiB; found '8'"),
        ({"prepare": "10GiB"}, "--prepare: a time needs a number and a unit"),
        ({"time": "59s"}, "--time: a search needs at least 1min"),
        ({"epochs": 0}, "--epochs: expected auto or a whole number from 1; found 0"),
        ({"allow": ["anything"]}, "--allow: input should be 'approximate' or 'unordered'"),
    ],
)
def test_what_is_no_budget_is_named_by_its_option(options, said):
    with pytest.raises(InvalidBudget) as refused:
        read_budgets(**{"epochs": 3, **options})
    assert str(refused.value).startswith(said)


def test_limits_are_no_more_than_is_left_and_what_needs_more_is_said_with_the_allowance():
    limits = find_limits(read_budgets(ram="1MiB", disk="900TiB", prepare="1s"), Path())
    assert limits.ram_bytes == 2**20 and limits.disk_bytes < 900 * 2**40
    left = find_limits(read_budgets(), Path())
    assert left.ram_bytes <= 1.1 * available_memory() and left.prepare_s == math.inf
    assert left.kept_bytes == 0.8 * left.ram_bytes
    small = Need(ram_bytes=2**19, disk_bytes=0, prepare_s=0)
    large = Need(ram_bytes=2**30, disk_bytes=0, prepare_s=60)
    leaner, cached = (replace(small, kept_bytes=part * limits.kept_bytes) for part in (0.9, 1.1))
    needs = {"small": small, "large": large, "leaner": leaner, "cached": cached}
    found = find_excess(needs, limits)
    assert found.keys() == {"large", "cached"}
    assert found["large"] == (
        "needs 1.0 GiB of memory (allowed: 1 MiB); needs 60 s of preparation (allowed: 1.0 s)"
    )
    assert "of memory to keep splits in" in found["cached"]
    with pytest.raises(InvalidBudget, match=r"budgets: `large` needs 1\.0 GiB of .*preparation"):
        find_excess({"large": large}, limits)


def test_the_disk_that_the_snapshot_takes_is_there_for_it(tmp_path):
    taken = tmp_path / "data" / "snapshot" / "train"
    taken.parent.mkdir(parents=True)
    with taken.open("wb") as file:
        file.truncate(1 << 43)  # a hole takes no disk
    assert find_limits(read_budgets(), tmp_path).disk_bytes > 1 << 43
    assert find_limits(read_budgets(disk="1GiB"), tmp_path).disk_bytes == 1 << 30
