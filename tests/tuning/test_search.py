"""A search over a few real contestants on small data: it races, chooses, and goes on from its
journal.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from copy import copy
from dataclasses import replace

import pytest

from tests.support.made_up import made_up
from tests.support.prepared import link_data
from tests.support.project import SMALL
from tests.support.races import other_programs, rounds
from tests.support.trainings import params_of
from throughline.config.params import check
from throughline.results.snapshot import SnapshotCost
from throughline.results.tuning import TuningResult
from throughline.shared.errors import InvalidBudget, Untunable
from throughline.tuning.budgets import find_limits, read_budgets
from throughline.tuning.findings import NOT_RACED, summarize
from throughline.tuning.journal import Entrance, Journal
from throughline.tuning.key import digest_question, without_tuned
from throughline.tuning.needs import Need
from throughline.tuning.pool import Pool
from throughline.tuning.question import Question
from throughline.tuning.race import Cost, Round
from throughline.tuning.search import Search
from throughline.tuning.space import CEILING

LONG_EPOCHS = {"batch_size": 4}  # of 30 steps


@pytest.fixture
def prepared(layout, tmp_path):
    """A project with prepared data, of which snapshot has said how long it took."""
    linked, cost = link_data(layout.root / "data", tmp_path), made_up(SnapshotCost)
    replace(cost, seconds=0.5).write(tmp_path / "data")
    return linked


def question_about(layout, params, **budgets):
    given = read_budgets(**{"epochs": 3, "time": "1min", **budgets})
    return Question(
        params=params, root=layout.root, budgets=given, limits=find_limits(given, layout.root)
    )


def with_journal(search, folder):
    """The same search, surveyed already, with the journal of this folder."""
    other = copy(search)
    other.journal = Journal(folder)
    return other


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_races_every_kind_and_goes_on_from_its_journal(prepared, tmp_path, monkeypatch):
    few = {"ROUNDS": 3, "FINAL_ROUNDS": 4, "MOST_FAMILIES": 1, "FORMS_EACH": 2, "MOST_FINALISTS": 2}
    for name, fewer in few.items():
        monkeypatch.setattr(f"throughline.tuning.search.{name}", fewer)
    params = check({**SMALL, **LONG_EPOCHS})
    question = question_about(prepared, params, disk="1kB")  # fewer families
    early = Search(question, Journal(tmp_path))
    early._racing_until = 0.0
    first = early.run()
    assert first.outcome == "undecided", "the time was up before the first family"
    search = with_journal(early, tmp_path)
    search._racing_until = time.monotonic() + 120
    choice = search.run()
    assert search.race.rounds[: len(early.race.rounds)] == early.race.rounds, "it goes on there"
    names = search.race.names
    assert {CEILING, "naive", "heuristic", "autotune"} <= set(names)
    assert len(names) > 4, "and forms of families"
    assert all(search.race.rate(name) > 0 for name in names)
    assert choice.baseline == "naive"
    result = summarize(search, choice, searched_s=1.0)
    assert result.sentence.startswith("tuned: ")
    result.write(tmp_path)
    assert TuningResult.read(tmp_path) == result
    raced = {row.name for row in result.candidates if row.examples_per_s is not None}
    assert raced == {*names} - {CEILING}
    unraced = {row.name: row.dropped for row in result.candidates if row.name not in names}
    assert "of disk, 1 kiB are allowed" in unraced["optimized"]
    assert NOT_RACED in unraced.values(), "of most forms"
    if choice.outcome == "found":
        assert search.journal.pages.proven.keys() == {choice.name}

    again = with_journal(search, tmp_path)
    before = list(again.journal.pages.rounds)
    assert again.journal.pages.rounds == search.journal.pages.rounds
    again._racing_until = 0.0
    assert again.run().name == choice.name
    assert again.race.rounds == before, "nothing is raced twice"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_lead_that_fit_does_not_confirm_gives_way_to_the_next(prepared, tmp_path):
    params = check({**SMALL, **LONG_EPOCHS, "pipelines": {"naive": {"read": "shards"}}})
    search, leads = Search(question_about(prepared, params), Journal(tmp_path)), {}
    bound = with_journal(search, tmp_path / "bound")
    rates = {CEILING: 100.0, "naive": 98.0, "heuristic": 98.0, "autotune": 98.0}
    for one in rounds({name: [rate] * 3 for name, rate in rates.items()}):
        bound.journal.add(replace(one, heat="own"))
    assert bound.run().outcome == "compute-bound"
    assert len(bound.race.rounds) == 3, "as soon as that is certain, nothing else is raced"
    for family in ("stream", "indexed_shards"):
        leads[search._searched_families[family][0].name] = 130.0
    rates = {CEILING: 900.0, "naive": 100.0, "heuristic": 90.0, "autotune": 90.0, **leads}
    for one in rounds({name: [rate] * 5 for name, rate in rates.items()}):
        search.journal.add(replace(one, heat="own"))
    search._racing_until = 0.0
    first = search._choose(search.rivals).name
    (second,) = {*leads} - {first}
    for name in leads:
        search.journal.note_fits(f"{name} against naive", (90.0, 100.0))
        search.journal.note_fits(f"{name} against naive", (90.0, 100.0))
    choice = search.run()
    assert (choice.name, choice.outcome) == ("naive", "undecided"), "other families have not raced"
    assert choice.reason.count("by fit in fresh processes it takes 1.11 times as long") == 2
    again = with_journal(search, tmp_path)
    again.journal.pages.fits[f"{second} against naive"] = [(120.0, 100.0)] * 2
    choice = again.run()
    assert (choice.name, choice.outcome) == (second, "found")
    assert again.journal.pages.proven.keys() == {second}
    dropped = {row.name: row.dropped for row in summarize(again, choice, searched_s=1.0).candidates}
    assert "by fit" in dropped[first]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_race_goes_on_without_one_that_is_killed(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr("throughline.tuning.pool.usable_cores", lambda: 1)  # opened at a time
    params = check({**SMALL, **LONG_EPOCHS})
    search = Search(question_about(prepared, params), Journal(tmp_path))
    with search.open_pool() as pool:
        pool.open(["naive", "optimized"], until=0.0)
        assert pool.names == ["naive"], "the time is up when the first is open"
        pool.open(["naive", "optimized"])
        victim = pool._open["naive"][0]
        os.kill(victim.process, signal.SIGKILL)
        one = pool.race(["naive", "optimized"], "own", number=0)
        assert one.rates.keys() == {"optimized"}
        assert pool.names == ["optimized"]
    assert "killed by SIGKILL" in search.journal.pages.dropped["naive"]
    assert search.journal.pages.lost == ["naive"], "it may race the next time"
    allowed = {"ram_bytes": 1.0, "besides_steps_bytes": 0.0, "sampled_share": 1.0}
    with Pool(search.job, search.needs, search.journal, **allowed) as narrow:
        narrow.open(["optimized"])
        assert narrow.names == []
    assert "of memory, 0 kiB are allowed" in search.journal.pages.dropped["optimized"]
    cached = search._searched_families["cache_memory"][0].name
    with other_programs(), search.open_pool() as pool:
        pool.open([cached])
    (filled,) = search.journal.pages.rounds
    assert filled.disturbed, "others were at work while its cache was filled, twice"
    assert search.journal.pages.entrances[cached].disturbed
    with search.open_pool() as pool:
        with monkeypatch.context() as patch:
            patch.setattr("throughline.tuning.pool.LEAST_FILL_S", 0.0)
            pool.open([cached], until=0.0)
        assert pool.names == [] and cached not in search.journal.pages.dropped, "only given up"
        pool.open(["autotune", cached], until=0.0)
        assert pool.names == ["autotune"], "no cache is filled when the time is up"
    for each in search.survey.space.candidates:
        entrance = Entrance(cost=Cost(), ram_bytes=2.0**60, held_bytes=2.0**60)
        search.journal.enter(each.name, entrance)
        search.journal.drop(each.name, "takes too much")
    search._racing_until = 0.0
    with pytest.raises(InvalidBudget, match=r"The least that one needs is 1073741824\.0 GiB"):
        search.run()


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_where_one_of_ones_own_was_lost_nothing_is_decided(prepared, tmp_path):
    params = check({**SMALL, **LONG_EPOCHS})
    search = Search(question_about(prepared, params), Journal(tmp_path))
    search._racing_until = 0.0
    rates = {CEILING: 900.0, "naive": 100.0, "optimized": 700.0, "heuristic": 150.0}
    for one in rounds({name: [rate] * 5 for name, rate in rates.items()}):
        search.journal.add(one)
    search.journal.drop(CEILING, "was killed by SIGKILL", passing=True)
    assert search._choose(search.rivals).name == "optimized", "the model alone is no rival"
    search.journal.drop("optimized", "was killed by SIGKILL", passing=True)
    choice = search.run()
    assert choice.outcome == "undecided"
    assert choice.reason == "`optimized`, one of your own, was killed by SIGKILL"


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_epochs_of_a_few_steps_are_not_searched(prepared, tmp_path):
    with pytest.raises(Untunable, match="an epoch has 4 steps, and at least 20 are needed"):
        Search(question_about(prepared, check(SMALL)), Journal(tmp_path))


def test_the_same_question_has_the_same_key(prepared, monkeypatch):
    params, budgets = params_of(), read_budgets(epochs=3)

    def key(params=params, budgets=budgets):
        return digest_question(without_tuned(params), prepared, budgets, own_files=[])

    assert key() == key()
    assert key(budgets=read_budgets(epochs=4)) != key()
    assert key(budgets=read_budgets(epochs=3, time="9min")) == key(), "more time, the same question"
    hours = [read_budgets(ram="1GiB", prepare="1h"), read_budgets(ram="1024MiB", prepare="60min")]
    assert key(budgets=hours[0]) == key(budgets=hours[1]), "however a budget is written"
    epochs = read_budgets(epochs=params.train.epochs)
    assert key(budgets=epochs) == key(budgets=read_budgets()), "auto is the training's"
    files = {"files": {"table.npy": "digest"}, "libraries": {}}
    assert digest_question(params, prepared, budgets, own_files=[], needs=files) != key()
    assert key(replace(params, batch_size=7)) != key()
    tuned = {**params.pipelines, "tuned": params.pipelines["snapshot"]}
    assert key(replace(params, pipelines=tuned)) == key(), "an answer does not change its question"
    file = prepared.root / "vocabulary.txt"
    file.write_text("a")
    keys = {digest_question(params, prepared, budgets, own_files=[file.name])}
    file.write_text("b")
    keys.add(digest_question(params, prepared, budgets, own_files=[file.name]))
    assert len(keys) == 2, "a file is its contents"
    before = key()
    monkeypatch.setattr("throughline.tuning.key.read_cpu_name", lambda: "another CPU")
    assert key() != before, "the same name, on another machine"
    alone = without_tuned(replace(params, pipelines={"tuned": params.pipelines["snapshot"]}))
    assert list(alone.pipelines) == ["naive"]


def test_a_journal_is_read_as_it_was_written(tmp_path):
    journal = Journal(tmp_path)
    journal.enter("a", Entrance(cost=Cost(prepare_s=1.0), ram_bytes=2.0, held_bytes=1.0))
    journal.drop("b", "why")
    journal.drop("b", "another reason")
    calm = Round(heat="own", rates={"a": 1.0, "c": 2.0}, others_pct=3.0, busiest="x")
    loud = replace(calm, others_pct=30.0)
    for one in (calm, loud, calm):
        journal.add(one)
    journal.note_prices({"a": 5.0})
    journal.note_fits("a against b", (7.0, 8.0))
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
    alone = replace(calm, rates={"a": 1.0})
    assert Journal(tmp_path).pages.rounds == [alone, alone], "it is raced again, with its first"
    (tmp_path / "journal.json").write_text("{")
    assert Journal(tmp_path).pages.rounds == [], "a damaged one is begun again"


def test_a_disk_that_fills_meanwhile_leaves_the_journal_as_it_was(small_disk):
    journal = Journal(small_disk)
    journal.note_prices({"a": 5.0})
    with (small_disk / "rest").open("wb", buffering=0) as rest, suppress(OSError):
        while True:
            rest.write(bytes(1 << 12))
    with pytest.raises(OSError, match="No space left"):
        journal.drop("b", "why" * 10_000)
    assert Journal(small_disk).pages.predicted == {"a": 5.0}
    assert [path.name for path in small_disk.iterdir() if path.name != "rest"] == ["journal.json"]


def test_contestants_are_opened_in_groups_that_memory_has_room_for(tmp_path):
    needs = {
        name: Need(ram_bytes=size, disk_bytes=0.0, prepare_s=0.0)
        for name, size in {"small": 1.0, "other": 2.0, "huge": 1e18, CEILING: 1.0}.items()
    }
    journal = Journal(tmp_path)
    allowed = {"ram_bytes": 1e18, "besides_steps_bytes": 0.0}

    def groups(sampled_share):
        pool = Pool(
            lambda name: (name, None), needs, journal, **allowed, sampled_share=sampled_share
        )
        with pool:
            return list(pool.groups(["small", "huge", "other"], together_with=[]))

    assert groups(1.0) == [["small"], ["huge"], ["other"]]
    assert groups(1e-18) == [["small", "huge", "other"]], "a contestant holds a sample"
    journal.enter("huge", Entrance(cost=Cost(), ram_bytes=1e18, held_bytes=3.0))
    assert groups(1.0) == [["small", "huge", "other"]], "and what it holds was seen"


def test_the_disk_that_the_snapshot_takes_is_there_for_it(prepared):
    (prepared.root / "data" / "snapshot").unlink()
    (prepared.root / "data" / "snapshot").mkdir()
    taken = prepared.root / "data" / "snapshot" / "train"
    with taken.open("wb") as file:
        file.truncate(1 << 43)  # a hole takes no disk
    assert find_limits(read_budgets(), prepared.root).disk_bytes > 1 << 43
    assert find_limits(read_budgets(disk="1GiB"), prepared.root).disk_bytes == 1 << 30
