"""The space of candidates, and the proof of the winner."""

import itertools

import pytest

from tests.support.project import SMALL
from throughline.config.params import check
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Rescale, Resize
from throughline.plan.plan import InputSpec
from throughline.race.contestant import ContestantLost
from throughline.race.jobs import Entry
from throughline.settings import PipelineConfig
from throughline.shared.failures import Failure
from throughline.tuning.journal import Journal
from throughline.tuning.question import prove
from throughline.tuning.space import (
    OWN,
    RULES,
    Conditions,
    find_leanest,
    find_neighbors,
    group_families,
    lay_out_space,
    pick_forms,
    read_stored,
)

SPEC = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=8, width=8)),
    augment=(Flip(),),
    postprocess=(Rescale(),),
    batch_size=32,
)
NAIVE = {"naive": PipelineConfig()}


def space(own=NAIVE, **conditions):
    return lay_out_space(own, SPEC, Conditions(**conditions))


def families(own=NAIVE, **conditions):
    return group_families(space(own, **conditions).candidates)


def test_families_are_what_can_be_kept_where():
    kept = ["snapshot", "cache_memory", "cache_disk", "arrays", "indexed_shards", "stream"]
    after_decode = ["cache_memory_after_decode", "cache_disk_after_decode"]
    assert list(families()) == [OWN, RULES, *kept, *after_decode]


def test_ones_own_and_the_rules_of_thumb_come_first():
    own = {**NAIVE, "heuristic": PipelineConfig(prefetch=3)}
    first = space(own).candidates[:3]
    assert [each.name for each in first] == ["naive", "heuristic", "autotune"]
    assert first[1].config.prefetch == 3, "one's own goes first"


def test_forms_differ_in_their_plans_and_in_nothing_that_decides_examples():
    candidates = space().candidates
    pairs = itertools.combinations(candidates, 2)
    assert all(one.plan != other.plan for other, one in pairs if one.family not in (OWN, RULES))
    snapshots = [each for each in candidates if each.family == "snapshot"]
    assert len(snapshots) == 6, "three kinds of parallel calls, two places"
    assert {each.config.deterministic for each in candidates} == {True}
    assert not any(each.plan.approximate for each in candidates)


def test_a_form_with_the_plan_of_ones_own_is_not_raced_twice():
    stored = {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2}
    own = {"mine": PipelineConfig(**stored, map={"parallel": "cores"}, postprocess_on="device")}
    names = [each.name for each in families(own)["snapshot"]]
    assert "snapshot cores device" not in names and len(names) == 5


@pytest.mark.parametrize(
    ("condition", "family"),
    [
        ("approximate", "stream_half_size"),
        ("beyond_memory", "snapshot_window"),
        ("accelerator", "snapshot_on_device"),
    ],
)
def test_some_families_need_a_condition(condition, family):
    assert family in families(**{condition: True})
    assert family not in families()


def test_a_part_of_the_snapshot_is_raced_where_the_whole_does_not_fit():
    part = families(fitting=0.37)["snapshot_part"]
    assert {each.config.snapshot.fraction for each in part} == {0.37}
    assert [each.config.read for each in part] == ["snapshot"] * 6
    assert all(each.name.startswith("snapshot_part 37% ") for each in part), "another is another"
    for fitting in (0.0, 1.0):
        assert "snapshot_part" not in families(fitting=fitting)


def test_order_that_depends_on_timing_has_to_be_allowed():
    loose = [each for each in space(unordered=True).candidates if not each.config.deterministic]
    assert loose and {each.config.read for each in loose} <= {"shards", "arrays"}


@pytest.mark.parametrize(
    ("own", "conditions", "refused", "reason"),
    [
        ({}, {"shared": True}, "naive", "batches cannot be shared"),
        ({}, {"shared": True}, "cache_memory", "batches cannot be shared"),
        ({}, {"stored": 0.5, "fitting": 0.5}, "snapshot", "50% of the snapshot's rows are stored"),
        ({"read": "arrays", "interleave": {}}, {}, "own", "only shards can be interleaved"),
        ({"sampling": "balanced"}, {}, "own", "its sampling or batch differs"),
        ({"decode": {"ratio": 2}}, {}, "own", "--allow approximate"),
        ({"deterministic": False}, {}, "own", "--allow unordered"),
    ],
)
def test_what_cannot_be_planned_or_compared_is_refused_with_its_reason(
    own, conditions, refused, reason
):
    laid = space({**NAIVE, "own": PipelineConfig(**own)}, **conditions)
    assert reason in {each.name: each.reason for each in laid.refusals}[refused]
    kept = group_families(laid.candidates)
    if "shared" in conditions:
        assert kept and all(each.plan.seekable for each in laid.candidates)
    if "stored" in conditions:
        assert "snapshot_part" in kept and "snapshot" not in kept


def test_all_sample_as_the_first_of_ones_own():
    own = {"mine": PipelineConfig(sampling="balanced")}
    assert {each.config.sampling for each in space(own).candidates} == {"balanced"}
    assert read_stored(own).sampling == "balanced"
    assert read_stored(own, 0.5).snapshot.fraction == 0.5


def calls(form):
    config = form.config
    return config.vectorize, config.map.parallel, config.postprocess_on


def test_the_likeliest_form_is_tried_first_and_then_what_differs_most():
    forms = families()["stream"]
    by_name = {form.name: form for form in forms}
    picked = [by_name[name] for name in pick_forms(forms, 4)]
    assert picked[:1] == forms[:1]
    in_pairs = zip(calls(picked[0]), calls(picked[1]), strict=True)
    assert all(one != other for one, other in in_pairs), "in everything"
    for each in zip(*map(calls, picked), strict=True):
        assert len({*each}) > 1, "each way to call is tried in two ways at least"
    assert sorted(pick_forms(forms, 99)) == sorted(by_name)


def test_neighbors_differ_in_one_respect_and_the_leanest_call_one_at_a_time():
    forms = families()["stream"]
    neighbors = find_neighbors(forms[0], forms)
    assert len(neighbors) == 4, "vectorized or not, two other kinds of parallel calls, the place"
    for each in neighbors:
        pairs = zip(calls(forms[0]), calls(each), strict=True)
        assert sum(one != other for one, other in pairs) == 1
    lean = find_leanest(forms)
    assert [calls(form)[1:] for form in lean] == [("none", "device")] * 2, "what is small goes on"
    assert {form.config.vectorize for form in lean} == {True, False}


@pytest.fixture
def entry(tmp_path):
    params = check(SMALL)
    return Entry(params=params, root=tmp_path, name="naive", config=params.pipelines["naive"])


@pytest.mark.parametrize(
    ("failed", "refuted", "may_race_again"),
    [
        (None, False, False),
        ("UnequalConfigurations", True, False),
        ("MissingInput", False, False),
        ("OutOfMemory", False, True),
    ],
)
def test_only_one_with_other_examples_is_out_for_good(
    tmp_path, entry, monkeypatch, failed, refuted, may_race_again
):
    def do_once(*_, **__):
        if failed:
            raise ContestantLost(failed, Failure(kind=failed, message=""))
        return "digest"

    monkeypatch.setattr("throughline.tuning.question.do_once", do_once)
    journal = Journal(tmp_path)
    assert prove(entry, journal) is not bool(failed)
    assert journal.pages.dropped.keys() == ({"naive"} if failed else set())
    assert bool(journal.pages.lost) is may_race_again
    assert bool(Journal(tmp_path).pages.dropped) is refuted


def test_what_is_proven_is_not_proven_again(tmp_path, entry):
    journal = Journal(tmp_path)
    journal.note_proof("naive", "digest")
    assert prove(entry, journal), "though there is no data"
