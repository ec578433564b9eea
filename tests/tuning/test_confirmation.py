"""A small lead is confirmed by `fit` in fresh processes; what is known is not done again."""

from __future__ import annotations

import pytest

from tests.support.prepared import change_a_pixel
from tests.support.project import SMALL
from tests.support.races import other_programs, race
from throughline.config.params import check
from throughline.settings import PipelineConfig
from throughline.tuning.choice import Choice
from throughline.tuning.confirmation import Confirmation, confirm, prove
from throughline.tuning.jobs import Entry
from throughline.tuning.journal import Journal


def lead(one):
    ratio = one.ratio("new", "old")
    return Choice(
        outcome="found",
        name="new",
        baseline="old",
        incumbent="old",
        to_baseline=ratio,
        to_incumbent=ratio,
        pays_from=1,
    )


def entry_of(name: str) -> Entry:
    raise AssertionError(f"{name} is trained although that is not needed")


@pytest.mark.parametrize(
    ("new", "times"),
    [
        ([120.0, 110.0], None),
        ([120.0, 90.0], "0.97"),
        ([80.0, 90.0], "1.18"),
        ([101.0, 102.0], "0.99"),
    ],
)
def test_a_small_lead_has_to_win_each_pair_of_runs(tmp_path, new, times):
    one, journal = race({"new": [120.0] * 5, "old": [100.0] * 5}), Journal(tmp_path)
    for rate in new:
        journal.note_fits("new against old", (rate, 100.0))
    found = confirm(lead(one), one, journal, entry_of)
    assert found.outcome == ("refuted" if times else "confirmed")
    why = f"by fit in fresh processes it takes {times} times as long"
    assert found.reason == (why if times else "")


def test_a_large_lead_needs_no_confirmation(tmp_path):
    one = race({"new": [210.0] * 5, "old": [100.0] * 5})
    assert confirm(lead(one), one, Journal(tmp_path), entry_of) == Confirmation()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_nothing_is_confirmed_or_refuted_while_others_are_at_work(layout, tmp_path, monkeypatch):
    monkeypatch.setattr("throughline.tuning.confirmation.FIT_S", 0.1)
    params, journal = check(SMALL), Journal(tmp_path)
    one = race({"new": [120.0] * 5, "old": [100.0] * 5})

    def entry(name):
        return Entry(params=params, root=layout.root, name="naive", config=PipelineConfig())

    with other_programs():
        found = confirm(lead(one), one, journal, entry)
    assert found.outcome == "disturbed"
    assert "of the cores while fit was to confirm that `new` leads" in found.reason
    assert not journal.pages.fits


@pytest.mark.slow
@pytest.mark.integration
def test_one_that_cannot_be_trained_is_out_and_not_the_one_that_it_met(layout, tmp_path):
    params, journal = check(SMALL), Journal(tmp_path)
    one = race({"new": [120.0] * 5, "old": [100.0] * 5})
    roots = {"new": layout.root, "old": tmp_path}

    def entry(name):
        return Entry(params=params, root=roots[name], name="naive", config=PipelineConfig())

    found = confirm(lead(one), one, journal, entry)
    assert found.outcome == "lost"
    assert found.reason.startswith("`old`: fit in a fresh process failed: MissingInput")
    assert journal.pages.dropped.keys() == {"old"}


@pytest.mark.slow
@pytest.mark.integration
def test_only_one_with_other_examples_is_out_for_good(layout, tmp_path):
    change_a_pixel(layout.root / "data", tmp_path)
    params, journal = check(SMALL), Journal(tmp_path)
    entry = Entry(params=params, root=tmp_path, name="naive", config=params.pipelines["naive"])
    assert not prove(entry, journal)
    assert "the train split has other examples" in Journal(tmp_path).pages.dropped["naive"]
    assert not journal.pages.lost


@pytest.mark.slow
@pytest.mark.integration
def test_what_is_proven_is_not_proven_again(tmp_path):
    params, journal = check(SMALL), Journal(tmp_path)
    entry = Entry(params=params, root=tmp_path, name="naive", config=params.pipelines["naive"])
    assert not prove(entry, journal), "there is no data"
    assert journal.pages.dropped["naive"].startswith("not proven: MissingInput")
    assert not journal.pages.lost, "that is no want of memory or disk"
    journal.note_proof("naive", "digest")
    assert prove(entry, journal)
