"""A search races, chooses, and goes on from its journal, over contestants of given rates."""

import math
from dataclasses import replace

import pytest

from tests.support.made_up import made_up
from tests.support.prepared import link_data
from tests.support.project import SMALL
from tests.support.races import Contestants, Others, rounds
from throughline.config.params import check
from throughline.results.race import Cost, Round, Turn
from throughline.results.snapshot import SnapshotCost
from throughline.results.tuning import TuningResult
from throughline.shared.errors import InvalidBudget, Untunable
from throughline.tuning.budgets import Need, find_limits, read_budgets
from throughline.tuning.findings import NOT_RACED, summarize
from throughline.tuning.journal import Entrance, Journal
from throughline.tuning.key import digest_question, without_tuned
from throughline.tuning.pool import SearchPool
from throughline.tuning.question import Question, survey_data
from throughline.tuning.search import Search
from throughline.tuning.space import CEILING
from throughline.tuning.survey import survey

pytestmark = pytest.mark.integration

PARAMS = check({**SMALL, "batch_size": 4})  # epochs of 30 steps


@pytest.fixture(scope="module")
def prepared(layout, tmp_path_factory):
    """A project with prepared data, of which snapshot has said how long it took."""
    linked = link_data(layout.root / "data", tmp_path_factory.mktemp("searched"))
    replace(made_up(SnapshotCost), seconds=0.5).write(linked.root / "data")
    return linked


@pytest.fixture(scope="module")
def surveyed(prepared):
    """What a survey of it finds, with a made-up need of memory besides the steps."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("throughline.tuning.survey.measure_besides_steps", lambda *_: 64 << 20)
        return survey(PARAMS, prepared.root, [], find_limits(read_budgets(), prepared.root))


def question_about(layout, params, **budgets):
    given = read_budgets(**{"epochs": 3, **budgets})
    limits = find_limits(given, layout.root)
    return Question(params=params, root=layout.root, budgets=given, limits=limits)


def rate_of(name):
    """A made-up rate: snapshots are the fastest, and the model alone is faster still."""
    of_kind = {CEILING: 2000.0, "naive": 100.0, "heuristic": 300.0, "snapshot": 900.0}
    return of_kind.get(name.partition(" ")[0], 200.0)


@pytest.fixture
def contestants(monkeypatch):
    """Contestants that are no processes, with nobody else at work; all examples are proven."""
    made = Contestants(rate_of)
    monkeypatch.setattr("throughline.race.pool.Contestant", made)
    for module in ("race", "tuning"):
        monkeypatch.setattr(f"throughline.{module}.pool.OtherProcesses", Others)
    monkeypatch.setattr("throughline.tuning.question.do_once", lambda *_, **__: "digest")
    return made


@pytest.fixture
def search_in(prepared, surveyed, contestants, monkeypatch):
    """A function that opens a search of the surveyed data with the journal of a folder."""
    monkeypatch.setattr("throughline.tuning.search.survey_data", lambda *_: surveyed)

    def opened(folder, *, racing=True, **budgets):
        folder.mkdir(exist_ok=True)
        search = Search(question_about(prepared, PARAMS, **budgets), Journal(folder))
        search._racing_until = math.inf if racing else 0.0
        return search

    return opened


def add_rounds(search, rates, *, phase="own", count=5):
    for one in rounds({name: [rate] * count for name, rate in rates.items()}):
        search.journal.add(replace(one, heat=phase))


def test_a_search_races_every_kind_and_goes_on_from_its_journal(search_in, tmp_path):
    early = search_in(tmp_path, racing=False, disk="1kB")
    assert early.run().outcome == "undecided", "the time was up before the first family"
    search = search_in(tmp_path, disk="1kB")
    choice = search.run()
    assert search.race.rounds[: len(early.race.rounds)] == early.race.rounds, "it goes on there"
    names = search.race.names
    assert {CEILING, "naive", "heuristic", "autotune"} < set(names), "and forms of families"
    assert (choice.outcome, choice.name, choice.baseline) == ("found", "heuristic", "naive")
    assert search.journal.pages.proven == {"heuristic": "digest"}
    result = summarize(search, choice, searched_s=1.0)
    result.write(tmp_path)
    assert TuningResult.read(tmp_path) == result and result.sentence.startswith("tuned: ")
    raced = {row.name for row in result.candidates if row.examples_per_s is not None}
    assert raced == {*names} - {CEILING}
    unraced = {row.name: row.dropped for row in result.candidates if row.name not in names}
    assert "of disk (allowed: 1 kiB)" in unraced["optimized"]
    assert result.needed.disk_bytes <= 1000 < min(each.disk_bytes for each in result.refused)
    assert NOT_RACED in unraced.values(), "of most forms"

    again = search_in(tmp_path, racing=False, disk="1kB")
    assert again.run().name == choice.name
    assert again.race.rounds == search.race.rounds, "nothing is raced twice"


def test_where_the_input_is_a_negligible_part_nothing_else_is_raced(search_in, tmp_path):
    search = search_in(tmp_path)
    given = [name for name in search.candidates if not search._is_searched(name)]
    add_rounds(search, {CEILING: 100.0, **dict.fromkeys(given, 98.0)}, count=3)
    assert search.run().outcome == "compute-bound"
    assert len(search.race.rounds) == 3


def test_the_race_goes_on_without_one_that_is_killed(search_in, contestants, tmp_path, monkeypatch):
    monkeypatch.setattr("throughline.race.pool.usable_cores", lambda: 1)  # opened at a time
    search = search_in(tmp_path)
    with search.open_pool() as pool:
        pool.open(["naive", "optimized"], until=0.0)
        assert pool.names == ["naive"], "the time is up when the first is open"
        pool.open(["naive", "optimized"])
        contestants.killed.add("naive")
        one = pool.race(["naive", "optimized"], "own", number=0)
        assert one.turns.keys() == {"optimized"}
        assert pool.names == ["optimized"]
    assert "killed by SIGKILL" in search.journal.pages.dropped["naive"]
    assert search.journal.pages.lost == ["naive"], "it may race the next time"


def test_one_that_takes_more_memory_than_is_allowed_is_out(search_in, tmp_path):
    search = search_in(tmp_path, racing=False)
    allowed = {"ram_bytes": 1.0, "besides_steps_bytes": 0.0, "sampled_share": 1.0}
    with SearchPool(search.job, search.needs, search.journal, **allowed) as narrow:
        narrow.open(["optimized"])
        assert narrow.names == []
    assert "of memory (allowed: 0 kiB)" in search.journal.pages.dropped["optimized"]
    entrance = Entrance(cost=Cost(), ram_bytes=2.0**60, held_bytes=2.0**60)
    for each in search.survey.space.candidates:
        search.journal.enter(each.name, entrance)
        search.journal.drop(each.name, "takes too much")
    with pytest.raises(InvalidBudget, match=r"needs 1073741824\.0 GiB"):
        search.run()


def test_a_cache_is_filled_once_more_while_others_are_at_work_and_not_when_the_time_is_up(
    search_in, contestants, tmp_path, monkeypatch
):
    monkeypatch.setattr("throughline.race.pool.usable_cores", lambda: 1)
    search = search_in(tmp_path)
    cached = search._searched_families["cache_memory"][0].name
    contestants.caches.add(cached)
    with monkeypatch.context() as patch, search.open_pool() as pool:
        patch.setattr("throughline.tuning.pool.OtherProcesses", lambda: Others(60.0))
        pool.open([cached])
    (filled,) = search.journal.pages.rounds
    assert filled.disturbed, "others were at work both times"
    assert search.journal.pages.entrances[cached].disturbed
    with search.open_pool() as pool:
        pool.open(["autotune", cached], until=0.0)
        assert pool.names == ["autotune"] and cached not in search.journal.pages.dropped


def test_where_one_of_ones_own_was_lost_nothing_is_decided(search_in, tmp_path):
    search = search_in(tmp_path)
    add_rounds(search, {CEILING: 900.0, "naive": 100.0, "optimized": 700.0, "heuristic": 150.0})
    search.journal.drop(CEILING, "was killed by SIGKILL", transient=True)
    assert search._choose(search.rivals).name == "optimized", "the model alone is no rival"
    search.journal.drop("optimized", "was killed by SIGKILL", transient=True)
    choice = search._choose(search.rivals)
    assert choice.outcome == "undecided"
    assert choice.reason == "`optimized`, one of your own, dropped out: was killed by SIGKILL"


def test_epochs_of_a_few_steps_are_not_searched(prepared, surveyed, tmp_path, monkeypatch):
    short = replace(surveyed, steps_per_epoch=4)
    monkeypatch.setattr("throughline.tuning.question.do_once", lambda *_, **__: short)
    with pytest.raises(Untunable, match="an epoch has 4 steps, but at least 20 are needed"):
        survey_data(question_about(prepared, PARAMS), tmp_path)


def test_the_same_question_has_the_same_key(prepared, monkeypatch):
    monkeypatch.setattr("throughline.tuning.key.code_digest", lambda *_, **__: "the program")
    params = PARAMS

    def key(params=params, own_files=(), needs=None, **budgets):
        given = read_budgets(**{"epochs": 3, **budgets})
        own = {"own_files": own_files, "needs": needs}
        return digest_question(without_tuned(params), prepared, given, **own)

    before = key()
    assert key() == before != key(epochs=4)
    assert key(time="9min") == before, "more time, the same question"
    hours = [key(ram="1GiB", prepare="1h"), key(ram="1024MiB", prepare="60min")]
    assert hours[0] == hours[1] != before, "however a budget is written"
    assert key(epochs=params.train.epochs) == key(epochs="auto"), "the training's"
    assert key(needs={"files": {"table.npy": "digest"}, "libraries": {}}) != before
    assert key(replace(params, batch_size=7)) != before
    tuned = {**params.pipelines, "tuned": params.pipelines["optimized"]}
    assert key(replace(params, pipelines=tuned)) == before, "an answer changes no question"
    file = prepared.root / "vocabulary.txt"
    keys = set()
    for content in "ab":
        file.write_text(content)
        keys.add(key(own_files=[file.name]))
    assert len(keys) == 2, "a file is its contents"
    monkeypatch.setattr("throughline.tuning.key.read_cpu_name", lambda: "another CPU")
    assert key() != before, "the same name, on another machine"
    alone = without_tuned(replace(params, pipelines={"tuned": params.pipelines["optimized"]}))
    assert list(alone.pipelines) == ["naive"]


def test_a_journal_is_read_as_it_was_written(tmp_path):
    journal = Journal(tmp_path)
    journal.enter("a", Entrance(cost=Cost(prepare_s=1.0), ram_bytes=2.0, held_bytes=1.0))
    journal.drop("b", "why")
    journal.drop("b", "another reason")
    turns = {"a": Turn(examples=1.0, seconds=1.0), "c": Turn(examples=2.0, seconds=1.0)}
    calm = Round(heat="own", turns=turns, others_pct=3.0, busiest="x")
    loud = replace(calm, others_pct=30.0)
    for one in (calm, loud, calm):
        journal.add(one)
    journal.note_proof("a", "digest")
    journal.refute("d", "other examples")
    assert journal.pages.dropped == {"b": "why", "d": "other examples"}
    again = Journal(tmp_path)
    assert again.pages.dropped == {"d": "other examples"}, "who was lost is tried again"
    assert replace(again.pages, dropped=journal.pages.dropped) == journal.pages
    assert again.rounds_of("own", ["a"]) == 3
    assert again.rounds_of("own", ["a", "b"]) == again.rounds_of("final", ["a"]) == 0
    again.forget_disturbed()
    assert Journal(tmp_path).pages.rounds == [calm, calm]
    filled = Entrance(cost=Cost(fill_s=9.0), ram_bytes=2.0, held_bytes=1.0, disturbed=True)
    again.enter("c", filled)
    again.forget_disturbed()
    assert Journal(tmp_path).pages.entrances.keys() == {"a"}
    alone = replace(calm, turns={"a": calm.turns["a"]})
    assert Journal(tmp_path).pages.rounds == [alone, alone], "it is raced again, with its first"
    (tmp_path / "journal.json").write_text("{")
    assert Journal(tmp_path).pages.rounds == [], "a damaged one is begun again"


def test_contestants_are_opened_in_groups_that_memory_has_room_for(tmp_path):
    sizes = {"small": 1.0, "other": 2.0, "huge": 1e18, CEILING: 1.0}
    needs = {name: Need(ram_bytes=size, disk_bytes=0, prepare_s=0) for name, size in sizes.items()}
    journal = Journal(tmp_path)

    def groups(sampled_share):
        allowed = {"ram_bytes": 1e18, "besides_steps_bytes": 0.0, "sampled_share": sampled_share}
        with SearchPool(lambda name: (name, None), needs, journal, **allowed) as pool:
            return list(pool.groups(["small", "huge", "other"], together_with=[]))

    assert groups(1.0) == [["small"], ["huge"], ["other"]]
    assert groups(1e-18) == [["small", "huge", "other"]], "a contestant holds a sample"
    journal.enter("huge", Entrance(cost=Cost(), ram_bytes=1e18, held_bytes=3.0))
    assert groups(1.0) == [["small", "huge", "other"]], "and what it holds was seen"


def test_the_disk_that_the_snapshot_takes_is_there_for_it(tmp_path):
    taken = tmp_path / "data" / "snapshot" / "train"
    taken.parent.mkdir(parents=True)
    with taken.open("wb") as file:
        file.truncate(1 << 43)  # a hole takes no disk
    assert find_limits(read_budgets(), tmp_path).disk_bytes > 1 << 43
    assert find_limits(read_budgets(disk="1GiB"), tmp_path).disk_bytes == 1 << 30
