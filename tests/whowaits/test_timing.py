"""What is timed, and what is made of it: verdict, report, `--fail-if`, advice, comparisons."""

import itertools
import json
import math
import os
import shutil
from types import SimpleNamespace

import pytest

from tests.support.small_data import write_files
from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, THREADS, Tried, find_first, rank
from whowaits.changes.ratios import FEW_FACTOR, SPREADS, Ratios
from whowaits.cli import main
from whowaits.compare import compare
from whowaits.fail_if import Condition
from whowaits.report import make_report, undecided
from whowaits.timing import machine
from whowaits.timing.batches import BatchesTaken, count_examples, keep_batches
from whowaits.timing.blocks import Timing
from whowaits.timing.rounds import Block, Round
from whowaits.timing.verdict import COMPUTE_BOUND as COMPUTE
from whowaits.timing.verdict import INPUT_BOUND as INPUT
from whowaits.timing.verdict import SLIGHTLY_BOUND, UNDECIDED, Conditions, judge


class Clocks:
    """In the place of `time`."""

    def __init__(self):
        self.now = self.cpu = 0.0
        self.perf_counter, self.process_time = lambda: self.now, lambda: self.cpu

    def sleep(self, seconds):
        self.now += seconds

    def work(self, seconds):
        self.now, self.cpu = self.now + seconds, self.cpu + seconds


@pytest.fixture
def clocks(tmp_path, monkeypatch):
    for name, value in {"time": Clocks(), "PROC": tmp_path, "_ticks": lambda: 100}.items():
        monkeypatch.setattr(machine, name, value)
    return machine.time


def write_proc(folder, *, busy, own, ended, child=None, other=0):
    """What /proc says [ticks]: of each core, this process, a child, and another process."""
    cores = sorted(os.sched_getaffinity(0))
    (folder / "stat").write_text("".join(f"cpu{core} {busy} 0 0 9 0 0 0 0\n" for core in cores))
    processes = [(os.getpid(), 1, own, ended), (999_998, 1, other, 0)]
    processes += [(999_999, os.getpid(), child, 0)] if child is not None else []
    shutil.rmtree(folder / "999999", ignore_errors=True)
    for pid, parent, ticks, ended_ticks in processes:
        fields = f"S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 {ended_ticks} 0"
        write_files(folder, {f"{pid}/stat": f"{pid} (a program) {fields}\n"})
    return len(cores)


@pytest.mark.parametrize("others_ticks", [0, 100])
def test_what_ended_workers_took_is_no_other_programs(tmp_path, clocks, others_ticks):
    cores = write_proc(tmp_path, busy=1000, own=50, ended=7, child=300)
    others = machine.OtherPrograms()
    clocks.sleep(2.0)
    mine = 60 + 90  # the child has taken 90 more, and has ended
    busy = 1000 + mine // cores + others_ticks
    write_proc(tmp_path, busy=busy, own=110, ended=7 + 390, other=others_ticks * cores)
    share, who = others.read()
    assert share == pytest.approx(others_ticks / 2, abs=1)
    assert who == "a program (process 999998)" or not others_ticks


def test_an_input_that_works_on_is_not_idle_but_reading_of_many_processes_is(clocks, monkeypatch):
    """A machine of many cores has a thousand processes of its kernel alone."""
    with monkeypatch.context() as works:
        works.setattr(clocks, "sleep", clocks.work)
        assert not machine.wait_until_idle(0.3)
    assert clocks.now == pytest.approx(0.3, abs=0.03), "not for longer than was asked"
    monkeypatch.setattr(machine, "_processes", lambda: clocks.work(0.03) or {})
    assert machine.wait_until_idle(5.0)


V1 = ("5:cpu,cpuacct:/a/b\n4:memory:/a/b\n", "memory.limit_in_bytes", "memory.usage_in_bytes")
V2 = ("0::/a/b\n", "memory.max", "memory.current")


@pytest.mark.parametrize(("version", "group"), [(V2, "a/b"), (V2, "a"), (V1, "memory/a")])
def test_a_control_group_limits_memory_but_for_cached_files(tmp_path, monkeypatch, version, group):
    listed, limit, usage = version
    statistics = f"anon 600\n{'total_' if version is V1 else ''}inactive_file 300\n"
    write_files(tmp_path, {"self/cgroup": listed, f"cgroup/{group}/memory.stat": statistics})
    write_files(tmp_path / "cgroup" / group, {limit: "1000", usage: "900"})
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    assert machine.memory_left_bytes() == 400


class Sparse(SimpleNamespace):
    """As PyTorch's sparse and nested tensors: exceptions say what they have not."""

    dtype = None

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not defined for sparse tensors")


def test_batches_are_kept_up_to_a_number_and_a_time_whatever_they_say_of_their_size():
    each_half_second = itertools.count(step=0.5).__next__
    assert len(keep_batches(lambda: ([1],)).batches) == 64
    assert len(keep_batches(lambda: ([1],), clock=each_half_second).batches) == 5, "more than 2 s"
    assert not keep_batches(lambda: None).batches
    for batch, examples in (({"texts": Sparse()}, None), ([Sparse(), Sparse(shape=(8, 2))], 8)):
        assert count_examples(batch) == examples
        assert keep_batches(iter([(batch,), None]).__next__).batches == [batch]
    for counts, ended, kept in (([8, 8], True, 2), ([8, 3], True, 1), ([8, 3], False, 2)):
        taken = BatchesTaken([Sparse(shape=(count,)) for count in counts], ended=ended)
        taken.drop_remainder(8)
        assert len(taken.batches) == kept, "a smaller last batch is no batch of the model"


ACCELERATED = {"on_accelerator": True, "synchronous": False}
DISAGREEING = [(2, 38, 38), (12, 28, 28), (20, 20, 20)]
DISTURBED, BARELY = {"others_pct": 60.0, "others": "stress (process 7)"}, {"others_pct": 22.0}


def block(wait_ms, work_ms):
    return Block(steps=20, wait_s=20 * wait_ms / 1e3, work_s=20 * work_ms / 1e3)


def timing_of(*rounds, rested=True, passive=None):
    """Its rounds are (wait, work, model alone) [ms]."""
    made = [Round(block(wait, work), block(0, alone), rested) for wait, work, alone in rounds]
    return Timing(40.0, passive=passive or block(1, 9), rounds=made, seen=20)


def report_of(*rounds, passive=None, **conditions):
    timing, given = timing_of(*rounds, passive=passive), Conditions(**conditions)
    return make_report(timing, given, judge(timing, given), script="train.py", training="a fit")


def steady(wait, **given):
    return timing_of(*[(wait, 40 - wait, 40 - wait)] * 3, **given)


def waits_alone(pct):
    return timing_of(passive=block(pct, 100 - pct))


@pytest.mark.parametrize(
    ("timing", "conditions", "said"),
    [
        (steady(30), {}, INPUT),
        (timing_of(*[(0, 40, 10)] * 3), {}, INPUT),  # the input slows the model without a wait
        (steady(7), {}, SLIGHTLY_BOUND),
        (timing_of((0, 40, 41), (1, 39, 40), (0, 40, 42)), {}, COMPUTE),
        (timing_of(*[(0, 40, 65)] * 3), {}, "the model alone took 65.00 ms a step, longer than"),
        (timing_of(*[(20, 20, 40)] * 3), {}, "stood in `next` for 50 % of its time, but the model"),
        (timing_of(*DISAGREEING), {}, "on both sides of"),
        (timing_of((0, 100, 107), (4, 96, 96), (23, 77, 77)), ACCELERATED, "from 0 to 23 %, on"),
        (steady(30), DISTURBED, INPUT),
        (steady(1), DISTURBED, UNDECIDED),  # a disturbed machine needs more distance
        (steady(10), BARELY, UNDECIDED),
        (steady(1), BARELY, COMPUTE),
        (steady(20, rested=False), {}, INPUT),
        (steady(1, rested=False), {}, UNDECIDED),  # an input that never rests slows the model
        (steady(1, rested=False), ACCELERATED, COMPUTE),
        (waits_alone(40), {}, INPUT),
        (waits_alone(2), {}, UNDECIDED),  # on shared cores the input may slow the model without one
        (waits_alone(2), ACCELERATED, COMPUTE),
        (waits_alone(40), ACCELERATED, UNDECIDED),
        (waits_alone(25), {"others_pct": 50.0}, UNDECIDED),
    ],
)
def test_a_verdict_is_given_only_where_a_measurement_decides_it(timing, conditions, said):
    found = judge(timing, Conditions(**conditions))
    assert said == found.name or (found.name == UNDECIDED and said in found.reason)
    assert bool(found.reason) == (found.name == UNDECIDED)


@pytest.mark.parametrize(
    ("wait_ms", "cores_ms", "name"),
    # In the first nobody waited, and the input worked for a third of what is missing.
    [(0, 46, UNDECIDED), (0, 60, INPUT), (20, 40, INPUT), (0, math.nan, INPUT)],
)
def test_a_stall_that_the_input_cannot_have_caused_has_no_verdict(wait_ms, cores_ms, name):
    timing = timing_of(*[(wait_ms, 40 - wait_ms, 20)] * 3)
    for each in timing.rounds:
        each.training.cores_s, each.alone.cores_s = 20 * cores_ms / 1e3, 20 * 40 / 1e3
    found = judge(timing, Conditions())
    assert found.name == name
    assert ("the machine changed its pace" in found.reason) == (name == UNDECIDED)
    assert judge(timing, Conditions(on_accelerator=True)).name == INPUT


STALLED = report_of(*[(30, 10, 10)] * 3)
AT_LEAST_40, AT_LEAST_25 = report_of(passive=block(40, 60)), block(25, 75)


def test_a_report_reads_as_text_and_as_json():
    first, _, third, *_ = STALLED.lines
    assert first == "train.py: input-bound, stall 75 % (75 to 75 %)"
    assert "a step takes 40.00 ms; 75 % of it in `next`, the model alone 10.00 ms" in third
    loaded = json.loads(STALLED.json)
    assert loaded["stall_pct"] == pytest.approx(75) and loaded["verdict"] == INPUT
    assert AT_LEAST_40.lines[0] == "train.py: input-bound, stall at least 40 %"
    assert json.loads(AT_LEAST_40.json)["stall_high_pct"] is None


@pytest.mark.parametrize(
    ("text", "report", "code"),
    [
        ("stall > 20", STALLED, 3),
        ("stall>=75", STALLED, 3),
        ("stall < 20 %", STALLED, 0),
        ("step_ms > 30", STALLED, 3),
        ("model_ms > 30", STALLED, 0),
        ("gap_ms > 1", STALLED, 4),
        ("stall > 20", AT_LEAST_40, 3),
        ("stall > 50", AT_LEAST_40, 4),
        ("stall < 20", AT_LEAST_40, 0),
        ("stall > 20", report_of(*DISAGREEING), 4),
        ("stall > 20", report_of(passive=AT_LEAST_25), 3),
        ("stall > 20", report_of(passive=AT_LEAST_25, **DISTURBED), 4),
        ("stall > 20", report_of(passive=AT_LEAST_25, fills_cache=True), 4),
        ("stall > 20", undecided("a.py", "nothing was seen", version="1"), 4),
    ],
)
def test_a_condition_is_met_or_not_or_not_decided(text, report, code):
    assert Condition.parse(text).exit_code(report) == code


def tried(text, gain, low, meaning=SAME, keeps="", **given):
    return Tried(text, meaning, "", keeps, "train.py:7", gain, low, high=2 * gain, **given)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ([], None),
        ([tried("a", 1.5, 1.05)], None),  # it may owe that to chance
        ([tried("a", 1.3, 1.2), tried("b", 1.5, 1.2)], "b"),
        ([tried("kept", 1.5, 1.3, keeps="9 MiB"), tried("free", 1.4, 1.2)], "free"),
        ([tried("kept", 3.5, 3.3, keeps="9 MiB"), tried("free", 1.4, 1.2)], "kept"),
        ([tried("frozen", 9.0, 8.0, DRAWN_ONCE), tried("same", 1.4, 1.2)], "same"),
        ([tried("frozen", 9.0, 8.0, DRAWN_ONCE)], None),
        ([tried("threads", 9.0, 8.0, THREADS)], None),  # until a copy has proven it
        ([tried("other order", 1.5, 1.4, ORDER), tried("same", 1.4, 1.2)], "same"),
        ([tried("other order", 3.0, 2.0, ORDER), tried("same", 1.4, 1.2)], "other order"),
        ([tried("too large", 3.0, 2.0, keeps="9 TiB", fits_memory=False)], None),
        ([tried("made by a library", 3.0, 2.0, inside="load")], None),
    ],
)
def test_the_first_advice_gains_for_certain_and_leaves_the_training_alone(changes, first):
    ranked = rank(changes)
    assert all(each.meaning != DRAWN_ONCE for each in ranked)
    assert all(each in ranked for each in changes if each.meaning == THREADS)
    found = find_first(changes)
    assert (found.text if found else None) == first


@pytest.mark.parametrize(
    ("paces", "gains", "interval"),
    [
        ([100.0, 104.0], [2.0], (2.0 / FEW_FACTOR, 2.0 * FEW_FACTOR)),
        ([100.0, 190.0], [2.0], (2.0 / 1.9**SPREADS, 2.0 * 1.9**SPREADS)),
        ([100.0] * 4, [2.0, 1.9, 2.2], (1.9, 2.2)),
        ([100.0] * 8, [9, 1, 2, 3, 4, 5, 0.5], (1, 5)),  # enough to leave the extremes out
    ],
)
def test_an_interval_is_of_the_pairs_or_as_wide_as_the_unchanged_input(paces, gains, interval):
    ratios = Ratios(paces[0])
    for gain, (before, after) in zip(gains, itertools.pairwise(paces), strict=True):
        ratios.add(0, changed=gain * (before + after) / 2, unchanged=after)
    assert ratios.interval(0)[1:] == pytest.approx(interval)


def write_report(path, **values):
    given = {"verdict": INPUT, "stall_pct": 75.0, "step_ms": 40.0, "model_ms": 10.0, "examples": 32}
    path.write_text(json.dumps({**given, **values}))
    return path


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"step_ms": 20.0, "verdict": "undecided"}, "the second trains 2.00 times as fast"),
        ({"step_ms": 39.0}, "no more than in two runs of the same script (1.03 ×)"),
        ({"model_ms": None}, "the model was not timed alone in one or both"),
        ({"examples": 64}, "their batches differ in size"),
    ],
)
def test_what_differs_is_said_only_where_the_machine_was_the_same(tmp_path, after, said):
    lines = compare(write_report(tmp_path / "a.json"), write_report(tmp_path / "b.json", **after))
    assert said in lines[-1]
    assert lines[0].split() == ["a.json", "b.json"] and "40.00 ms" in lines[3]


def test_what_is_no_report_is_not_compared(tmp_path, capsys):
    report, empty = str(write_report(tmp_path / "b.json")), tmp_path / "a.json"
    empty.write_text("[]")
    assert main(["compare", report, str(empty)]) == 2
    assert capsys.readouterr().err.startswith("whowaits: ")
    assert main(["compare", report, report]) == 0
