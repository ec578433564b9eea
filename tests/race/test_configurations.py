"""A race of configurations, on contestants that are no processes: who meets whom, when it ends, and
that it goes on without those it has lost.
"""

import itertools

import pytest

from tests.support.project import SMALL
from tests.support.races import Contestants, Others
from throughline.config.params import check
from throughline.plan.training_workers import TF_CONFIG, make_tf_config
from throughline.race import configurations, pool
from throughline.race.configurations import ConfigurationRace, Starter, local_environments
from throughline.results.profiling import Finding
from throughline.results.race import CHANGES, INPUTS, OWN
from throughline.settings import PipelineConfig

RATES = {"naive": 50.0, "optimized": 95.0, "slow": 20.0, "cached": 90.0, "model": 100.0}
RATES |= {"naive + snapshot": 90.0, "naive + vectorize": 90.0, "optimized + prefetch": 95.0}


def finding(rule: str, plan: str) -> Finding:
    return Finding(
        rule=rule, step="", params_key="", evidence="", cause="", fix="", change={},
        effort="setting", config={"read": "shards"}, plan=plan,
    )  # fmt: skip


STARTERS = {
    "naive": Starter(
        config=PipelineConfig(read="shards"),
        plan="a",
        findings=[finding("snapshot", "c"), finding("vectorize", "b"), finding("again", "c")],
    ),
    "optimized": Starter(config=PipelineConfig(read="snapshot"), plan="b",
                         findings=[finding("prefetch", "d")]),
}  # fmt: skip


@pytest.fixture
def contestants(monkeypatch):
    """Contestants whose rates vary by a hundredth from turn to turn."""
    wobble = itertools.cycle([1.0, 1.01, 0.99, 1.0])

    def rate_of(name: str) -> float:
        known = {"model alone of naive": "model"}
        return RATES[known.get(name, name.rstrip("0123456789"))] * next(wobble)

    made = Contestants(rate_of)
    monkeypatch.setattr(pool, "Contestant", made)
    monkeypatch.setattr(pool, "OtherProcesses", Others)
    monkeypatch.setattr(configurations, "usable_cores", lambda: 2)
    return made


def run(tmp_path, starters=STARTERS, *, seconds=60.0, **train):
    document = {**SMALL, "measure": {"seconds": seconds}}
    document["train"] = {**SMALL["train"], **train}
    racing = ConfigurationRace(check(document), starters, root=tmp_path, folder=tmp_path)
    return racing.run()


def names_of(measured, phase):
    return measured.of_phase(phase).names


def test_configurations_meet_their_model_and_the_changes_of_those_that_wait(contestants, tmp_path):
    measured = run(tmp_path)
    assert names_of(measured, OWN) == ["model alone of naive", "naive", "optimized"]
    assert names_of(measured, CHANGES) == ["naive", "naive + snapshot"], (
        "not those of one that does not wait, equal plans once, a configuration not once more"
    )
    assert names_of(measured, INPUTS) == ["model alone of naive", "naive", "optimized"]
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
def test_a_change_takes_no_figures_of_what_differs_in_more_than_the_text_of_its_plan(
    contestants, tmp_path, field
):
    other = Starter(config=PipelineConfig(**field), plan="c")
    measured = run(tmp_path, {"naive": STARTERS["naive"], "slow": other})
    assert measured.changes["naive", "snapshot"] == "naive + snapshot"


def test_a_phase_ends_when_all_is_decided_and_else_when_its_time_is_up(
    contestants, tmp_path, monkeypatch
):
    assert len(run(tmp_path).of_phase(OWN).rounds) == 5
    now = itertools.count(step=1.0)
    monkeypatch.setattr(configurations.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setitem(RATES, "optimized", 50.0)  # as fast as naive, up to the noise
    assert len(run(tmp_path).of_phase(OWN).rounds) < 9, "known as well as anybody needs"
    monkeypatch.setattr(configurations, "PRECISE_PCT", 0.1)
    measured = run(tmp_path, {**STARTERS, "slow": Starter(config=PipelineConfig(), plan="s")})
    assert 30 < len(measured.of_phase(OWN).rounds) < 50, "six tenths of a minute"
    assert (measured.gain("slow").rounds, measured.gain("naive").rounds > 30) == (5, True), (
        "who is certainly slower is left out of the rounds of those that are not"
    )


@pytest.mark.parametrize(
    ("killed", "raced"),
    [
        ({"optimized"}, {"naive": True, "optimized": False}),
        ({"naive + snapshot"}, {"naive": True, "optimized": True}),
        ({"model alone of naive"}, {"naive": False, "optimized": False}),
        ({"model alone of naive", *STARTERS}, {"naive": False, "optimized": False}),
    ],
)
def test_a_race_goes_on_without_those_it_has_lost(contestants, tmp_path, killed, raced):
    contestants.killed |= killed
    measured = run(tmp_path)
    said = "was killed by SIGKILL, perhaps for lack of memory"
    assert measured.lost == dict.fromkeys(killed, said)
    assert {name: measured.is_raced(name) for name in raced} == raced


def test_where_memory_has_no_room_for_all_groups_meet_the_same_model(
    contestants, tmp_path, monkeypatch
):
    monkeypatch.setattr(configurations, "usable_cores", lambda: 1)
    contestants.held_bytes = 2**30
    monkeypatch.setattr(pool, "available_memory", lambda: 6 * 2**30)
    slow = Starter(config=PipelineConfig(), plan="g")
    more = {f"slow{number}": slow for number in range(4)}
    measured = run(tmp_path, {**STARTERS, **more})
    together = {frozenset(one.turns) for one in measured.rounds if one.heat == OWN}
    assert len(together) > 1
    assert all({"model alone of naive", "naive"} <= names for names in together)
    assert all(len(names) <= 4 for names in together)
    assert measured.lost == {} and all(measured.is_raced(name) for name in [*STARTERS, *more])


def test_a_cache_is_filled_before_the_race_and_a_given_service_takes_no_turn(contestants, tmp_path):
    contestants.caches.add("cached")
    cached = Starter(config=PipelineConfig(cache={}), plan="e")
    elsewhere = PipelineConfig(service={"address": "grpc://input.example.org:5050"})
    starters = {"naive": STARTERS["naive"], "cached": cached,
                "served": Starter(config=elsewhere, plan="f")}  # fmt: skip
    measured = run(tmp_path, starters)
    assert measured.costs["cached"].fill_s == 1.0
    assert "served" not in measured.training.names and measured.models["served"]


def test_processes_of_this_host_have_their_slices_and_gpus(monkeypatch):
    monkeypatch.setattr(configurations, "visible_gpus", lambda: (["a", "b"], None))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    def of(**train):
        return local_environments(check({**SMALL, "train": {**SMALL["train"], **train}}))

    assert of() == [{}]
    two = of(processes=2)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in two] == ["3", "5"]
    assert [each[TF_CONFIG] for each in two] == [
        make_tf_config(["localhost:0", "localhost:1"], index) for index in range(2)
    ]
    hosts = ["a:1", "b:1", "b:2"]
    monkeypatch.setenv(TF_CONFIG, make_tf_config(hosts, 1))
    assert [each[TF_CONFIG] for each in of(processes=3)] == [
        make_tf_config(hosts, index) for index in (1, 2)
    ]
