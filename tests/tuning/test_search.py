"""A search: its budgets, what it looks at first, and that it races, chooses and goes on from its
journal, over contestants of given rates.
"""

import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.made_up import made_up
from tests.support.prepared import link_data, take_snapshot
from tests.support.project import SMALL, environment, write_params
from tests.support.races import Contestants, Others, rounds
from tests.support.small_data import flip_bit
from tests.support.stack import wait_for
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check, load_params
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.race.jobs import Entry
from throughline.race.training import sample_shards
from throughline.reporting.tuning_table import NOT_RACED
from throughline.results.race import Cost, Round, Turn
from throughline.results.snapshot import SnapshotCost
from throughline.results.tuning import TuningResult
from throughline.settings import PipelineConfig
from throughline.shared.errors import InvalidBudget, UnequalConfigurations, Untunable
from throughline.shared.limits import own_memory
from throughline.tuning.budgets import Need, find_limits, read_budgets, refuse_large_snapshot
from throughline.tuning.journal import Admission, Journal
from throughline.tuning.pool import SearchPool
from throughline.tuning.question import Question, digest_question, survey_data, without_tuned
from throughline.tuning.search import Search, summarize
from throughline.tuning.space import CEILING
from throughline.tuning.survey import SnapshotBytes, prove_equal, survey, watched

pytestmark = pytest.mark.integration

PARAMS = check({**SMALL, "batch_size": 4})  # epochs of 30 steps


@pytest.fixture(scope="module")
def prepared(layout, tmp_path_factory):
    """A project with prepared data, of which snapshot has said how long it took."""
    linked = link_data(layout.root / "data", tmp_path_factory.mktemp("searched"))
    replace(made_up(SnapshotCost), seconds=0.5).write(linked.root / "data")
    return linked


@pytest.fixture(scope="module")
def look_at(prepared):
    """A function that surveys a project within limits. What a training holds besides its steps,
    which takes a training to measure, is made up.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("throughline.tuning.survey.measure_besides_steps", lambda *_: 64 << 20)

        def look(params=PARAMS, root=prepared.root, **limits):
            found = find_limits(read_budgets(), root)
            return survey(params, root, [], replace(found, **limits))

        yield look


@pytest.fixture(scope="module")
def surveyed(look_at):
    return look_at()


def test_needs_are_what_is_kept_besides_a_process_and_the_shards(prepared, surveyed):
    data = open_inputs(PARAMS, prepared)
    assert surveyed.examples == data.shards.examples("train")
    assert surveyed.steps_per_epoch == -(-surveyed.examples // PARAMS.batch_size)
    needs = {each.family: surveyed.needs[each.name] for each in surveyed.space.candidates}
    stored = sum(data.snapshot.bytes(split) for split in data.shards.splits)  # held-out ones, too
    records = sum(shard.bytes for shard in data.shards.shards)
    plain = needs["stream"].ram_bytes
    assert plain > 50 * 2**20, "a process with TensorFlow"
    assert needs["stream"] == Need(ram_bytes=plain, disk_bytes=0.0, prepare_s=0.0)
    assert needs["snapshot"] == Need(ram_bytes=plain, disk_bytes=stored, prepare_s=0.5)
    buffered = 2 * (surveyed.examples // 20) / surveyed.examples * data.snapshot.bytes("train")
    in_memory, on_disk = needs["cache_memory"], needs["cache_disk"]
    assert in_memory.ram_bytes - plain == pytest.approx(stored + buffered)
    assert on_disk.ram_bytes - plain == pytest.approx(buffered)
    assert (in_memory.kept_bytes, on_disk.kept_bytes) == (stored, 0.0)
    assert on_disk.disk_bytes == on_disk.written_bytes == stored
    assert needs["arrays"].kept_bytes == records
    assert needs["arrays"].ram_bytes > plain + 2 * records, "while they are parsed"


@pytest.mark.parametrize(
    ("disk", "memory", "fitting"),
    [(1100, 800, 1.0), (400, 800, 0.3), (50, 800, 0.0), (1100, 400, 0.5), (1100, -5, 0.0)],
)
def test_a_part_fits_that_leaves_neither_disk_nor_memory_short(disk, memory, fitting):
    sizes = SnapshotBytes(least=100, most=1100, train=800)
    assert sizes.find_fitting(disk, memory) == fitting
    assert sizes.at(fitting) <= max(disk, sizes.least)


def test_more_of_a_snapshot_than_the_disk_has_room_for_is_refused(layout):
    data = open_inputs(check(SMALL), layout)
    splits, column = data.shards.splits, data.input_column
    whole = sum(map(data.snapshot.bytes, splits))
    values = sum(data.snapshot.splits[one].bytes(column) for one in splits)
    part, naive = f"{whole - 0.6 * values + 1:.0f}B", {"naive": {"read": "shards"}}

    def refuse(disk, fraction=1.0, pipelines=naive):
        params = {**SMALL, "snapshot": {"fraction": fraction}, "pipelines": pipelines}
        refuse_large_snapshot(check(params), layout.root, read_budgets(disk=disk))

    for fits in (("available",), (f"{whole}B",), (part, 0.4)):
        refuse(*fits)
    for disk, pipelines, said in (
        (part, naive, r"fraction: 0\.4}` in params\.yaml .* raise --disk"),
        (part, SMALL["pipelines"], r"in params\.yaml and pipelines\.optimized stores"),
        ("1B", naive, r"needs 27 kiB of disk \(allowed: .*\); raise --disk"),
    ):
        with pytest.raises(InvalidBudget, match=said):
            refuse(disk, pipelines=pipelines)


def entry_of(layout, params=PARAMS, **config):
    """A contestant of this configuration, or of `optimized`."""
    config = PipelineConfig(**config) if config else params.pipelines["optimized"]
    return Entry(params=params, root=layout.root, name="own", config=config)


@pytest.mark.slow
def test_a_part_needs_what_is_stored_and_its_examples_are_proven(prepared, look_at, tmp_path):
    part = {"read": "snapshot", "shuffle": {"kind": "global"}, "snapshot": {"fraction": 0.5}}
    halved = check({**SMALL, "pipelines": {"naive": {"read": "shards"}, "part": part}})
    linked = link_data(prepared.root / "data", tmp_path, snapshot=False)
    made_up(SnapshotCost).write(tmp_path / "data")
    written = take_snapshot(halved, linked)
    seen = look_at(halved, tmp_path)
    stored = sum(map(written.bytes, written.splits))
    assert seen.needs["part"].disk_bytes == pytest.approx(stored, rel=0.01)
    assert "50% of the snapshot's rows are stored" in dict(seen.space.refusals)["snapshot"]
    whole, cached = entry_of(prepared), entry_of(prepared, cache={"where": "memory"})
    digests = {prove_equal(each) for each in (entry_of(linked, halved, **part), whole, cached)}
    assert len(digests) == 1


def test_a_snapshot_with_another_pixel_is_no_proof(layout, tmp_path):
    changed = link_data(layout.root / "data", tmp_path, snapshot=False)
    shutil.copytree(layout.snapshot, changed.snapshot)
    flip_bit(changed.snapshot / "train" / "image.bin", 0)
    with pytest.raises(UnequalConfigurations, match="examples of the train split differ"):
        prove_equal(entry_of(changed, read="shards"))


def test_a_sample_is_the_first_shards_with_each_class_that_is_drawn(prepared, monkeypatch):
    data = open_inputs(PARAMS, prepared)
    labels, whole = np.array(data.memmap("train", "label")), data.shards.for_split("train")
    assert sample_shards(data).shards.for_split("train") == whole, "all of a small set"
    monkeypatch.setattr("throughline.race.training.SAMPLE_BYTES", whole[0].bytes)
    sampled = sample_shards(data).shards
    assert sampled.for_split("train") == whole[:1]
    assert sampled.for_split("test") == data.shards.for_split("test")
    labels[:] = 0
    labels[whole[0].examples + 1] = 1  # in the second shard
    monkeypatch.setattr(PreparedData, "memmap", lambda *_: labels)
    first, second = data.shards.classes[:2]

    def count(*drawn: str) -> int:
        weights = {name: float(name in drawn) for name in data.shards.classes}
        return len(sample_shards(data, weights).shards.for_split("train"))

    assert (count(first), count(first, second)) == (1, 2)


def test_the_most_that_a_block_holds_is_seen(monkeypatch):
    held = [1]
    monkeypatch.setattr("throughline.tuning.survey.own_memory", lambda: held[0])
    with watched() as samples:
        held[0] = 9
        wait_for(lambda: 9 in samples)
        held[0] = 1
    assert (max(samples), samples[-1]) == (9, 1)


def question_about(root, params=PARAMS, **budgets):
    given = read_budgets(**{"epochs": 3, **budgets})
    return Question(params=params, root=root, budgets=given, limits=find_limits(given, root))


@pytest.mark.slow
def test_a_training_takes_no_more_than_its_search_says(first, tmp_path):
    folder, _ = first
    train = {**SMALL["train"], "epochs": 8, "early_stopping": {"patience": 20}}
    model = {"name": "mlp", "options": {"width": 8000}}
    write_params(folder, {**SMALL, "batch_size": 4, "model": model, "train": train})
    params = load_params(folder / "params.yaml")
    search = Search(question_about(folder, params, epochs=8), Journal(tmp_path))
    with search.open_pool() as pool:
        pool.open(["naive"])
    said, most = search.measured_needs["naive"].ram_bytes, 0
    command = [sys.executable, "-m", "tasks.train", "--pipeline", "naive"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder)) as training:
        while training.poll() is None:
            most = max(most, own_memory(Path(f"/proc/{training.pid}")))
            time.sleep(0.02)
    assert training.returncode == 0 and 0 < most < said


@pytest.fixture
def contestants(monkeypatch):
    """Contestants that are no processes, with nobody else at work; all examples are proven.
    Snapshots are the fastest, and the model alone is faster still.
    """
    rates = {CEILING: 2000.0, "naive": 100.0, "heuristic": 300.0, "snapshot": 900.0}
    made = Contestants(lambda name: rates.get(name.partition(" ")[0], 200.0))
    monkeypatch.setattr("throughline.race.pool.Contestant", made)
    for module in ("race", "tuning"):
        monkeypatch.setattr(f"throughline.{module}.pool.OtherProcesses", Others)
    monkeypatch.setattr("throughline.tuning.question.do_once", lambda *_, **__: "digest")
    return made


@pytest.fixture
def open_search(prepared, surveyed, contestants, tmp_path, monkeypatch):
    """A function that opens a search of the surveyed data with the journal of the test."""
    monkeypatch.setattr("throughline.tuning.search.survey_data", lambda *_: surveyed)

    def opened(*, racing=True, **budgets):
        search = Search(question_about(prepared.root, **budgets), Journal(tmp_path))
        search._racing_until = math.inf if racing else 0.0
        return search

    return opened


def add_rounds(search, rates, *, count=5):
    for one in rounds({name: [rate] * count for name, rate in rates.items()}, phase="own"):
        search.journal.add(one)


def test_a_search_races_every_kind_and_goes_on_from_its_journal(open_search, tmp_path):
    early = open_search(racing=False, disk="1kB")
    assert early.run().outcome == "undecided", "the time was up before the first family"
    search = open_search(disk="1kB")
    choice = search.run()
    assert search.race.rounds[: len(early.race.rounds)] == early.race.rounds, "it goes on there"
    names = search.race.names
    assert {CEILING, "naive", "heuristic", "autotune"} < set(names), "and forms of families"
    assert (choice.outcome, choice.name, choice.baseline) == ("found", "heuristic", "naive")
    assert search.journal.content.proven == {"heuristic": "digest"}
    result = summarize(search, choice, searched_s=1.0)
    result.write(tmp_path)
    assert TuningResult.read(tmp_path) == result and result.sentence.startswith("tuned: ")
    raced = {row.name for row in result.candidates if row.examples_per_s is not None}
    assert raced == {*names} - {CEILING}
    unraced = {row.name: row.dropped for row in result.candidates if row.name not in names}
    assert "of disk (allowed: 1 kiB)" in unraced["optimized"]
    assert result.needed.disk_bytes <= 1000 < min(each.disk_bytes for each in result.refused)
    assert NOT_RACED in unraced.values(), "of most forms"
    again = open_search(racing=False, disk="1kB")
    assert again.run().name == choice.name
    assert again.race.rounds == search.race.rounds, "nothing is raced twice"


def test_where_the_input_is_a_negligible_part_nothing_else_is_raced(open_search):
    search = open_search()
    given = [name for name in search.candidates if not search._is_searched(name)]
    add_rounds(search, {CEILING: 100.0, **dict.fromkeys(given, 98.0)}, count=3)
    assert search.run().outcome == "compute-bound"
    assert len(search.race.rounds) == 3


def test_the_race_goes_on_without_one_that_is_killed(open_search, contestants, monkeypatch):
    monkeypatch.setattr("throughline.race.pool.usable_cores", lambda: 1)  # opened at a time
    search = open_search()
    with search.open_pool() as pool:
        pool.open(["naive", "optimized"], until=0.0)
        assert pool.names == ["naive"], "the time is up when the first is open"
        pool.open(["naive", "optimized"])
        contestants.killed.add("naive")
        one = pool.race(["naive", "optimized"], "own")
        assert one.turns.keys() == {"optimized"}
        assert pool.names == ["optimized"]
    assert "killed by SIGKILL" in search.journal.content.dropped["naive"]
    assert search.journal.content.lost == ["naive"], "it may race the next time"


def test_one_that_takes_more_memory_than_is_allowed_is_out(open_search):
    search = open_search(racing=False)
    with SearchPool(search.job, search.survey, search.journal, ram_bytes=1.0) as narrow:
        narrow.open(["optimized"])
        assert narrow.names == []
    assert "of memory (allowed: 0 kiB)" in search.journal.content.dropped["optimized"]
    admission = Admission(cost=Cost(), ram_bytes=2.0**60, held_bytes=2.0**60)
    for each in search.survey.space.candidates:
        search.journal.admit(each.name, admission)
        search.journal.drop(each.name, "takes too much")
    with pytest.raises(InvalidBudget, match=r"needs 1073741824\.0 GiB"):
        search.run()


def test_a_disturbed_cache_is_filled_again_in_time(open_search, contestants, monkeypatch):
    monkeypatch.setattr("throughline.race.pool.usable_cores", lambda: 1)
    search = open_search()
    cached = search._searched_families["cache_memory"][0].name
    contestants.caches.add(cached)
    with monkeypatch.context() as patch, search.open_pool() as pool:
        patch.setattr("throughline.tuning.pool.OtherProcesses", lambda: Others(60.0))
        pool.open([cached])
    (filled,) = search.journal.content.rounds
    assert filled.disturbed, "others were at work both times"
    assert search.journal.content.admissions[cached].disturbed
    with search.open_pool() as pool:
        pool.open(["autotune", cached], until=0.0)
        assert pool.names == ["autotune"] and cached not in search.journal.content.dropped


def test_where_one_of_ones_own_was_lost_nothing_is_decided(open_search):
    search = open_search()
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
        survey_data(question_about(prepared.root), tmp_path)


def test_the_same_question_has_the_same_key(prepared, monkeypatch):
    monkeypatch.setattr("throughline.tuning.question.code_digest", lambda *_, **__: "the program")

    def key(params=PARAMS, needs=None, **budgets):
        given, files = read_budgets(**{"epochs": 3, **budgets}), ["vocabulary.txt"]
        return digest_question(without_tuned(params), prepared, given, own_files=files, needs=needs)

    own, read = prepared.root / "vocabulary.txt", {"files": {"table.npy": "d"}, "libraries": {}}
    own.write_text("a")
    before, optimized = key(), PARAMS.pipelines["optimized"]
    tuned = replace(PARAMS, pipelines={**PARAMS.pipelines, "tuned": optimized})
    assert key(tuned) == before, "an answer changes no question"
    assert [*without_tuned(replace(PARAMS, pipelines={"tuned": optimized})).pipelines] == ["naive"]
    assert key(time="9min") == key(ram="available") == before, "more time, the same question"
    assert key(ram="1024MiB", prepare="1h") == key(ram="1GiB", prepare="60min")
    assert key(epochs=PARAMS.train.epochs) == key(epochs="auto"), "the training's"
    others = [key(epochs=4), key(needs=read), key(replace(PARAMS, batch_size=7)), key(ram="1GiB")]
    own.write_text("b")
    others.append(key())  # a file is its contents
    own.write_text("a")
    monkeypatch.setattr("throughline.tuning.question.read_cpu_name", lambda: "another CPU")
    others.append(key())
    assert len({before, *others}) == 7


def test_a_journal_is_read_as_it_was_written(tmp_path):
    journal, admission = Journal(tmp_path), Admission(cost=Cost(), ram_bytes=2.0, held_bytes=1.0)
    journal.admit("a", admission)
    for reason in ("why", "another reason"):
        journal.drop("b", reason)
    turns = {"a": Turn(examples=1.0, seconds=1.0), "c": Turn(examples=2.0, seconds=1.0)}
    calm = Round(phase="own", turns=turns, others_pct=3.0, busiest="x")
    for one in (calm, replace(calm, others_pct=30.0), calm):
        journal.add(one)
    journal.note_proof("a", "digest")
    journal.refute("d", "other examples")
    assert journal.content.dropped == {"b": "why", "d": "other examples"}
    again = Journal(tmp_path)
    assert again.content.dropped == {"d": "other examples"}, "who was lost is tried again"
    assert replace(again.content, dropped=journal.content.dropped) == journal.content
    wanted = (("own", ["a"]), ("own", ["a", "b"]), ("final", ["a"]))
    assert [again.rounds_of(*each) for each in wanted] == [3, 0, 0]
    again.admit("c", replace(admission, disturbed=True))
    again.forget_disturbed()
    left = Journal(tmp_path).content
    assert left.admissions.keys() == {"a"}
    alone = replace(calm, turns={"a": calm.turns["a"]})
    assert left.rounds == [alone, alone], "`c` is raced again, and the disturbed round with it"
    (tmp_path / "journal.json").write_text("{")
    assert Journal(tmp_path).content.rounds == [], "a damaged one is begun again"


def test_contestants_are_opened_in_groups_that_memory_has_room_for(surveyed, tmp_path):
    sizes = {"small": 1.0, "other": 2.0, "huge": 1e18, CEILING: 1.0}
    needs = {name: Need(ram_bytes=size, disk_bytes=0, prepare_s=0) for name, size in sizes.items()}
    journal = Journal(tmp_path)

    def groups(sampled_share):
        known = {"needs": needs, "besides_steps_bytes": 0.0, "sampled_share": sampled_share}
        survey = replace(surveyed, **known)
        with SearchPool(lambda name: (name, []), survey, journal, ram_bytes=1e18) as pool:
            return list(pool.groups(["small", "huge", "other"], together_with=[]))

    assert groups(1.0) == [["small"], ["huge"], ["other"]]
    assert groups(1e-18) == [["small", "huge", "other"]], "a contestant holds a sample"
    journal.admit("huge", Admission(cost=Cost(), ram_bytes=1e18, held_bytes=3.0))
    assert groups(1.0) == [["small", "huge", "other"]], "and what it holds was seen"
