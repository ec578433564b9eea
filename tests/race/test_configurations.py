"""A race of configurations, on contestants that are no processes: who meets whom, when it ends,
that it goes on without those it has lost; and from its rounds to verdict, cause and fix.
"""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest

from tests.support.made_up import made_up
from tests.support.project import SMALL
from tests.support.races import MODEL, Contestants, Others, exactly, raced, rounds
from throughline.config.params import check
from throughline.diagnosis.threshold import parse_threshold
from throughline.plan.training_workers import TF_CONFIG, make_tf_config
from throughline.race import configurations, judging, pool, training
from throughline.race.configurations import ConfigurationRace, Measured, Starter
from throughline.results.profiling import Finding
from throughline.results.race import CHANGES, INPUTS, METRICS, OWN
from throughline.results.train import StepTimes, TrainResult, TrainThroughput
from throughline.settings import PipelineConfig, TrainSettings
from throughline.shared.errors import InvalidParams, ThresholdExceeded

RATES = {"naive": 50.0, "optimized": 95.0, "slow": 20.0, "cached": 90.0, "model": 100.0}
RATES |= {"naive + snapshot": 90.0, "naive + vectorize": 90.0, "optimized + prefetch": 95.0}


def finding(rule: str, effort: str = "setting", gain: float | None = None, **more) -> Finding:
    usual = {"step": "map", "params_key": "", "evidence": "9 ms", "cause": "slow", "change": {}}
    gained = {"effort": effort, "gain": gain and exactly(gain)}
    return Finding(rule=rule, fix=f"fix {rule}", **usual | gained | more)


TRIED = {"config": {"read": "shards"}}
CAN, CANNOT = finding("a", **TRIED), finding("b", untried="it changes the examples")
IDLE = finding("gpu_idle", untried="it is of training")


def starter(plan: str, findings=(), **config) -> Starter:
    return Starter(config=PipelineConfig(**config), plan=plan, findings=list(findings))


CHANGED = [finding(name, plan=plan, **TRIED) for name, plan in
           (("snapshot", "c"), ("vectorize", "b"), ("again", "c"))]  # fmt: skip
STARTERS = {
    "naive": starter("a", CHANGED, read="shards"),
    "optimized": starter("b", [finding("prefetch", plan="d", **TRIED)], read="snapshot"),
}


@pytest.fixture
def contestants(monkeypatch):
    """Contestants whose rates vary by a hundredth from turn to turn, and whose `turns` are kept."""
    wobble = itertools.cycle([1.0, 1.01, 0.99, 1.0])

    def rate_of(name: str) -> float:
        made.turns.append(name)
        return RATES["model" if name == MODEL else name.rstrip("0123456789")] * next(wobble)

    made = Contestants(rate_of)
    monkeypatch.setattr(pool, "Contestant", made)
    monkeypatch.setattr(pool, "random", Random(0))
    monkeypatch.setattr(pool, "OtherProcesses", Others)
    monkeypatch.setattr(configurations, "usable_cores", lambda: 2)
    return made


def run(tmp_path, starters=STARTERS):
    params = check({**SMALL, "measure": {"seconds": 60.0}})
    return ConfigurationRace(params, starters, root=tmp_path, folder=tmp_path).run()


def test_configurations_meet_their_model_and_the_changes_of_those_that_wait(contestants, tmp_path):
    measured = run(tmp_path)
    own, inputs, changes = (measured.of_phase(phase).names for phase in (OWN, INPUTS, CHANGES))
    assert own == inputs == [MODEL, "naive", "optimized"]
    assert changes == ["naive", "naive + snapshot"], (
        "not those of one that does not wait, equal plans once, a configuration not once more"
    )
    assert measured.input_speed("naive").value == pytest.approx(150, rel=0.02)
    assert measured.gain("naive").value == pytest.approx(0.5, rel=0.02)
    assert measured.change_gain("naive", "vectorize").value == pytest.approx(1.9, rel=0.02)
    assert measured.change_gain("naive", "snapshot").value == pytest.approx(1.8, rel=0.02)
    assert measured.change_gain("naive", "again").rounds == 5
    assert not contestants.present, "all have ended"


@pytest.mark.parametrize(
    "field",
    [{"decode": {"ratio": 2}}, {"threads": 1}, {"deterministic": False}, {"graph_rewrites": True},
     {"sampling": {"cat": 2.0}}],
)  # fmt: skip
def test_a_change_takes_no_figures_of_what_differs_beyond_its_plan(contestants, tmp_path, field):
    measured = run(tmp_path, {"naive": STARTERS["naive"], "slow": starter("c", **field)})
    assert measured.changes["naive", "snapshot"] == "naive + snapshot"


def test_none_has_two_turns_in_a_row_and_the_order_varies(contestants, tmp_path):
    present = len(run(tmp_path).of_phase(OWN).names)
    turns = contestants.turns
    assert all(one != other for one, other in itertools.pairwise(turns))
    orders = {tuple(turns[number * present :][:present]) for number in range(5)}
    assert {len({*each}) for each in orders} == {present} and len(orders) > 2


def test_a_phase_ends_when_all_is_decided_or_its_time_is_up(contestants, tmp_path, monkeypatch):
    assert len(run(tmp_path).of_phase(OWN).rounds) == 5
    now = itertools.count(step=1.0)
    monkeypatch.setattr(configurations.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setitem(RATES, "optimized", 50.0)  # as fast as naive, up to the noise
    assert len(run(tmp_path).of_phase(OWN).rounds) < 15, "known as well as anybody needs"
    monkeypatch.setattr(configurations, "PRECISE_PCT", 0.1)
    measured = run(tmp_path, {**STARTERS, "slow": starter("s")})
    assert 30 < len(measured.of_phase(OWN).rounds) < 50, "six tenths of a minute"
    assert (measured.gain("slow").rounds, measured.gain("naive").rounds > 30) == (5, True), (
        "who is certainly slower is left out of the rounds of those that are not"
    )


@pytest.mark.parametrize(
    ("killed", "raced"),
    [
        ({"optimized"}, [True, False]),
        ({"naive + snapshot"}, [True, True]),
        ({MODEL}, [False, False]),
        ({MODEL, *STARTERS}, [False, False]),
    ],
)
def test_a_race_goes_on_without_those_it_has_lost(contestants, tmp_path, killed, raced):
    contestants.killed |= killed
    measured = run(tmp_path)
    said = "was killed by SIGKILL, perhaps for lack of memory"
    assert measured.lost == dict.fromkeys(killed, said)
    assert [measured.is_raced(name) for name in STARTERS] == raced


def test_where_memory_is_short_groups_meet_the_same_model(contestants, tmp_path, monkeypatch):
    monkeypatch.setattr(configurations, "usable_cores", lambda: 1)
    contestants.held_bytes = 2**30
    monkeypatch.setattr(pool, "available_memory", lambda: 6 * 2**30)
    more = {f"slow{number}": starter("g") for number in range(4)}
    measured = run(tmp_path, {**STARTERS, **more})
    together = {frozenset(one.turns) for one in measured.rounds if one.phase == OWN}
    assert len(together) > 1
    assert all({MODEL, "naive"} <= names for names in together)
    assert all(len(names) <= 4 for names in together)
    assert measured.lost == {} and all(measured.is_raced(name) for name in [*STARTERS, *more])


def test_a_cache_is_filled_before_the_race_and_a_given_service_takes_no_turn(contestants, tmp_path):
    contestants.caches.add("cached")
    served = starter("f", service={"address": "grpc://input.example.org:5050"})
    more = {"cached": starter("e", cache={}), "served": served}
    measured = run(tmp_path, {"naive": STARTERS["naive"], **more})
    assert measured.costs["cached"].fill_s == 1.0
    assert "served" not in measured.training.names and measured.models["served"]


def test_processes_of_this_host_have_their_slices_and_gpus(monkeypatch):
    monkeypatch.setattr(configurations, "visible_gpus", lambda: (["a", "b"], None))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    def of(**train):
        params = check({**SMALL, "train": {**SMALL["train"], **train}})
        return configurations.local_environments(params)

    assert of() == [{}]
    both = [make_tf_config(["localhost:0", "localhost:1"], index) for index in range(2)]
    assert of(processes=2) == [
        {"CUDA_VISIBLE_DEVICES": gpu, TF_CONFIG: config}
        for gpu, config in zip("35", both, strict=True)
    ]
    hosts = ["a:1", "b:1", "b:2"]
    monkeypatch.setenv(TF_CONFIG, make_tf_config(hosts, 1))
    own = [make_tf_config(hosts, index) for index in (1, 2)]
    assert [each[TF_CONFIG] for each in of(processes=3)] == own


def subject(
    *findings: Finding, warm: float | None = 50.0, cold: float = 9.0, processes: int = 1
) -> judging.Subject:
    """One whose warm epochs trained at a rate, in 100 steps of 2 s."""
    throughput = warm and TrainThroughput(train_examples_per_s=warm, cold_examples_per_s=cold)
    step = StepTimes(ms_p50=2000.0, ms_p95=2000.0, ms_p99=2000.0, count=100)
    known = {"throughput": throughput, "step": step, "processes": processes}
    trained = replace(made_up(TrainResult), **known)
    given = {"name": "naive", "settings": TrainSettings(), "examples": 6400, "steps": 100}
    return judging.Subject(findings=findings, trained=trained, **given)


def measured(rate: float, *, changed: float = 0.0, fed: float = 400.0) -> Measured:
    """Five rounds of a configuration whose model alone trains 100 examples/s."""
    own = rounds({"naive": [rate] * 5, MODEL: [100.0] * 5}, phase=OWN)
    tried = rounds({"naive": [rate] * 5, "naive + a": [changed] * 5}, phase=CHANGES)
    slower = {MODEL: [50.0] * 3, "naive": [fed / 2] * 3}  # so was the machine in this phase
    inputs = rounds(slower, phase=INPUTS)
    phases = [*own, *(tried if changed else []), *inputs]
    return Measured(rounds=phases, models={"naive": MODEL}, changes={("naive", "a"): "naive + a"})


@pytest.mark.parametrize(
    ("found", "rate", "changed", "on_accelerator", "verdict", "cause", "fix"),
    [
        ([CANNOT, CAN], 50.0, 90.0, False, "input-bound", "map: slow (9 ms)", "fix a"),
        ([CAN], 50.0, 51.0, True, "input-bound", "no rule explains it", "look at"),
        ([CAN], 50.0, 51.0, False, "input-bound", "input and model compete", "no change to this"),
        ([CAN], 98.0, 0.0, True, "compute-bound", "none in the input", "stop tuning the input"),
        ([], 101.0, 0.0, True, "compute-bound", "none in the input", "stop tuning the input"),
        ([IDLE], 98.0, 0.0, True, "compute-bound", "map: slow (9 ms)", "fix gpu_idle"),
    ],
)
def test_what_gains_is_cause_and_fix_and_else_it_is_said_where_to_look(
    found, rate, changed, on_accelerator, verdict, cause, fix
):
    race = measured(rate, changed=changed)
    result = judging.judge_raced(subject(*found, warm=rate), race, on_accelerator=on_accelerator)
    assert result.verdict == verdict
    assert result.cause.startswith(cause) and result.fix.startswith(fix)
    assert result.gain == (pytest.approx(1.8) if changed > 60 else None)
    figures = (result.training.value, result.model_alone.value, result.input.value)
    assert figures == pytest.approx((rate, 100, 400)), "at the pace of the training"
    stall = max(0.0, 100 - rate)
    assert (result.stall_pct, result.stall_pct_low) == pytest.approx((stall, stall))


def judged(one, race):
    return judging.judge_raced(one, race, on_accelerator=False)


def test_a_change_that_was_lost_or_not_needed_says_so():
    lost = replace(measured(50.0), lost={"naive + a": "was killed by SIGKILL"})
    (said,) = judged(subject(CAN), lost).findings
    assert (said.gain, said.untried) == (None, "was killed by SIGKILL")
    (said,) = judged(subject(CAN), replace(lost, changes={})).findings
    assert said.untried == "it is not certain that the input limits training"
    (said,) = judged(subject(CAN), measured(50.0, changed=150.0)).findings
    assert said.gain is None
    assert said.untried.startswith("its 3.0× is more than the model alone allows; run")
    short = measured(50.0, changed=90.0)
    several = [each for each in short.rounds if each.phase == CHANGES][1:]
    once = replace(short, rounds=[each for each in short.rounds if each not in several])
    (said,) = judged(subject(CAN), once).findings
    assert (said.gain, said.untried) == (None, "it did not race")


def test_one_that_was_judged_before_it_was_lost_is_not_among_the_lost(tmp_path):
    starters = dict.fromkeys(["naive", "late"], starter("a"))
    racing = ConfigurationRace(check(SMALL), starters, root=tmp_path, folder=tmp_path)
    racing.measured = measured(50.0)
    racing.measured.models["late"] = MODEL
    racing.measured.lost = dict.fromkeys(starters, "was killed by SIGKILL")
    result = judging.judge_race(racing, [subject(), replace(subject(), name="late")], machine={})
    assert ([*result.configurations], [*result.lost]) == (["naive"], ["late"])


def test_a_race_that_its_epochs_contradict_decides_nothing():
    result = judged(subject(warm=20.0), measured(50.0))
    assert result.verdict == "undecided"
    said = "training ran at 50 examples/s in the race, but its own epochs at 20"
    assert result.contradiction == said
    only = judged(subject(warm=20.0, cold=20.0), measured(50.0))
    assert only.verdict == "input-bound", "a cold epoch contradicts nothing"
    several = judged(subject(warm=20.0, processes=2), measured(50.0))
    assert several.verdict == "input-bound", "their epochs hold what they exchange"
    assert several.exchange_ms == pytest.approx(2000 - 64 / 50 * 1000)


def test_a_service_that_does_not_stand_still_is_measured_by_its_epochs():
    race = replace(measured(50.0), rounds=rounds({MODEL: [100.0] * 5}, phase=OWN))
    result = judging.judge_by_epochs(
        subject(CANNOT, CAN, warm=40.0), race, on_accelerator=False, why="by its epochs"
    )
    assert result and (result.verdict, result.note) == ("input-bound", "by its epochs")
    assert result.training.value == 40 and result.stall_pct == pytest.approx(60)
    said = {each.rule: each.untried for each in result.findings}
    assert said == {"a": "its input keeps running between turns", "b": CANNOT.untried}
    for other in (subject(warm=None), replace(subject(warm=40.0), same_machine=False)):
        assert judging.judge_by_epochs(other, race, on_accelerator=False, why="") is None


def test_of_changes_that_gain_alike_the_smallest_comes_first_and_what_was_not_tried_last():
    tried = finding("little", gain=1.2), finding("stored", "disk", 2.04), finding("set", gain=2.0)
    ranked = judging.rank_findings([finding("untried"), *tried])
    assert [one.rule for one in ranked] == ["set", "stored", "little", "untried"]


@pytest.mark.parametrize(
    ("verdict", "gains", "gain", "figure"),
    [
        ("input-bound", [3.0], 3.0, 3.0),
        ("undecided", [3.0, None], 3.0, 3.0),
        ("input-bound", [None, 1.01], None, 1.0),
        ("input-bound", [], None, 1.0),
        ("compute-bound", [None], None, 1.0),
        ("input-bound", [None], None, None),
        ("undecided", [None], None, None),
    ],
)
def test_a_gain_is_measured_or_there_is_nothing_to_gain(verdict, gains, gain, figure):
    found = tuple(finding("a", gain=each) for each in gains)
    figures = raced(50.0, 50.0, verdict, findings=found, gain=gain).figures
    assert figures["gain"] == figure and set(figures) == set(METRICS)


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("stall_pct > 10", ThresholdExceeded, None),
        ("stall_pct > 90", None, None),
        ("verdict == input-bound", ThresholdExceeded, None),
        ("first_batch_s < 3", ThresholdExceeded, None),
        ("exchange_ms > 10", ThresholdExceeded, None),
        ("stal_pct > 10", InvalidParams, None),
        ("stall_pct > many", InvalidParams, None),
        ("stall_pct > nan", InvalidParams, None),
        ("findings > 1", InvalidParams, None),
        ("gain > 1.1", None, None),
        ("verdict == input_bound", InvalidParams, "not a verdict; did you mean input-bound"),
        ("stall_pct", InvalidParams, "such as 'stall_pct > 10'"),
    ],
)
def test_conditions(text, expected, said):
    one = raced(50.0, 52.5, "input-bound", first_batch_s=None, exchange_ms=float("nan"))
    with pytest.raises(expected, match=said) if expected else nullcontext():
        parse_threshold(text, METRICS).check(one.figures)


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0.001, 151), (0.01, 30), (0.03, 11), (0.5, 10), (2.0, 3)],
)
def test_a_turn_lasts_longer_if_it_has_few_steps(step_s, steps, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])

    def advance() -> int:
        now[0] += step_s
        return 1

    assert training._repeat_for_a_turn(advance, 0.1505) == steps
